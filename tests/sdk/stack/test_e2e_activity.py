"""Activity of sandboxes in ``client.events()`` and ``holdfast events`` on the whole stack, on both APIs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from holdfast import ActivityEvent, EventGap, InvalidArgumentError, SandboxClient, WaitTimeoutError

from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "bash")
DEADLINE_S = 60.0


async def until(events: Any, type_: str, **wanted: Any) -> Any:
    """The next event of this type with these values; a gap is not expected."""
    while True:
        event = await events.read(DEADLINE_S)
        assert not isinstance(event, EventGap), event
        if event.type == type_ and all(getattr(event, name) == value for name, value in wanted.items()):
            return event


async def test_commands_clients_files_and_usage(client: Any) -> None:
    async with await client.create_sandbox("host", memory="64Mi") as sandbox:
        async with await client.events(sandboxes=[sandbox.id], activity=True, usage_s=1) as events:
            result = await sandbox.exec("echo some; exit 3")
            started = await until(events, "command_started", command_id=result.command_id)
            assert (started.kind, started.line, started.sandbox_id) == ("command", "echo some; exit 3", sandbox.id)
            ended = await until(events, "command_ended", command_id=result.command_id)
            assert (ended.exit_code, ended.stdout_bytes, ended.stderr_bytes, ended.reason) == (3, 5, 0, None)
            shell = await sandbox.shell("main")
            await shell.run("true")
            assert (await until(events, "command_started", kind="run")).shell == "main"
            await sandbox.files.write("/tmp/written", b"12345")
            written = await until(events, "files_written")
            assert (written.operation, written.path, written.size) == ("write", "/tmp/written", 5)
            usage = await until(events, "usage")
            counted = await sandbox.exec("cat /sys/fs/cgroup/memory.current /sys/fs/cgroup/memory/memory.usage_in_bytes 2>/dev/null")
            assert bool(usage.memory_bytes) == bool(counted.stdout), "an ordinary user's sandbox may have no control group"
        async with await client.events(sandboxes=[sandbox.id], files="/tmp", kinds=["files_changed"]) as events:
            found: set[str] = set()
            while "/tmp/another" not in found:  # the watch begins when it has opened the directory
                await sandbox.files.write("/tmp/another", b"1")
                with contextlib.suppress(WaitTimeoutError):
                    found |= {one.get("to", one["path"]) for one in (await events.read(1.0)).changes}


async def test_activity_continues_when_the_gateway_is_killed(stack: Stack, client: Any) -> None:
    async with await client.create_sandbox("host", memory="64Mi") as sandbox:
        events = await client.events(sandboxes=[sandbox.id], activity=True)
        first = await sandbox.exec("true")
        await until(events, "command_ended", command_id=first.command_id)
        old = await asyncio.to_thread(stack.kill_process, "gateway")  # nothing reads meanwhile
        await asyncio.to_thread(stack.wait_restarted, "gateway", old)
        ids = [(await sandbox.exec("true")).command_id for _ in range(5)]
        found: list[Any] = []
        while len(found) < 2 * len(ids):
            event = await events.read(DEADLINE_S)
            assert not isinstance(event, EventGap), event
            if isinstance(event, ActivityEvent) and event.command_id is not None:
                assert event.command_id != first.command_id, "nothing comes twice"
                found.append(event)
        assert [one.command_id for one in found] == [id_ for id_ in ids for _ in range(2)]
        assert [one.type for one in found] == ["command_started", "command_ended"] * len(ids)
        await events.close()


async def test_kinds_and_bad_arguments(client: Any) -> None:
    async with (
        await client.create_sandbox("host", memory="64Mi") as sandbox,
        await client.events(sandboxes=[sandbox.id], activity=True, kinds=["command_ended"]) as events,
    ):
        result = await sandbox.exec("true")
        event = await events.read(DEADLINE_S)
        assert (event.type, event.command_id) == ("command_ended", result.command_id)
    for wrong in ({"kinds": ["none"]}, {"activity": True, "usage_s": 0.1}):
        with pytest.raises(InvalidArgumentError):
            await client.events(**wrong)


def test_the_command_prints_activity(stack: Stack) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="64Mi") as sandbox:
        for words in (("--json",), ()):
            command = [sys.executable, "-m", "holdfast.cli", "events", "--since", "10m", "--activity", "--sandbox", sandbox.id, *words]
            with subprocess.Popen(command, env=stack.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
                assert program.stdout is not None
                assert "ready" in program.stdout.readline()
                result = sandbox.exec("exit 7")
                lines = [program.stdout.readline()]
                while "command_ended" not in lines[-1]:
                    lines.append(program.stdout.readline())
                program.send_signal(signal.SIGINT)
                program.wait(DEADLINE_S)
            if words:
                assert json.loads(lines[-1])["exit_code"] == 7
            else:
                assert f"command_id={result.command_id} exit_code=7" in lines[-1]
