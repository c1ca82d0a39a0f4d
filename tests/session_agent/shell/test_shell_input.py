"""The standard input of commands in a shell: opened again by name, read late, partly or not at all, and never seen by another command."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.process_channel import LiveShell, Outcome, client

PATH = "/usr/local/bin:/usr/bin:/bin"
TEXT = b"echo given\n"
AGAIN = {
    "cat /dev/stdin": TEXT,
    "sleep 0.3; cat /dev/stdin": TEXT,
    "cat; read -r x < /dev/stdin; echo [$x]": TEXT + b"[]\n",
    "cat /dev/stdin /dev/stdin": TEXT,
    ". /dev/stdin": b"given\n",
    "sleep 0.3; . /dev/stdin": b"given\n",
    "sleep 0.3; sh /proc/self/fd/0": b"given\n",
    "sleep 0.3; cat - /dev/fd/0": TEXT,
    "sh -c 'cat < /dev/stdin'": TEXT,
    "exec 3< /dev/stdin; cat <&3": TEXT,
    "true": b"",
    "head -c 4 >/dev/null; echo on": b"on\n",
    "exec </dev/null; echo on": b"on\n",
}


async def _with_input(shell: LiveShell, script: str, data: bytes, **params: Any) -> Outcome:
    run = shell.begin(script, stdin="pipe", **params)
    shell.handler.write(data, True)
    return await shell.wait(run)


@pytest.mark.parametrize("kind", ["bash", "sh"])
@pytest.mark.parametrize("user", [None, 1234])
async def test_the_standard_input_can_be_opened_again(kind: str, user: int | None) -> None:
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind, user=user, cwd="/")
        for script, expected in AGAIN.items():
            outcome = await _with_input(shell, script, TEXT, timeout_s=30)
            assert (outcome.stdout, outcome.exit_code) == (expected, 0), (script, outcome.stderr)
            assert (await shell.run("cat")).stdout == b"", "a command without input reads nothing of what was left"
        assert (await _with_input(shell, "cat", b"next")).stdout == b"next", "nor does one with another input"


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_a_large_input_and_one_that_is_not_read(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        run = shell.begin("wc -c < /dev/stdin", stdin="pipe")
        for at in range(8):
            shell.handler.write(b"x" * 100_000, at == 7)
        assert (await shell.wait(run)).stdout == b"800000\n"
        run = shell.begin("echo unread", stdin="pipe")
        for _ in range(8):
            shell.handler.write(b"y" * 100_000, False)
        assert (await shell.wait(run)).stdout == b"unread\n"
        assert (await _with_input(shell, "cat", b"mine")).stdout == b"mine"
        assert (await _with_input(shell, "cat; sleep 60", b"timed out", timeout_s=0.5)).stdout == b"timed out"
        assert (await _with_input(shell, "cat", b"mine")).stdout == b"mine"


@pytest.mark.parametrize("kind", ["bash", "sh"])
@pytest.mark.parametrize("keeping", ["{ sleep 60; cat > /tmp/holdfast-stolen; } <&0 >/dev/null 2>&1 &", "exec 3<&0"])
async def test_a_process_that_keeps_an_input_gets_no_other(kind: str, keeping: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await _with_input(shell, keeping, b"first\n")
        for _ in range(3):
            assert (await _with_input(shell, "cat", b"second\n")).stdout == b"second\n"
        assert b"second" not in (await shell.run("cat <&3 2>/dev/null; true")).stdout


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_an_input_for_a_shell_that_is_lost(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        for script in ("cat; exit 3", "exec cat", "kill -9 $$"):
            await _with_input(shell, script, TEXT)
            assert (await _with_input(shell, "cat /dev/stdin", TEXT, timeout_s=30)).stdout == TEXT
