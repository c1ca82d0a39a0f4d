"""Terminals, input, watching and signals, in both forms of the Python SDK."""

from __future__ import annotations

import asyncio
import time

from e2b import AsyncSandbox, FilesystemEvent, FilesystemEventType, PtySize, Sandbox
from e2b.sandbox.commands.command_handle import CommandExitException


def terminals(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=31, cols=97), timeout=60)
    seen = bytearray()
    sandbox.pty.send_stdin(terminal.pid, b"stty size; tty; id -un\n")
    for _, _, shown in terminal:
        seen += shown or b""
        if b"user\r\n" in seen:
            break
    sandbox.pty.resize(terminal.pid, PtySize(rows=12, cols=34))
    sandbox.pty.send_stdin(terminal.pid, b"sleep 0.2; stty size; echo to-be-$((40+2))\n")
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    sandbox.pty.send_stdin(terminal.pid, b"exit 5\n")
    try:
        again.wait(on_pty=seen.extend)
    except CommandExitException as error:
        code = error.exit_code
    assert code == 5
    for text in (b"31 97", b"/dev/pts/", b"user\r\n", b"12 34", b"to-be-42"):
        assert text in seen, (text, bytes(seen))
    assert not sandbox.pty.kill(terminal.pid)
    killed = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    assert sandbox.pty.kill(killed.pid)


def input_of_commands(sandbox: Sandbox) -> None:
    counting = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.send_stdin(counting.pid, "12345")
    sandbox.commands.send_stdin(counting.pid, b"\xff" * 300_000)
    sandbox.commands.close_stdin(counting.pid)
    assert counting.wait().stdout == "300005\n"
    streamed = sandbox.commands.run("sha256sum", background=True, stdin=True)
    sandbox.commands.stream_input(streamed.pid, (b"x" * 100_000 for _ in range(10)))
    streamed.close_stdin()
    assert streamed.wait().stdout.split()[0] == sandbox.commands.run("head -c 1000000 /dev/zero | tr '\\0' x | sha256sum").stdout.split()[0]
    assert sandbox.commands.run("cat").stdout == "", "without stdin=True there is none"


def watching(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched/below")
    handle = sandbox.files.watch_dir("watched", recursive=True, include_entry=True)
    sandbox.files.write("watched/below/file", "x")
    sandbox.files.rename("watched/below/file", "watched/moved")
    sandbox.files.remove("watched/moved")
    events = [(event.type, event.name) for event in handle.get_new_events()]
    for wanted in (
        (FilesystemEventType.CREATE, "below/file"),
        (FilesystemEventType.WRITE, "below/file"),
        (FilesystemEventType.RENAME, "below/file"),
        (FilesystemEventType.CREATE, "moved"),
        (FilesystemEventType.REMOVE, "moved"),
    ):
        assert wanted in events, (wanted, events)
    handle.stop()


def states(sandbox: Sandbox) -> None:
    sample = sandbox.get_metrics()[0]
    assert sample.mem_used > 0
    assert sample.disk_total > sample.disk_used > 0
    counting = sandbox.commands.run("for i in 1 2 3; do sleep 0.3; echo $i; done", background=True)
    assert sandbox.pause()
    assert not sandbox.is_running()
    assert not sandbox.pause(), "it is paused already"
    sandbox.connect(timeout=300)
    assert sandbox.commands.connect(counting.pid).wait().stdout == "1\n2\n3\n", "commands go on after a pause"
    sandbox.files.write("kept", "before")
    found = sandbox.create_snapshot()
    assert found.snapshot_id in [one.snapshot_id for one in Sandbox.list_snapshots().next_items()]
    other = Sandbox.create(found.snapshot_id, timeout=60)
    assert other.files.read("kept") == "before"
    (fork,) = sandbox.fork()
    assert isinstance(fork, Sandbox)
    assert fork.files.read("kept") == "before"
    for one in (other, fork):
        assert one.kill()
    assert Sandbox.delete_snapshot(found.snapshot_id)


async def streams() -> None:
    sandbox = await AsyncSandbox.create("base", timeout=120)
    await sandbox.files.make_dir("watched")
    seen: list[FilesystemEvent] = []
    handle = await sandbox.files.watch_dir("watched", on_event=seen.append)
    await sandbox.files.write("watched/file", "x")
    until = time.monotonic() + 60
    while not any(event.type == FilesystemEventType.WRITE for event in seen):
        assert time.monotonic() < until, seen
        await asyncio.sleep(0.01)
    await handle.stop()
    shown = bytearray()
    terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=shown.extend, timeout=60)
    await sandbox.pty.send_stdin(terminal.pid, b"echo in-$((40+2)); exit\n")
    await terminal.wait()
    assert b"in-42" in shown
    sleeping = await sandbox.commands.run("sleep 100", background=True)
    assert await sleeping.kill()
    await sandbox.kill()


def main() -> None:
    sandbox = Sandbox.create("base", timeout=300)
    terminals(sandbox)
    input_of_commands(sandbox)
    watching(sandbox)
    states(sandbox)
    sandbox.kill()
    asyncio.run(streams())


main()
