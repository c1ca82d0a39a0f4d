"""Recordings on the whole stack, on both APIs: what is in one, also when the gateway is killed, and what a branch's begins with."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from holdfast import AsyncBranches, InvalidArgumentError, NotFoundError, SandboxClient, commands_of

from tests.sdk.support.faces import adapt
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until, until_async

pytestmark = requires("namespaces", "redis", "bash")
DEADLINE_S = 60.0


async def _true(value: bool) -> bool:
    return value


async def complete(client: Any, recording_id: str) -> list[dict[str, Any]]:
    """The lines of a recording whose sandbox was deleted."""

    async def ended() -> bool:
        return (await client.recordings.get(recording_id)).ended_at is not None

    await until_async(ended, deadline_s=DEADLINE_S, what="the end of the recording")
    lines: list[dict[str, Any]] = await client.recordings.read(recording_id)
    return lines


async def test_everything_that_clients_do_is_recorded(client: Any) -> None:
    sandbox = await client.create_sandbox("host", memory="64Mi", record=True, env={"TOKEN": "very-secret"}, labels={"a": "b"})
    recording_id = (await sandbox.info()).recording if callable(sandbox.info) else sandbox.info.recording
    result = await sandbox.exec("echo out; echo error >&2; exit 3")
    shell = await sandbox.shell("main")
    await shell.run("printf 'a\\377b'")
    async with await sandbox.terminal(["cat"], name="t1", rows=10, cols=20) as terminal:
        await terminal.write(b"typed\r")
        echoed = b""
        while b"typed" not in echoed:
            echoed += (await terminal.read()).data
        await terminal.resize(30, 40)
        await terminal.kill()
    await sandbox.files.write("/tmp/recorded", b"12345")
    with pytest.raises(InvalidArgumentError):
        await client.recordings.delete(recording_id)
    last = await sandbox.exec("echo last")
    await sandbox.delete()
    lines = await complete(client, recording_id)
    found = {one.id: one for one in commands_of(lines)}
    assert (found[result.command_id].stdout, found[result.command_id].stderr, found[result.command_id].exit_code) == (
        b"out\n",
        b"error\n",
        3,
    )
    assert found[result.command_id].command == b"echo out; echo error >&2; exit 3"
    run = next(one for one in found.values() if one.kind == "run")
    assert (run.command, run.stdout) == (b"printf 'a\\377b'", b"a\xffb")
    assert b"typed" in found["t1"].stdout
    assert (found[last.command_id].stdout, found[last.command_id].ended) == (b"last\n", True), "what happened just before the end"
    kinds = [line["type"] for line in lines]
    assert "gap" not in kinds
    assert [line["data"] for line in lines if line["type"] == "input"] == [b"typed\r"]
    assert [(line["rows"], line["cols"]) for line in lines if line["type"] == "resized"] == [(30, 40)]
    assert [line["path"] for line in lines if line["type"] == "files_written"] == ["/tmp/recorded"]
    assert (lines[-1]["type"], lines[-1]["reason"]) == ("sandbox_ended", "deleted")
    assert b"very-secret" not in await client.recordings.raw(recording_id)
    (listed,) = await client.recordings.list(sandbox.id)
    assert (listed.recording_id, listed.labels, listed.reason, listed.commands) == (recording_id, {"a": "b"}, "deleted", len(found))
    await client.recordings.delete(recording_id)
    with pytest.raises(NotFoundError):
        await client.recordings.read(recording_id)
    with pytest.raises(NotFoundError):
        await client.recordings.read("../../../etc/passwd")


async def test_nothing_is_recorded_unless_requested(client: Any) -> None:
    async with await client.create_sandbox("host", memory="64Mi") as sandbox:
        await sandbox.exec("true")
        assert await client.recordings.list(sandbox.id) == []
    with pytest.raises(InvalidArgumentError):
        await client.create_sandbox("host", record="yes")


async def test_a_recording_continues_when_the_gateway_is_killed(stack: Stack, client: Any) -> None:
    sandbox = await client.create_sandbox("host", memory="64Mi", record=True)
    expected = [(await sandbox.exec(f"echo {number}")).command_id for number in range(3)]
    for _ in range(2):
        old = await asyncio.to_thread(stack.kill_process, "gateway")
        expected.append((await sandbox.exec("echo while it is away")).command_id)
        await asyncio.to_thread(stack.wait_restarted, "gateway", old)
        expected.append((await sandbox.exec("echo after it")).command_id)
    (listed,) = await client.recordings.list(sandbox.id)

    async def arrived() -> bool:  # the lease of the gateway that was killed has to expire
        return len(commands_of(await client.recordings.read(listed.recording_id))) >= len(expected)

    await until_async(arrived, deadline_s=DEADLINE_S, what="the commands of the recording")
    await sandbox.delete()
    lines = await complete(client, listed.recording_id)
    assert [one.id for one in commands_of(lines)] == expected
    assert all(one.ended and one.exit_code == 0 for one in commands_of(lines))
    assert "gap" not in [line["type"] for line in lines]


async def test_a_store_that_hangs_slows_no_command(stack: Stack, client: Any) -> None:
    """Its file is replaced by a pipe that nothing reads: whoever opens it waits."""
    async with await client.create_sandbox("host", memory="64Mi", record=True) as sandbox:
        shell = await sandbox.shell()
        await shell.run("echo before")
        (lines,) = list((stack.data / "recordings").glob(f"*/{sandbox.id}.*/lines"))
        await until_async(lambda: _true(b"before" in lines.read_bytes()), deadline_s=DEADLINE_S, what="the store to have a command")
        lines.rename(lines.with_name("earlier"))
        os.mkfifo(lines)
        began = time.monotonic()
        for number in range(200):
            assert (await shell.run(f"echo {number}")).stdout == f"{number}\n"
        assert time.monotonic() - began < DEADLINE_S
        with lines.open("rb") as pipe:  # the store answers again
            assert b"command_started" in await asyncio.to_thread(pipe.readline)
            lines.unlink()
        # it is tried again after some seconds; until then nothing is written, of no recording
        await until_async(lambda: _true(lines.exists()), deadline_s=DEADLINE_S, what="the store to be used again")


@requires("root")  # which stops the processes of a sandbox for the copy
async def test_a_branch_begins_with_its_parents_recording(client: Any) -> None:
    async with await client.create_sandbox("host", memory="64Mi", record=True) as parent:
        first = await parent.exec("echo parent")
        branches = await parent.branch(1)
        branch = branches[0] if isinstance(branches, AsyncBranches) else adapt(branches.inner[0])
        second = await branch.exec("echo branch")
        branch_id = branch.id
        await branch.delete()
        (listed,) = await client.recordings.list(branch_id)
        lines = await complete(client, listed.recording_id)
        assert [(one.id, one.stdout) for one in commands_of(lines)][:1] == [(first.command_id, b"parent\n")]
        assert (second.command_id, b"branch\n") in [(one.id, one.stdout) for one in commands_of(lines)]
        assert [line["parent"] for line in lines if line["type"] == "branched"] == [parent.id]
        assert listed.parent == parent.id


def test_replay_and_exports(stack: Stack) -> None:
    with SandboxClient(stack.url, stack.key) as client:
        with client.create_sandbox("host", memory="64Mi", record=True) as sandbox:
            sandbox.exec("printf 'one\\n\\033]0;title\\007\\033[31mred\\033[0m\\n'; sleep 0.3; exit 3")
            result = sandbox.exec("echo two")
            sandbox_id = sandbox.id
        until(lambda: client.recordings.list(sandbox_id)[0].ended_at is not None, deadline_s=DEADLINE_S, what="the end of the recording")

        def printed(*words: str) -> str:
            command = [sys.executable, "-m", "holdfast.cli", *words]
            return subprocess.run(command, env=stack.environment(), capture_output=True, text=True, timeout=120, check=True).stdout

        shown = printed("replay", sandbox_id, "--speed", "100")
        assert "one\n\\x1b]0;title\x1b[31mred\x1b[0m\n" in shown
        assert "exit code 3" in shown
        assert "two\n" in shown
        later = printed("replay", sandbox_id, "--speed", "100", "--from", result.command_id)
        assert "two\n" in later
        assert "one\n" not in later
        cast = printed("replay", sandbox_id, "--export", "asciicast").splitlines()
        assert json.loads(cast[0])["version"] == 2
        assert any(code == "o" and "two\r\n" in text for _, code, text in map(json.loads, cast[1:]))
        assert [one[0] for one in map(json.loads, cast[1:])] == sorted(one[0] for one in map(json.loads, cast[1:]))
        messages = json.loads(printed("replay", sandbox_id, "--export", "messages"))["messages"]
        assert [one["role"] for one in messages] == ["assistant", "tool"] * 2
        assert messages[3] == {"role": "tool", "tool_call_id": result.command_id, "content": "two\n"}
        assert all(json.loads(line) for line in printed("replay", sandbox_id, "--export", "lines").splitlines())
        assert sandbox_id in printed("recordings", "--sandbox", sandbox_id)
