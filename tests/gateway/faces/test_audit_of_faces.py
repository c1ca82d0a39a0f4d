"""What the audit log has of commands and files over the APIs of E2B and SWE-ReX: the sandbox, the command, the path, and no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.use_cases import accounts
from gateway.use_cases.accounts import Accounts
from tests.gateway.faces.test_e2b import STREAM, enveloped
from tests.gateway.harness import ADA, serve
from tests.support.requires import requires

pytestmark = requires("redis")

SECRET_WORD = "q7Lw2Zt9Rb4Nm6Vc1Kd8Js3Hf5Gp0Ya"


@pytest.fixture(autouse=True)
def _no_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: Any) -> Accounts:
        return Accounts()

    monkeypatch.setattr(accounts, "users", none)
    monkeypatch.setattr(accounts, "users_and_groups", none)


async def test_commands_and_files_are_recorded(redis_url: str, tmp_path: Path) -> None:
    place, line = tmp_path / "audit.jsonl", f"TOKEN={SECRET_WORD} make"
    async with serve(redis_url, tmp_path, more={"audit": str(place)}) as served, served.client(ADA) as ada:
        record = await served.place("sb-1", "unix:///nowhere")
        who = {"E2b-Sandbox-Id": record.sandbox_id}
        start = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", line]}}).encode()
        await ada.post("/e2b/process.Process/Start", content=enveloped(start), headers={**who, **STREAM})
        for procedure, message in (
            ("MakeDir", {"path": "/d"}),
            ("Move", {"source": "/a", "destination": "/b"}),
            ("Remove", {"path": "/r"}),
        ):
            await ada.post(f"/e2b/filesystem.Filesystem/{procedure}", json=message, headers=who)
        await ada.get("/e2b/files", params={"path": "/down"}, headers=who)
        await ada.post("/e2b/files", files=[("file", ("/up", b"x"))], headers=who)
        await ada.post("/e2b/files", params={"path": "/raw"}, content=b"x", headers={**who, "Content-Type": "application/octet-stream"})
        for call, body in (
            ("execute", {"command": line, "shell": True}),
            ("run_in_session", {"command": line}),
            ("read_file", {"path": "/read"}),
            ("write_file", {"path": "/written", "content": "x"}),
        ):
            await ada.post(f"/sandboxes/sb-1/swerex/{call}", json=body)
        await served.gateway.audit.flush()
    text = place.read_text()
    assert SECRET_WORD not in text
    found = [json.loads(entry) for entry in text.splitlines()]
    assert {one["sandbox"] for one in found} == {"sb-1"}
    facts = [(one["action"].rpartition("/")[2], one.get("command") or one.get("path") or one.get("paths")) for one in found]
    assert facts == [
        ("Start", "/bin/bash -l -c TOKEN=*** make"),
        ("MakeDir", "/d"),
        ("Move", "/a"),
        ("Remove", "/r"),
        ("files", "/down"),
        ("files", ["/up"]),
        ("files", "/raw"),
        ("execute", "/bin/sh -c TOKEN=*** make"),
        ("run_in_session", "TOKEN=*** make"),
        ("read_file", "/read"),
        ("write_file", "/written"),
    ]
