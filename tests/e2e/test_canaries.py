"""A value of each secret kind is searched for in everything that a stack writes and answers, with logs, metrics, traces and audit on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from holdfast import HoldfastError, SandboxClient
from holdfast_wire.logs import FIELDS

from tests.e2e.test_traces import receiver
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack
from tests.support.until import until

pytestmark = requires("namespaces")
CREATE_ENV = "canary-create-env-5f1c0d7e"
EXEC_ENV = "canary-exec-env-8c2b6a19"
SHELL_ENV = "canary-shell-env-1e9d4f70"
WRONG_KEY = "hf_canarywrongkey0123456789abcdef00"


class Written:
    """What a run wrote and answered, by where; and the secrets that must not be in it."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self.secrets = {"variable of a sandbox": CREATE_ENV, "variable of a command": EXEC_ENV, "variable of a shell": SHELL_ENV}
        self.secrets["refused key"] = WRONG_KEY


def answer(url: str, key: str = "", method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> str:
    """Head and body of an answer, refusals too."""
    given = {**({"X-API-Key": key} if key else {}), "Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as found:
            return f"{found.headers}\n{found.read().decode(errors='replace')}"
    except urllib.error.HTTPError as refused:
        return f"{refused.headers}\n{refused.read().decode(errors='replace')}"
    except urllib.error.URLError as away:  # the answer leads to a host that this machine does not know
        return str(away)


def command_lines() -> str:
    """What `ps` shows anyone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(found)


def follow_events(stack: Stack, found: list[str], end: threading.Event) -> None:
    request = urllib.request.Request(f"{stack.url}/events", headers={"X-API-Key": stack.key})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as stream:
        while not end.is_set():
            found.append(stream.readline().decode())


def use(stack: Stack, written: Written) -> None:
    """Use the service in every way in which a secret is passed."""
    places, secrets = written.places, written.secrets
    answers: list[str] = []
    with SandboxClient(stack.url, stack.key, tracing=False) as client:
        made = client.keys.create(owner="dev", scopes=["read", "create", "exec", "files"])
        secrets["stored key"] = str(made.key)
        with client.create_sandbox("host", env={"TOKEN": CREATE_ENV}) as sandbox:
            assert sandbox.exec('test -n "$TOKEN"', env={"OTHER": EXEC_ENV}).exit_code == 0
            shell = sandbox.shell(env={"SHELL_TOKEN": SHELL_ENV})
            assert shell.run('test -n "$SHELL_TOKEN"').exit_code == 0
            assert sandbox._driver is not None
            secrets["ticket"] = sandbox._driver.engine._ticket
            assert secrets["ticket"]
            process = sandbox.start("sleep 5", env={"OTHER": EXEC_ENV})
            places["ps"] = command_lines()
            preview = sandbox.preview_url(8080)
            secrets["preview token"] = next(iter(preview.headers.values()))
            there = urlsplit(str(preview))
            answers.append(answer(f"{stack.url}{there.path}?{there.query}", headers={"Host": there.netloc}))
            process.kill()
            answers += [str(sandbox.info), str(client.list_sandboxes()), repr(sandbox), repr(client)]
            name = sandbox.id
            for body in ({"command": "true", "env": {"A=B": EXEC_ENV}}, {"command": "true", "env": {"A": [EXEC_ENV]}}, {"command": 3}):
                answers.append(answer(f"{stack.url}/sandboxes/{name}/exec", stack.key, "POST", {**body, "env": {"A=": EXEC_ENV}}))
            answers.append(
                answer(f"{stack.url}/sandboxes/{name}/exec", stack.key, "POST", {"command": "true", "env": {"A": EXEC_ENV}, "wait": True})
            )
            for route in ("", "/history", "/ports"):
                answers.append(answer(f"{stack.url}/sandboxes/{name}{route}", stack.key))
        answers.append(answer(f"{stack.url}/sandboxes", stack.key, "POST", {"image": "nowhere:1", "env": {"A": CREATE_ENV}, "wait": True}))
        answers.append(answer(f"{stack.url}/sandboxes", stack.key, "POST", {"image": "host", "env": {"A=B": CREATE_ENV}}))
        for path in (
            "/sandboxes",
            "/keys",
            "/limits",
            "/resources",
            "/doctor",
            "/debug",
            "/audit",
            "/",
            "/openapi.json",
            "/readyz",
            "/nothing",
        ):
            answers += [answer(stack.url + path, stack.key), answer(stack.url + path, WRONG_KEY), answer(stack.url + path)]
        with pytest.raises(HoldfastError) as wrong, SandboxClient(stack.url, WRONG_KEY) as stranger:
            stranger.list_sandboxes()
        answers += [str(wrong.value), repr(wrong.value), json.dumps(wrong.value.to_map())]
    places["answers and error texts"] = "\n".join(answers)
    pages = [
        path for path in (Path(__file__).parents[2] / "gateway" / "faces" / "page" / "static").rglob("*.js") if "vendor" not in path.parts
    ]
    places["page sources"] = answer(f"{stack.url}/ui") + "".join(answer(f"{stack.url}/ui/{path.name}") for path in pages)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("canaries")
    spans, audit, found = folder / "spans.jsonl", folder / "audit.jsonl", Written()
    events: list[str] = []
    with receiver(spans) as address:
        settings = {"HOLDFAST_TRACING": "1", "HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_AUDIT": str(audit), "HOLDFAST_METRICS_OWNERS": "1"}
        exporter = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with running_stack({**settings, **exporter}) as stack:
            end = threading.Event()
            listening = threading.Thread(target=follow_events, args=(stack, events, end))
            listening.start()
            found.secrets["key"] = stack.key
            found.secrets["deployment secret"] = (stack.data / "secret").read_text().strip()
            use(stack, found)
            program = [sys.executable, "-m", "tests.support.traced_program"]
            environment = {**stack.environment(), **exporter, "CANARY": CREATE_ENV}
            subprocess.run(program, env=environment, check=True, capture_output=True, timeout=120)
            time.sleep(1.0)
            end.set()
            found.places["metrics"] = answer(f"{stack.url}/metrics")
            with contextlib.suppress(HoldfastError), SandboxClient(stack.url, stack.key) as client:
                client.create_sandbox("host").delete()  # ends the stream of events
            listening.join()
            found.places["debug"] = answer(f"{stack.url}/debug", stack.key)
            found.places["logs"] = "\n".join(path.read_text() for path in (stack.data / "logs").glob("*.log*"))
            told = [sys.executable, "-m", "holdfast.cli", "logs", "--service", "gateway", "--data", str(stack.data), "-n", "50"]
            found.places["holdfast logs"] = subprocess.run(told, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
        until(lambda: "holdfast-gateway" in spans.read_text(), deadline_s=30, what="spans")
    found.places |= {"traces": spans.read_text(), "audit": audit.read_text(), "events": "".join(events)}
    return found


PLACES = ("logs", "holdfast logs", "metrics", "traces", "audit", "events", "page sources", "ps", "debug", "answers and error texts")


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_is_written(written: Written, place: str) -> None:
    text = written.places[place]
    assert len(text) > 20, f"nothing was written to {place}"
    found = {kind: text[max(text.index(one) - 150, 0) :][:300] for kind, one in written.secrets.items() if one in text}
    if place == "answers and error texts":
        found.pop("preview token", None)  # of the preview's own address, which sends its visitor on
        found.pop("refused key", None) if found.get("refused key") == "" else None
    assert found == {}


def test_the_search_finds_what_is_there(written: Written) -> None:
    assert len(written.secrets) == 9
    assert all(len(secret) > 20 for secret in written.secrets.values())
    assert "holdfast_creates_total" in written.places["metrics"]
    assert "command_started" in written.places["audit"]
    assert "event:" in written.places["events"]


def test_lines_of_the_log_have_the_ids_of_request_sandbox_session_command_and_trace(written: Written) -> None:
    lines = [json.loads(line) for line in written.places["logs"].splitlines() if line.startswith('{"time"')]
    served = [line for line in lines if line["logger"] == "gateway.requests"]
    assert served
    assert {"request", "route", "took_s"} <= set.intersection(*(set(line) for line in served))
    executed = [line for line in served if line["route"] == "/sandboxes/{sandbox_id}/exec" and line["status"] == 200]
    assert all(line["sandbox"] and line["command"] and line["trace"] for line in executed if "command" in line)
    assert any("command" in line for line in executed)
    sessions = [line for line in served if line["route"].endswith("/session")]
    assert any(line.get("session") for line in sessions)
    assert {name for line in lines for name in line} <= {"time", "level", "logger", "message", "exception", *FIELDS}
    traced = {json.loads(line)["trace"] for line in written.places["traces"].splitlines()}
    assert {line["trace"] for line in served if "trace" in line} & traced
