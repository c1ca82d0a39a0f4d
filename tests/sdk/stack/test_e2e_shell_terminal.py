"""``sandbox.shell(tty=True)`` on the real stack and both APIs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from holdfast import ConflictError, InvalidArgumentError, ShellLostError, UnsupportedError

from tests.sdk.support.faces import cut_connection
from tests.sdk.support.requirements import STACK

pytestmark = STACK


async def write_keys(shell: Any, keys: str) -> None:
    await shell.write(keys)


async def test_run_write_and_resize(live: Any) -> None:
    shell = await live.shell(tty=True, rows=31, cols=97)
    assert shell.tty
    seen = await shell.run("python3 -c 'import os,sys; print(os.isatty(0), os.isatty(1), os.isatty(2))'; stty size; echo err >&2; (exit 7)")
    assert (seen.exit_code, seen.stdout, seen.stderr) == (7, "True True True\r\n31 97\r\nerr\r\n", "")
    await shell.run("cd /usr; X=kept")
    running = shell.stream("printf 'name? '; read name; echo hello $name from $X in $(pwd); stty size")
    shown = b""
    async for chunk in running:
        shown += chunk.data
        if shown == b"name? ":
            await shell.resize(cols=40, rows=12)
            await shell.write("world\n")
    assert shown == b"name? world\r\nhello world from kept in /usr\r\n12 40\r\n"
    assert running.result.exit_code == 0
    await shell.resize(20, 50)
    assert (await shell.run("stty size")).stdout == "20 50\r\n"
    assert (await shell.run("sleep 60", timeout=0.3)).timed_out
    assert (await shell.run("echo $X")).stdout == "kept\r\n"
    await shell.close()
    for call in (lambda: write_keys(shell, "x"), lambda: shell.resize(24, 80), lambda: shell.run("true")):
        with pytest.raises(ShellLostError):
            await call()


async def test_ctrl_c_and_a_lost_connection(live: Any) -> None:
    shell = await live.shell("one", tty=True)
    running = shell.stream("sh -c 'echo ready; exec sleep 600'; echo never")
    shown = b""
    async for chunk in running:
        shown += chunk.data
        if shown == b"ready\r\n":
            cut_connection(live)
            await shell.write("\x03")
    assert running.result.exit_code == 130
    assert "never" not in running.result.stdout
    task = asyncio.create_task(shell.run("read word; echo got $word"))
    await shell.write("typed ahead\n")
    assert "got typed ahead" in (await task).stdout
    again = await live.shell("one")
    assert again.tty
    assert (await again.run("test -t 0")).ok


async def test_invalid_calls_on_shells_and_terminals_are_refused(live: Any) -> None:
    plain = await live.shell("plain")
    assert not plain.tty
    with pytest.raises(UnsupportedError, match="no terminal"):
        await plain.write("x")
    with pytest.raises(UnsupportedError, match="no terminal"):
        await plain.resize(24, 80)
    with pytest.raises(ConflictError, match="no terminal"):
        await live.shell("plain", tty=True)
    shell = await live.shell(tty=True)
    with pytest.raises(InvalidArgumentError, match="keys"):
        await shell.run("cat", input="x")
    with pytest.raises(InvalidArgumentError, match="rows and cols"):
        await shell.resize(0, 24)
    with pytest.raises(InvalidArgumentError, match="rows and cols"):
        await live.shell(tty=True, rows=5000)
