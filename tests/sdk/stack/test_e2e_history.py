"""``sandbox.history()`` and ``holdfast history`` on the whole stack, on both APIs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "bash")


async def test_the_history_of_a_sandbox(stack: Stack, live: Any) -> None:
    assert await live.history() == []
    result = await live.exec("echo one; exit 3")
    shell = await live.shell("main")
    await shell.run("echo two >&2")
    await live.exec("sleep 60", timeout=0.1)
    async with await live.terminal("cat", name="keys") as terminal:
        one, two, three, keys = await live.history()
        assert (keys.command_id, keys.kind, keys.running, keys.exit_code) == ("keys", "terminal", True, None)
        await terminal.kill()
    assert (one.command_id, one.kind, one.line, one.exit_code) == (result.command_id, "command", "echo one; exit 3", 3)
    assert (one.stdout_bytes, one.stderr_bytes, one.held_bytes) == (4, 0, 4)
    assert (two.kind, two.shell, two.line, two.stderr_bytes, two.cpu_s) == ("run", "main", "echo two >&2", 4, None)
    assert (three.exit_code, three.reason, three.running) == (124, "timeout", False)
    for command in (one, two, three):
        assert command.started_at is not None
        assert command.duration_s is not None
    assert three.cpu_s is not None

    def printed(*words: str) -> str:
        command = [sys.executable, "-m", "holdfast.cli", "history", live.id, *words]
        return subprocess.run(command, env=stack.environment(), capture_output=True, text=True, timeout=120, check=True).stdout

    lines = printed().splitlines()
    assert lines[0].split() == ["ID", "STARTED", "TOOK", "CPU", "EXIT", "OUTPUT", "COMMAND"]
    assert lines[1].startswith(result.command_id)
    assert lines[1].endswith("echo one; exit 3")
    assert lines[2].endswith("[main] echo two >&2")
    assert "124 (timeout)" in lines[3]
    assert [row["exit_code"] for row in json.loads(printed("--json"))][:3] == [3, 0, 124]
