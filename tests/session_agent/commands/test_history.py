"""The history of commands in the agent: what is in it, in which order, and its bounds."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import msgpack
import pytest
from holdfast_wire.frames import Closed, Opened, Started
from holdfast_wire.limits import HISTORY_BYTES, HISTORY_COMMANDS

from session_agent.agent.output.exit_status import ExitStatus
from session_agent.agent.output.history import History, first_line
from session_agent.agent.output.records import Records
from session_agent.agent.output.spool import Budget, Spool
from tests.support.process_channel import Client, client


async def _history(made: Client) -> list[dict[str, Any]]:
    channel = made.open("history", {})
    assert isinstance(await channel.end(), Closed)
    rows = list(msgpack.Unpacker(_fed(bytes(channel.output))))
    assert isinstance(channel.facts[0], Opened)
    assert channel.facts[0].info == {"commands": len(rows)}
    return rows


def _fed(data: bytes) -> Any:
    import io

    return io.BytesIO(data)


async def test_commands_runs_and_what_still_runs() -> None:
    async with client() as made:
        assert await _history(made) == []
        began = time.time()
        spin = f"\n\n{sys.executable} -c 'import time\nwhile time.process_time() < 0.3: pass'; echo out; echo error >&2; exit 3\nnext line"
        await made.open("command", {"id": "c1", "script": spin}).outcome()
        await made.open("command", {"id": "c2", "argv": ["sleep", "60"], "timeout_s": 0.1}).outcome()
        shell = made.shell(name="main")
        await shell.run("echo a run")
        made.open("command", {"id": "c3", "script": "sleep 60"})
        first, second, run, running = await _history(made)
        assert {name: first[name] for name in ("id", "kind", "shell", "exit_code", "stdout_bytes", "stderr_bytes", "running")} == {
            "id": "c1", "kind": "command", "shell": "", "exit_code": 3, "stdout_bytes": 4, "stderr_bytes": 6, "running": False,
        }  # fmt: skip
        assert first["line"].endswith("-c 'import time")
        assert began - 1 <= first["started_at"] <= time.time()
        assert 0.25 <= first["cpu_s"] <= first["duration_s"] + 0.1
        assert first["held_bytes"] == 10
        assert (second["line"], second["exit_code"], second["reason"], second["signal"]) == ("sleep 60", 124, "timeout", None)
        assert (run["kind"], run["shell"], run["line"], run["exit_code"], run["cpu_s"]) == ("run", "main", "echo a run", 0, None)
        assert (running["id"], running["running"], "exit_code" in running) == ("c3", True, False)
        assert os.path.exists(f"/proc/{running['pid']}"), "by it a command is found that is known by its process alone"
        assert first["pid"] not in (None, second["pid"], running["pid"])
        assert run["pid"] is None
        terminal = made.open("terminal", {"argv": ["cat"], "name": "t1"})
        started = await terminal.fact(Started)
        assert (await _history(made))[-1]["pid"] == started.info["pid"]


def test_the_history_is_bounded() -> None:
    history, records = History(), Records()
    for number in range(3 * HISTORY_COMMANDS):
        record = records.create(f"{number:0128}", b"", Spool(Budget(1)), "run", "\U0001f600" * 10_000, "s" * 128)
        history.add(record, ExitStatus(0, 0.0))
        assert len(record.line) == 200
    assert len(history) <= HISTORY_COMMANDS
    assert history.held_bytes <= HISTORY_BYTES
    entries = list(history)
    assert len(entries) == len(history)
    assert entries[-1]["id"].endswith(str(3 * HISTORY_COMMANDS - 1)), "the oldest go first"
    packed = sum(len(msgpack.packb(entry)) for entry in entries)
    assert packed <= 2 * HISTORY_BYTES, "what the gateway reads"


@pytest.mark.parametrize(
    ("text", "line"),
    [("", ""), ("\n \n a b \nc", "a b "), (b"\xff\xfea\nb", "��a"), ("x" * 1000, "x" * 200), ("\ud800x", "\ud800x"), ("\n" * 5000, "")],
)
def test_the_first_line(text: str | bytes, line: str) -> None:
    assert first_line(text) == line
