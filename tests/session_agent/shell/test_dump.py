"""Dumps of living shells and their restore elsewhere: what comes along, what is listed as lost, and that no run begins meanwhile."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgpack
import pytest
from holdfast_wire.frames import Closed, Failed, Opened

from tests.support.process_channel import Client, LiveShell, ProcessChannel, client
from tests.support.until import until_async

SHELL: dict[str, Any] = {
    "name": "a", "kind": "bash", "size": None, "cwd": "/", "env": {"PATH": "/bin:/usr/bin"}, "uid": None, "gid": None, "groups": [],
    "status": 0, "state": None, "processes": [],
}  # fmt: skip


async def _dump(made: Client, **params: Any) -> tuple[ProcessChannel, bytes, list[dict[str, str]]]:
    channel = made.open("dump", params)
    await channel.until(lambda: channel.facts)
    first = channel.facts[0]
    assert isinstance(first, Opened), first
    await channel.until(lambda: len(channel.output) == first.info["bytes"])
    return channel, bytes(channel.output), first.info["lost"]


async def _restore(made: Client, data: bytes) -> dict[str, Any]:
    channel = made.open("restore", {})
    await channel.write(data, eof=True)
    last = await channel.end()
    assert isinstance(last, Closed), last
    return dict(last.result)


async def _out(shell: LiveShell, script: str) -> str:
    outcome = await shell.run(script)
    return outcome.stdout.decode()


SETUP = "cd /usr; export A='1 2'; b=(x 'y z'); declare -A m=([k]=v); f() { echo \"f $1\"; };"
SETUP += "alias l='echo aliased'; shopt -s expand_aliases; set -o pipefail"
SHOW = 'pwd; env | grep ^A=; echo "${b[1]} ${m[k]}"; f 3; eval l; set -o | grep pipefail; echo $?'


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_a_shell_continues_elsewhere(kind: str) -> None:
    setup, show = (SETUP, SHOW) if kind == "bash" else ("cd /usr; export A='1 2'; umask 027; v=x", "pwd; env | grep ^A=; umask; echo $v")
    async with client() as parent:
        shell = parent.shell(name="main", shell=kind)
        await _out(shell, setup)
        before = await _out(shell, show)
        channel, data, lost = await _dump(parent, wait=True)
        channel.handler.close(False)
        assert isinstance(await channel.end(), Closed)
        assert not lost, lost
        assert await _out(shell, show) == before, "the shell goes on"
    async with client() as branch:
        result = await _restore(branch, data)
        expected = [] if kind == "bash" else ["main: functions"]  # a POSIX shell cannot list them
        assert (result["shells"], [one["name"] for one in result["lost"]]) == (1, expected)
        other = branch.shell(name="main", shell=kind)
        await other.channel.until(lambda: other.channel.facts)
        opened = other.channel.facts[0]
        assert isinstance(opened, Opened)
        assert (opened.info["created"], opened.info["shell"]) == (False, kind)
        first = await other.run("true")
        assert first.result["shell"] == {
            "cwd": b"/usr" if isinstance(first.result["shell"]["cwd"], bytes) else "/usr",
            "restarted": False,
            "restored": False,
        }
        assert await _out(other, show) == before
        assert await _restore(branch, data) == {"shells": 0, "lost": []}, "a shell that exists is left as it is"


async def test_the_status_of_the_last_command_comes_along() -> None:
    async with client() as parent:
        await parent.shell(name="main").run("(exit 7)")
        _, data, _ = await _dump(parent, wait=True)
    async with client() as branch:
        await _restore(branch, data)
        assert await _out(branch.shell(name="main"), "echo $?") == "7\n"


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("bash", "true", "two two"),
        ("bash", "HOSTNAME=mine", "mine mine"),
        ("bash", "unset HOSTNAME", "gone"),
        ("sh", "true", "two two"),
        ("sh", "HOSTNAME=mine", "mine mine"),
    ],
)
async def test_the_host_name_is_that_of_the_new_sandbox_unless_it_was_changed(kind: str, change: str, expected: str) -> None:
    show = 'if [ -z "${HOSTNAME+x}" ]; then echo gone; else echo $HOSTNAME $(printenv HOSTNAME); fi'
    async with client(env={"HOSTNAME": "one"}) as parent:
        await parent.shell(name="main", shell=kind).run(change)
        _, data, _ = await _dump(parent, wait=True)
    async with client(env={"HOSTNAME": "two"}) as branch:
        lost = [one["name"] for one in (await _restore(branch, data))["lost"]]
        assert lost == ([] if kind == "bash" else ["main: functions"])
        assert await _out(branch.shell(name="main", shell=kind), show) == f"{expected}\n"


async def test_a_shell_with_a_terminal_comes_along() -> None:
    async with client() as parent:
        shell = parent.shell(name="t", tty=True, rows=33, cols=77)
        await shell.run("v=kept")
        shell.handler.write(b"half-typed", False)
        _, data, _ = await _dump(parent, wait=True)
    async with client() as branch:
        assert await _restore(branch, data) == {"shells": 1, "lost": []}
        assert (await _out(branch.shell(name="t"), "echo $v; stty size")).split() == ["kept", "33", "77"]


async def test_what_cannot_come_along_is_listed() -> None:
    async with client() as parent:
        shell = parent.shell(name="main")
        await shell.run("sleep 987 & exec 7</etc/passwd")
        server = parent.command("sleep", "986", id="server")
        terminal = parent.open("terminal", {"id": "t1", "name": "editor", "argv": ["sleep", "985"]})
        await server.until(lambda: server.facts)
        await terminal.until(lambda: terminal.facts)
        _, _, lost = await _dump(parent, wait=True)
        rows = {(row["kind"], row["name"].partition(" ")[2] if row["kind"] == "process" else row["name"]) for row in lost}
        assert rows == {
            ("command", "server"),
            ("terminal", "editor"),
            ("process", "sleep 987"),
            ("descriptor", "main: 7 -> /etc/passwd"),
        }
        assert all(row["reason"] for row in lost)


async def test_idle_waits_for_the_command_and_no_other_begins_until_the_end() -> None:
    async with client() as parent:
        shell = parent.shell(name="main")
        await shell.run("mkfifo /tmp/holdfast-dump-$$ && p=/tmp/holdfast-dump-$$; echo $p")
        path = (await _out(shell, "echo $p")).strip()
        line = os.open(path, os.O_RDWR)  # with both ends open, neither side waits for the other to open it
        try:
            running = shell.begin("read line <$p; got=$line")
            await until_async(lambda: any(one.started for one in parent.context.records.running()), deadline_s=60.0, what="the command")
            channel = parent.open("dump", {"wait": True})
            os.write(line, b"hello\n")
            await shell.wait(running)
            await channel.until(lambda: channel.facts)
            assert isinstance(channel.facts[0], Opened)
            waiting = shell.begin("echo later")
            for _ in range(20):
                await asyncio.sleep(0)
            parent.context.reaper.reap()
            assert shell.channel.facts[-1].__class__.__name__ == "Exited", "it has not begun"
            assert b"hello" in bytes(channel.output), "the dump has what the command has done"
            channel.handler.close(False)
            assert (await shell.wait(waiting)).stdout == b"later\n"
        finally:
            os.close(line)
            os.unlink(path)


async def test_a_client_that_waits_no_longer_leaves_nothing_held() -> None:
    async with client() as parent:
        shell = parent.shell(name="main")
        await shell.run("true")
        running = shell.begin("sleep 986")
        await until_async(lambda: bool(parent.context.started_processes()), deadline_s=60.0, what="the command")
        channel = parent.open("dump", {"wait": True})
        waiting = shell.begin("echo on")
        channel.handler.close(True)
        assert isinstance(await channel.end(), Closed)
        shell.handler.signal("KILL")
        await shell.wait(running)
        assert (await shell.wait(waiting)).stdout == b"on\n"


async def test_now_has_the_state_before_the_command_that_runs() -> None:
    async with client() as parent:
        shell = parent.shell(name="main")
        await shell.run("v=before")
        running = shell.begin("v=after; sleep 986", command_id="long")
        queued = shell.begin("v=later", command_id="queued")
        await until_async(lambda: bool(parent.context.started_processes()), deadline_s=60.0, what="the command")
        channel, data, lost = await _dump(parent)
        assert {("command", "long"), ("command", "queued")} <= {(row["kind"], row["name"]) for row in lost}
        channel.handler.drop()
        shell.handler.signal("KILL")
        await shell.wait(running)
        await shell.wait(queued)
        assert await _out(shell, "echo $v") == "later\n"
    async with client() as branch:
        await _restore(branch, data)
        assert await _out(branch.shell(name="main"), "echo $v") == "before\n"


async def test_a_client_that_is_gone_holds_nothing() -> None:
    async with client() as parent:
        shell = parent.shell(name="main")
        channel, _, _ = await _dump(parent, wait=True)
        channel.attached = False
        channel.handler.writable()
        assert await _out(shell, "echo on") == "on\n"


@pytest.mark.parametrize(
    "data",
    [b"x", b"\xc1", msgpack.packb([1]), msgpack.packb({"version": 0, "shells": []}), msgpack.packb({"version": 1, "shells": [{}]}),
     msgpack.packb({"version": 1, "shells": [SHELL | {"env": {"A": 1, "B": None}, "uid": "root"}]}),],
)  # fmt: skip
async def test_bytes_that_are_no_dump_are_refused(data: bytes) -> None:
    async with client() as branch:
        channel = branch.open("restore", {})
        await channel.write(data, eof=True)
        last = await channel.end()
        assert isinstance(last, Failed)
        assert last.error["code"] == "invalid_argument"


async def test_what_of_a_state_cannot_be_loaded_is_listed_and_the_shell_works() -> None:
    state = {"kind": "bash", "directory": b"/nowhere", "entries": [], "functions": [], "lost": ["variable x"]}
    async with client() as branch:
        result = await _restore(branch, msgpack.packb({"version": 1, "shells": [SHELL | {"state": state, "processes": ["command sleep"]}]}))
        assert result["shells"] == 1
        assert [(one["kind"], one["name"]) for one in result["lost"]] == [("state", "a: variable x"), ("state", "a: directory /nowhere")]
        assert await _out(branch.shell(name="a"), "echo on") == "on\n"
