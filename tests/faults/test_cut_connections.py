"""A cut connection must not change the end of input, nor the results of commands that end during the cut."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient

from .load import watch_resumes
from .proxy import FaultProxy, Weather

CUTS = 50
INPUT = random.Random(5).randbytes(300_000)
COMMANDS = 10_000
SESSIONS = 16


async def test_the_end_of_input_is_not_a_disconnect(sandbox: AsyncSandbox, cut_client: AsyncSandboxClient, proxy: FaultProxy) -> None:
    """`cat | sha256sum`, cut at 50 offsets of what the client sends: the greeting, the input, its end."""
    expected = hashlib.sha256(INPUT).hexdigest()
    near = cut_client.get_sandbox(sandbox.id)
    await near.exec("cat | sha256sum", input=INPUT)
    everything = proxy.faults.bytes
    await near.close()
    assert everything > len(INPUT)
    for number in range(CUTS):
        proxy.cut_next(everything * (number + 1) // (CUTS + 1))
        near = cut_client.get_sandbox(sandbox.id)
        result = await near.exec("cat | sha256sum", input=INPUT)
        assert (result.exit_code, result.stdout.split()[0]) == (0, expected), f"cut {number}"
        await near.close()
    assert proxy.faults.cuts == CUTS


async def test_closed_input_ends_at_once_while_the_session_lives(
    sandbox: AsyncSandbox, cut_client: AsyncSandboxClient, proxy: FaultProxy
) -> None:
    """A process whose client is cut off keeps its standard input open: only `close_stdin` ends it."""
    near = cut_client.get_sandbox(sandbox.id)
    process = await near.start("cat | sha256sum", command_id="eof-1")
    for _ in range(5):
        await process.write(b"abc")
        proxy.cut_all()
    records = await sandbox.exec("pgrep -c sha256sum")
    assert records.stdout.strip() == "1", "it still waits for input"
    await process.close_stdin()
    assert (await process.wait()).stdout.split()[0] == hashlib.sha256(b"abc" * 5).hexdigest()
    await near.close()


@pytest.mark.timeout(600)
async def test_exit_records_survive_a_cut_in_the_exit_window(
    sandbox: AsyncSandbox, cut_client: AsyncSandboxClient, proxy: FaultProxy
) -> None:
    """10 000 commands while answers are lost with their connections: 10 000 right exit codes, each command run once."""
    resumes: list[float] = []

    async def session(number: int) -> int:
        near = cut_client.get_sandbox(sandbox.id)
        shell = await near.shell()
        assert near._driver is not None
        watch_resumes(near._driver.engine, resumes)
        await shell.run("count=0; leave() { count=$((count + 1)); return $1; }")
        right = 0
        for command in range(number, COMMANDS, SESSIONS):
            right += (await shell.run(f"leave {command % 200}")).exit_code == command % 200
        share = len(range(number, COMMANDS, SESSIONS))
        counted = await shell.run("echo $count")
        assert counted.stdout == f"{share}\n", "a command ran twice or not at all"
        await near.close()
        return right

    proxy.weather = Weather(lose=0.06)
    async with asyncio.timeout(540):
        right = await asyncio.gather(*[session(number) for number in range(SESSIONS)])
    assert sum(right) == COMMANDS
    assert proxy.faults.cuts > COMMANDS // 40, "too few faults were injected"
    assert len(resumes) > COMMANDS // 80
