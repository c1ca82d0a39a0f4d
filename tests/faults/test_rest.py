"""Commands over REST while answers are lost: the service recognises a repeated command by its key, so it runs once.

Also the choice of REST: the client falls back to it only if nothing else works, not because of an outage.
"""

from __future__ import annotations

import asyncio

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient, ServiceUnavailableError

from tests.support.stack import Stack

from .proxy import FaultProxy, Weather

COMMANDS = 200
AT_ONCE = 8


async def test_commands_over_rest_run_once_although_answers_are_lost(stack: Stack, sandbox: AsyncSandbox, proxy: FaultProxy) -> None:
    async with AsyncSandboxClient(proxy.url, stack.key, transport="rest") as client:
        near = client.get_sandbox(sandbox.id)

        async def some(first: int) -> None:
            for number in range(first, COMMANDS, AT_ONCE):
                result = await near.exec(f"echo {number} >> /tmp/once; echo {number}; exit {number % 7}")
                assert result.exit_code == number % 7
                assert result.stdout == f"{number}\n", "a lost answer is repeated completely"

        proxy.weather = Weather(lose=0.3)
        await asyncio.gather(*[some(first) for first in range(AT_ONCE)])
        proxy.weather = Weather()
    assert proxy.faults.cuts > COMMANDS // 5, "too few faults were injected"
    lines = (await sandbox.exec("cat /tmp/once")).stdout.split()
    assert sorted(map(int, lines)) == list(range(COMMANDS)), "each command runs once"


async def test_an_outage_is_no_reason_to_give_up_sessions(stack: Stack, sandbox: AsyncSandbox, proxy: FaultProxy) -> None:
    """A balancer without a living service behind it accepts and hangs up, as a proxy that swallows WebSockets would."""
    async with AsyncSandboxClient(proxy.url, stack.key, connect_timeout_s=3.0) as client:
        near = client.get_sandbox(sandbox.id)
        proxy.refuse(True)
        with pytest.raises(ServiceUnavailableError) as away:
            await near.exec("true")
        assert away.value.retryable
        proxy.refuse(False)
        shell = await near.shell()
        assert (await shell.run("echo back")).stdout == "back\n"
