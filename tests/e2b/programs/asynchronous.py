"""The asynchronous Python SDK: create, run, stream, files, kill; several commands at a time."""

from __future__ import annotations

import asyncio

from e2b import AsyncSandbox, CommandExitException, FileNotFoundException


async def main() -> None:
    sandbox = await AsyncSandbox.create("base", timeout=120)
    done = await sandbox.commands.run("echo out; echo err >&2; id -un")
    assert (done.stdout, done.stderr) == ("out\nuser\n", "err\n")
    results = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(20)))
    assert [one.stdout for one in results] == [f"{number}\n" for number in range(20)]

    pieces: list[str] = []
    handle = await sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", background=True, on_stdout=pieces.append)
    assert (await handle.wait()).stdout == "1\n2\n3\n"
    assert len(pieces) > 1

    started = await sandbox.commands.run("echo first; sleep 0.3; echo second", background=True)
    await started.disconnect()
    again = await sandbox.commands.connect(started.pid)
    assert (await again.wait()).stdout == "first\nsecond\n"

    try:
        await sandbox.commands.run("exit 7")
        raise AssertionError("no error")
    except CommandExitException as error:
        code = error.exit_code
    assert code == 7

    await sandbox.files.write("note", "text")
    assert await sandbox.files.read("note") == "text"
    await sandbox.files.write("big", b"b" * 3_000_000, gzip=True)
    stream = await sandbox.files.read("big", format="stream", gzip=True)
    assert b"".join([piece async for piece in stream]) == b"b" * 3_000_000
    try:
        await sandbox.files.read("missing")
    except FileNotFoundException:
        pass
    else:
        raise AssertionError
    assert await sandbox.kill()


asyncio.run(main())
