"""Every kind of event in one run of the whole stack: that it comes, with which fields, which of them are claims of an agent, and for whom.

A second gateway of the same stack streams what clients of the first one do, and the first one continues the stream. ``leaving`` is missing:
only a cluster reports it (``tests/kubernetes``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from holdfast import HoldfastError, Sandbox, SandboxClient
from holdfast_server.embed import free_port

from gateway.use_cases import events
from tests.bench.memory import in_pid_namespace
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack
from tests.support.until import until

pytestmark = [requires("namespaces", "redis", "bash"), pytest.mark.timeout(400)]
DEADLINE_S = 120.0
LABEL = {"kinds": "yes"}
STRANGER = "hf_0123456789abcdef0123456789abcdef"
_LIFE = {"sandbox_id", "time", "image", "labels", "group", "created_at", "ready_at"}
_CLAIM = {"sandbox_id", "time", "claimed", "journal", "seq"}
_SAMPLE = {"sandbox_id", "time", "claimed"}
TABLE: dict[str, set[str]] = {
    "created": _LIFE,
    "ready": _LIFE,
    "paused": _LIFE | {"paused"},
    "failed": _LIFE | {"reason", "fault", "message"},
    "deleted": {"sandbox_id", "time", "reason", "fault", "message"},
    "command_started": _CLAIM | {"command_id", "kind", "line"},
    "command_ended": _CLAIM | {"command_id", "exit_code", "duration_s", "cpu_s", "stdout_bytes", "stderr_bytes"},
    "progress": _SAMPLE | {"command_id", "stdout_bytes", "stderr_bytes"},
    "files_written": _CLAIM | {"operation", "path", "size", "sha256"},
    "files_changed": _SAMPLE | {"changes"},
    "attached": _CLAIM | {"session", "generation"},
    "resumed": _CLAIM | {"session", "generation", "received_bytes"},
    "lost": _CLAIM | {"session", "generation"},
    "detached": _CLAIM | {"session", "generation"},
    "usage": _SAMPLE | {"memory_bytes"},
    "ports": _SAMPLE | {"ports"},
    "pull": {"name", "state", "error", "time"},
    "gap": {"message"},
}
"""The fields that an event of each kind has here. None of those of the service has ``claimed``."""
CLIENT = """
import sys, holdfast
with holdfast.SandboxClient() as client:
    shell = client.get_sandbox(sys.argv[1]).shell()
    shell.run("true")
    print("ready", flush=True)
    sys.stdin.read()
