"""The error of a command whose session is lost: ``started`` is False only if the agent cannot have received the command."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from holdfast import OutcomeUnknownError

from tests.sdk.support.fake_agent import FakeAgent
from tests.support.until import until


async def test_a_restarted_agent_may_have_run_what_a_resume_delivered(sandbox: Any, agent: FakeAgent) -> None:
    shell = await sandbox.shell()
    agent.refuse_with("placement_unavailable", 1000)
    attempts = len(agent.requests)
    agent.cut()
    await asyncio.to_thread(until, lambda: len(agent.requests) > attempts, deadline_s=60, what="the outage to be noticed")
    running = asyncio.create_task(shell.run("quiet", command_id="delivered"))
    sink = getattr(shell, "inner", shell)._sink
    await asyncio.to_thread(until, lambda: sink.current, deadline_s=60, what="the command to be requested")
    agent.refuse.clear()
    (held,) = agent.sessions.values()
    await asyncio.to_thread(until, lambda: held.commands, deadline_s=60, what="the agent to receive the command")
    agent.restart()
    with pytest.raises(OutcomeUnknownError) as unknown:
        await running
    assert unknown.value.started is None
