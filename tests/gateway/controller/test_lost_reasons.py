"""The reason and fault that are reported for a command whose sandbox ended, and for a sandbox that failed and was then deleted."""

from __future__ import annotations

import asyncio

from holdfast_wire.frames import Started

from gateway.model.records import Cause
from gateway.use_cases import agent_channel
from tests.gateway.agent_peer import AgentPeer, execute, scripted
from tests.gateway.harness import ScriptedAgent, Served
from tests.support.pace import Stopwatch
from tests.support.requires import requires

pytestmark = requires("redis")

OOM = Cause("oom", "workload", "killed for memory")


async def test_an_exec_waits_briefly_for_the_reason_of_the_end(served: Served) -> None:
    """The connection breaks at once; a controller records the loss of the node a little later."""
    later: list[asyncio.Task[object]] = []

    async def dies(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {}))
        assert agent._server is not None
        agent._server.close()  # new dials are refused

        async def record_loss() -> None:
            await asyncio.sleep(0.3)  # the delay is what is tested
            await served.store.mark_failed("sb-1", "1" * 16, Cause("node-lost", "infrastructure", "the node was killed"))

        later.append(asyncio.create_task(record_loss()))
        peer.connection.writer.transport.abort()

    agent = ScriptedAgent(scripted(dies))
    async with agent, served.client() as client:
        await served.place("sb-1", agent.endpoint)
        answer = await client.post("/sandboxes/sb-1/exec", json={"command": "true", "wait": True})
        body = answer.json()
    await asyncio.gather(*later)
    assert (answer.status_code, body["code"], body["reason"], body["fault"]) == (410, "sandbox_gone", "node-lost", "infrastructure")
    assert body["context"] == {"accepted": True, "started": True}


async def test_an_exec_does_not_wait_while_the_agent_can_be_reached(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        peer.connection.writer.transport.abort()

    with Stopwatch() as watch:
        answer = await execute(served, script)
        assert watch.elapsed_s < agent_channel.REASON_S
    assert answer.json()["code"] == "outcome_unknown"


async def test_a_failed_sandbox_keeps_its_cause_when_it_is_deleted(served: Served) -> None:
    await served.place("sb-1", "unix:///nowhere")
    await served.store.mark_failed("sb-1", "1" * 16, OOM)
    async with served.client() as client:
        for _ in range(2):
            assert (await client.delete("/sandboxes/sb-1")).status_code == 200
            answer = await client.get("/sandboxes/sb-1")
            assert (answer.status_code, answer.json()["reason"], answer.json()["fault"]) == (410, "oom", "workload")