"""


class Stream:
    """A stream of events that a thread reads."""

    def __init__(self, url: str, key: str, last_id: str = "", **query: Any) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.last_id = last_id
        self._client = httpx.Client(timeout=DEADLINE_S, trust_env=False)
        headers = {"X-API-Key": key} | ({"Last-Event-ID": last_id} if last_id else {})
        self._answer = self._client.send(self._client.build_request("GET", f"{url}/events", params=query, headers=headers), stream=True)
        assert self._answer.status_code == 200, self._answer.read()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        until(lambda: self.last_id, deadline_s=DEADLINE_S, what="the stream to begin")

    def _read(self) -> None:
        fields: dict[str, str] = {}
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
            for line in self._answer.iter_lines():
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif not line and fields:
                    if fields.get("event", "position") != "position":
                        self.found.append((fields["event"], json.loads(fields["data"])))
                    self.last_id = fields.get("id", self.last_id)
                    fields = {}

    def of(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        return [facts for name, facts in list(self.found) if name == kind and all(facts.get(key) == value for key, value in wanted.items())]

    def kinds(self) -> set[str]:
        return {name for name, _ in list(self.found)}

    def wait(self, kind: str, **wanted: Any) -> dict[str, Any]:
        until(lambda: self.of(kind, **wanted), deadline_s=DEADLINE_S, what=lambda: f"{kind} {wanted} besides {self.kinds()}")
        return self.of(kind, **wanted)[-1]

    def close(self) -> None:
        self._client.close()
        self._answer.close()


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack({"HOLDFAST_IMAGE_FALLBACK": "", "HOLDFAST_REGISTRIES": "127.0.0.1:9"}) as running:
        with (running.data / "keys").open("a") as file:
            file.write(f"stranger {hashlib.sha256(STRANGER.encode()).hexdigest()}\n")
        yield running


@pytest.fixture
def second(stack: Stack) -> Iterator[str]:
    """Another gateway of the same stack; its URL."""
    port = free_port()
    environment = dict(one.split("=", 1) for one in Path(f"/proc/{stack.pid('gateway')}/environ").read_text().split("\0") if "=" in one)
    with subprocess.Popen([sys.executable, "-m", "gateway"], env=environment | {"HOLDFAST_PORT": str(port), "PORT": str(port)}) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: _answers(url), deadline_s=DEADLINE_S, what="the second gateway")
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_every_kind_comes_with_its_fields(stack: Stack, second: str) -> None:
    wanted: dict[str, Any] = {"activity": "true", "usage_s": 1, "files": "/tmp", "pulls": "true", "label": "kinds=yes"}
    with SandboxClient(stack.url, stack.key) as client:
        stream, stranger = Stream(second, stack.key, **wanted), Stream(second, STRANGER, activity="true", pulls="true")
        others = Stream(second, stack.key, activity="true", label="kinds=no")
        sandbox = client.create_sandbox("host", memory="128Mi", labels=LABEL)
        only = Stream(second, stack.key, activity="true", sandbox=sandbox.id, kind="command_ended")
        _live(client, sandbox, stream)
        with client.create_sandbox("host", memory="64Mi", labels={"kinds": "no"}) as another:
            others.wait("ready", sandbox_id=another.id)
            shown = [another.exec("true").command_id]  # a sandbox that is new is followed within a second

            def seen() -> bool:
                shown.append(another.exec("sleep 0.1").command_id)
                return bool(others.of("command_ended"))

            until(seen, deadline_s=DEADLINE_S, what="a command of the other sandbox")
        _clients(stack, sandbox, stream)
        with pytest.raises(HoldfastError):
            client.images.pull("127.0.0.1:9/none/such:1")
        stream.wait("pull", name="127.0.0.1:9/none/such:1", state="failed")

        stream.close()  # what follows happens while nothing reads, and comes from the first gateway
        missed = sandbox.exec("echo missed").command_id
        resumed = Stream(stack.url, stack.key, stream.last_id, **wanted)
        resumed.wait("command_ended", command_id=missed)
        sandbox.pause()
        resumed.wait("paused", sandbox_id=sandbox.id, paused="memory")
        sandbox.delete()
        assert resumed.wait("deleted", sandbox_id=sandbox.id).items() >= {"reason": "deleted", "fault": "caller"}.items()
        nonsense = Stream(stack.url, stack.key, "nonsense")
        nonsense.wait("gap")

        found = [*stream.found, *resumed.found, *nonsense.found]
        kinds = {name for name, _ in found}
        assert kinds >= TABLE.keys(), f"never seen: {TABLE.keys() - kinds}"
        assert TABLE.keys() | {"leaving"} == events.KINDS, "a kind without a row in the table"
        for name, facts in found:
            assert facts.get("claimed", False) is ("claimed" in TABLE.get(name, ())), (name, facts)
        for name, fields in TABLE.items():
            of_kind = [facts for one, facts in found if one == name]
            assert any(facts.keys() >= fields for facts in of_kind), (name, fields, of_kind[:3])
        assert not [facts for name, facts in stream.found if facts.get("command_id") in shown], "it is of a sandbox without the label"
        assert {facts["sandbox_id"] for name, facts in others.found if name in ("command_started", "attached")} == {another.id}
        assert {name for name, _ in only.found} == {"command_ended"}
        assert stranger.found == [], "nothing of another owner"
        for one in (resumed, stranger, others, only, nonsense):
            one.close()


def _live(client: SandboxClient, sandbox: Sandbox, stream: Stream) -> None:
    """What one sandbox does, and the lives of some that are created at once."""
    with ThreadPoolExecutor(8) as several:  # of a state that lasts less than the interval between two reads only the next one is seen
        made = list(several.map(lambda _: client.create_sandbox("host", memory="64Mi", labels=LABEL), range(16)))
        list(several.map(lambda one: one.delete(), made))
    dying = client.create_sandbox("host", memory="64Mi", labels=LABEL)
    for pid in in_pid_namespace(dying.exec("readlink /proc/self/ns/pid").stdout.strip()):
        os.kill(pid, signal.SIGKILL)
    assert stream.wait("failed", sandbox_id=dying.id)["fault"] in ("infrastructure", "workload")
    ended = sandbox.exec("echo some; exit 3")
    assert stream.wait("command_ended", command_id=ended.command_id).items() >= {"exit_code": 3, "stdout_bytes": 5}.items()
    with sandbox.start("while true; do echo x; sleep 0.1; done", stdin=False) as process:
        stream.wait("progress")
        process.kill()
    with sandbox.start(["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"], stdin=False):
        until(lambda: any(8000 in one["ports"] for one in stream.of("ports")), deadline_s=DEADLINE_S, what="the port")
    sandbox.files.write("/tmp/written", b"12345")
    assert stream.wait("files_written", path="/tmp/written")["size"] == 5
    until(lambda: _changed(sandbox, stream), deadline_s=DEADLINE_S, what="the change of a file")
    stream.wait("usage")


def _changed(sandbox: Sandbox, stream: Stream) -> bool:
    """Whether a change of a file has come, else make one: the watch of a directory begins a moment after the stream."""
    changes = [change.get("to", change["path"]) for one in stream.of("files_changed") for change in one["changes"]]
    if "/tmp/written" not in changes:
        sandbox.files.write("/tmp/written", str(time.time()).encode())
        time.sleep(0.5)
    return "/tmp/written" in changes


def _clients(stack: Stack, sandbox: Sandbox, stream: Stream) -> None:
    """A client that leaves, one that is killed, and one whose gateway is killed."""
    for end in ("closed", "killed"):
        words = [sys.executable, "-c", CLIENT, sandbox.id]
        with subprocess.Popen(words, env=stack.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            assert program.stdin is not None
            assert program.stdout.readline() == b"ready\n"
            if end == "killed":
                program.kill()
            else:
                program.stdin.close()
            program.wait(DEADLINE_S)
        stream.wait("lost" if end == "killed" else "detached")
    with SandboxClient(stack.url, stack.key) as other:
        shell = other.get_sandbox(sandbox.id).shell()
        shell.run("true")
        old = stack.kill_process("gateway")
        stack.wait_restarted("gateway", old)
        stack.wait_ready()
        shell.run("true")
        stream.wait("resumed")


def test_every_field_is_documented() -> None:
    """In the description of ``GET /events``."""
    document = yaml.safe_load((Path(__file__).parents[2] / "schemas" / "openapi.yaml").read_text())
    quoted = re.findall(r"`([^`]+)`", document["paths"]["/events"]["get"]["description"])
    words = {word for one in quoted for word in re.findall(r"\w+", one)}
    state = set(document["components"]["schemas"]["Sandbox"]["properties"])
    missing = {(kind, field) for kind, fields in TABLE.items() for field in fields | {kind} if field not in words | state}
    assert not missing, sorted(missing)
