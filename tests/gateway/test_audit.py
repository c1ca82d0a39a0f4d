"""The audit log: who did what with which result, without secrets; a lost sink; commands of sessions; reading it back."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.audit.lines import command_facts, masked
from gateway.audit.log import AuditLog
from gateway.metrics import Metrics
from gateway.use_cases import keys, projects
from gateway.use_cases.keys import NewKey
from tests.gateway.faces.test_tenants import OLGA, with_operator
from tests.gateway.harness import ADA, BOB, DEADLINE_S, Served, serve
from tests.support.requires import requires
from tests.support.stack import running_stack
from tests.support.until import until, until_async

pytestmark = requires("redis")

CANARY = "hfk_Xq7Lw2Zt9Rb4Nm6Vc1Kd8Js3Hf5Gp0Ya"


@pytest_asyncio.fixture
async def audited(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serve(redis_url, tmp_path, more={"audit": str(tmp_path / "audit.jsonl")}) as served:
        yield with_operator(served)


async def entries(served: Served) -> list[dict[str, Any]]:
    await served.gateway.audit.flush()
    path = Path(served.gateway.settings.audit)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_what_acts_is_recorded_with_who_and_the_result(audited: Served) -> None:
    async with audited.client(ADA) as ada, audited.client(OLGA) as olga, audited.client(BOB) as bob:
        await ada.post("/sandboxes", json={"image": "host", "sandbox_id": "a1", "wait": True, "env": {"TOKEN": CANARY}})
        await ada.get("/sandboxes/a1")
        await ada.post("/sandboxes/a1/heartbeat", json={})
        await ada.post("/sandboxes/a1/exec", json={"command": f"API_KEY={CANARY} curl -H 'Authorization: Bearer {CANARY}' https://x"})
        await bob.delete("/sandboxes/a1")
        await olga.delete("/sandboxes/a1", headers={"X-Holdfast-Owner": "ada"})
        await olga.post("/keys", json={"owner": "bob", "scopes": ["read"]})
        await ada.get("/keys")
    found = await entries(audited)
    assert [(one["event"], one["action"], one.get("owner"), one.get("sandbox"), one.get("code")) for one in found] == [
        ("request", "POST /sandboxes", "ada", "a1", None),
        ("request", "POST /sandboxes/{sandbox_id}/exec", "ada", "a1", "agent_unreachable"),
        ("refused", "DELETE /sandboxes/{sandbox_id}", "bob", "a1", "sandbox_not_found"),
        ("request", "DELETE /sandboxes/{sandbox_id}", "olga", "a1", None),
        ("request", "POST /keys", "olga", None, None),
        ("refused", "GET /keys", None, None, "scope_missing"),
    ]
    assert found[3].items() >= {"for_owner": "ada", "key_id": "olgas", "status": 200, "address": "127.0.0.1"}.items()
    assert found[4].items() >= {"key_owner": "bob", "scopes": ["read"], "status": 201}.items()
    assert found[4]["made"].startswith("key-")
    assert found[1]["command"].startswith("API_KEY=*** curl")
    text = Path(audited.gateway.settings.audit).read_text()
    for secret in (CANARY, ADA, BOB, OLGA):
        assert secret not in text
    assert Path(audited.gateway.settings.audit).stat().st_mode & 0o777 == 0o600


async def test_signing_in_is_recorded(audited: Served) -> None:
    async with audited.client(None) as browser:
        own = {"Origin": audited.url}
        assert (await browser.post("/ui/session", json={"key": "hf_" + "0" * 32}, headers=own)).status_code == 403
        assert (await browser.post("/ui/session", json={"key": ADA}, headers=own)).status_code == 201
        await browser.get("/ui/session", headers=own)
        await browser.delete("/ui/session", headers=own)
    found = await entries(audited)
    assert [(one["event"], one["action"], one.get("owner"), one.get("code")) for one in found] == [
        ("refused", "POST /ui/session", None, "key_invalid"),
        ("request", "POST /ui/session", "ada", None),
        ("request", "DELETE /ui/session", None, None),
    ]
    assert ADA not in Path(audited.gateway.settings.audit).read_text()


async def test_refusals_of_strangers_do_not_fill_the_disk(audited: Served) -> None:
    async with audited.client("hf_" + "0" * 32) as stranger, audited.client(None) as nobody:
        for _ in range(100):
            await stranger.get("/sandboxes")
            await nobody.post("/sandboxes", json={})
    found = await entries(audited)
    assert {(one["event"], one["code"]) for one in found} <= {("refused", "key_invalid"), ("refused", "key_missing")}
    assert 5 <= len(found) < 150
    assert any(one.get("not_recorded", 0) > 0 for one in found)


async def test_an_operator_reads_it_back(audited: Served) -> None:
    async with audited.client(ADA) as ada, audited.client(OLGA) as olga:
        for name in ("a1", "a2"):
            await ada.post("/sandboxes", json={"image": "host", "sandbox_id": name, "wait": True})
        found = (await olga.get("/audit", params={"sandbox": "a2", "since": 60})).json()["entries"]
        assert [(one["owner"], one["sandbox"]) for one in found] == [("ada", "a2")]
        assert (await olga.get("/audit", params={"owner": "bob"})).json()["entries"] == []
        assert len((await olga.get("/audit", params={"limit": 1})).json()["entries"]) == 1
        assert (await ada.get("/audit")).json()["code"] == "scope_missing"


async def test_without_a_log_nothing_is_recorded(served: Served) -> None:
    with_operator(served)
    async with served.client(OLGA) as olga:
        refused = await olga.get("/audit")
        assert (refused.status_code, refused.json()["code"]) == (501, "unsupported")
    assert not served.gateway.audit._waiting


async def test_a_lost_sink_is_reported_and_refuses_work_where_it_is_required(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "logs" / "audit.jsonl"
    with caplog.at_level(logging.ERROR, "gateway.audit"):
        async with serve(redis_url, tmp_path, more={"audit": str(place), "audit_required": True}) as served, served.client(ADA) as ada:
            body = {"image": "host", "sandbox_id": "a1", "wait": True}
            assert (await ada.post("/sandboxes", json=body)).status_code == 200, "not known to be lost yet"
            await until_async(lambda: not served.gateway.audit.available, deadline_s=DEADLINE_S, what="a failed write")
            assert "holdfast_audit_available 0" in (await ada.get("/metrics")).text
            refused = await ada.delete("/sandboxes/a1")
            assert (refused.status_code, refused.json()["code"]) == (503, "audit_unavailable")
            assert (await ada.get("/sandboxes/a1")).status_code == 200, "what is not recorded is served"
            assert [record.getMessage() for record in caplog.records].count(
                f"the audit log {place} cannot be written: No such file or directory"
            ) == 1
            place.parent.mkdir()
            await until_async(lambda: served.gateway.audit.available, deadline_s=DEADLINE_S, what="the log to be written again")
            assert (await ada.delete("/sandboxes/a1")).status_code == 200
            found = await entries(served)
    assert [one.get("code") for one in found] == [None, "audit_unavailable", None], "what waited is written too"


async def test_a_write_that_fails_in_the_middle_repeats_and_loses_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, real, room = tmp_path / "audit.jsonl", os.write, [180]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = real(descriptor, data[: room[0]])
        room[0] -= size
        return size

    metrics = Metrics()
    audit = AuditLog(str(place), metrics, "r")
    for n in range(5):
        audit.add({"event": "x", "n": n})
    with monkeypatch.context() as patched:
        patched.setattr("gateway.audit.log.os.write", write)
        for more in (0, 40, 1, 90):
            room[0] += more
            await audit.flush()
        await audit.aclose()
        assert "entries of the audit log" in caplog.text
    assert [one["n"] for one in await audit.query(lambda entry: True, 0.0, 100)] == [0, 1, 2, 3, 4]
    assert not audit.waiting


async def test_a_full_queue_drops_and_counts_or_refuses(tmp_path: Path) -> None:
    metrics = Metrics()
    loose = AuditLog(str(tmp_path / "none" / "a"), metrics, "r", queue=2)
    for n in range(5):
        loose.add({"n": n})
    loose.check()
    assert b"audit_lost_total 3" in metrics.render().encode() if isinstance(metrics.render(), str) else metrics.render()
    strict = AuditLog(str(tmp_path / "none" / "a"), metrics, "r", required=True, queue=2)
    for n in range(2):
        strict.add({"n": n})
    with pytest.raises(HoldfastError, match="audit_unavailable"):
        strict.check()


async def test_what_waits_is_bounded_in_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.audit.log._QUEUE_BYTES", 5000)
    audit = AuditLog(str(tmp_path / "logs" / "a"), Metrics(), "r", required=True)
    for _ in range(100):
        audit.add({"sandboxes": ["x" * 1000]})
    assert audit.waiting == 5
    with pytest.raises(HoldfastError, match="audit_unavailable"):
        audit.check()
    await audit.flush()
    assert audit.waiting == 5
    (tmp_path / "logs").mkdir()
    await audit.flush()
    assert (audit.waiting, audit._waiting_bytes) == (0, 0)
    audit.check()


def test_to_standard_output() -> None:
    program = (
        "import asyncio; from gateway.audit.log import AuditLog; from gateway.metrics import Metrics\n"
        "async def main():\n    log = AuditLog('stdout', Metrics(), 'r'); log.add({'event': 'x'}); await log.aclose()\nasyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout)["event"] == "x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export OPENAI_API_KEY=sk-abc123 && run", "export OPENAI_API_KEY=*** && run"),
        ("mysql --password hunter2 db", "mysql --password *** db"),
        ("git clone https://user:pw@example.org/x.git", "git clone https://***@example.org/x.git"),
        ("curl -u ada:pw https://x", "curl -u *** https://x"),
        ("curl -H 'Authorization: Bearer abc.def'", "curl -H 'Authorization: ***"),
        ("echo ghp_abcdefghijklmnopqrst", "echo ***"),
        ("echo 9f86d081884c7d659a2feaa0c55ad015", "echo ***"),
        ("cat /usr/lib/python3/dist-packages/some_module_with_a_long_name.py", None),
        ("make -j8 test ARGS=-k", None),
        ("python -m pytest tests/test_a_rather_long_name_of_a_test.py::test_one", None),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, shown: str | None) -> None:
    assert masked(text).startswith(text if shown is None else shown)


@pytest.mark.parametrize("text", ["key-", "-a", "--key.a-", "a.b", "w", "key=\"'", " -p ", "a://b"])
def test_no_text_takes_long_to_mask(text: str) -> None:
    begun = time.process_time()
    masked(text * 500)
    masked(text * 1000 + CANARY)
    assert time.process_time() - begun < 0.5


def test_a_command_has_a_digest_and_first_words() -> None:
    facts = command_facts(["python", "-c", "print(1)\n" * 100])
    assert len(facts["command"]) <= 121
    assert facts["command"].startswith("python -c print(1) print(1)")
    assert len(facts["command_sha256"]) == 64
    long = "x" * 110 + f" TOKEN={CANARY}"
    assert "Xq7" not in command_facts(long)["command"], "also where the words are cut"


@requires("namespaces", "bash")
def test_commands_of_sessions_are_recorded(tmp_path: Path) -> None:
    from holdfast import SandboxClient

    place = tmp_path / "audit.jsonl"
    with running_stack({"HOLDFAST_AUDIT": str(place)}) as stack, SandboxClient(stack.url, stack.key) as client:
        with client.create_sandbox("host", sandbox_id="a1") as sandbox:
            sandbox.exec(["true", "of", "exec"])
            sandbox.shell().run(f"export SECRET_TOKEN={CANARY}; false")
        found = until_entries(place, 2)
        started = {one["command"]: one for one in found if one["event"] == "command_started"}
        assert any("of exec" in command for command in started)
        assert any("SECRET_TOKEN=***" in command for command in started)
        assert {(one["owner"], one["sandbox"], one["claimed"]) for one in started.values()} == {("dev", "a1", True)}
        assert [one["exit_code"] for one in found if one["event"] == "command_ended"] == [0, 1]
        assert [one["event"] for one in found if one.get("action") == "GET /sandboxes/{sandbox_id}/session"][:1] == ["begun"]
        entries_ = client.audit(sandbox="a1", since_s=60)
        assert {one["event"] for one in entries_} >= {"request", "begun", "command_started", "command_ended"}
    assert CANARY not in place.read_text()


def until_entries(place: Path, ended: int) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []

    until(lambda: len([one for one in found() if one["event"] == "command_ended"]) >= ended, deadline_s=DEADLINE_S, what="the commands")
    return found()


async def test_members_are_named_with_their_project(audited: Served) -> None:
    await projects.create(audited.gateway, "lab", ["ada", "bob"], "use")
    operator = await audited.gateway.tenants.principal_of(OLGA)
    _, key = await keys.create(audited.gateway, operator, NewKey("bob", "lab"))
    await audited.place("sb-1", "unix:///nowhere", "ada+lab")
    async with audited.client(key) as bob:
        await bob.delete("/sandboxes/sb-1", headers={"X-Holdfast-Owner": "ada"})
    (entry,) = await entries(audited)
    assert entry.items() >= {"owner": "bob", "project": "lab", "for_owner": "ada", "for_project": "lab", "sandbox": "sb-1"}.items()
