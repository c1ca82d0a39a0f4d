"""A sandbox with an idle limit stays while it is used over REST. Its agent reports the use by sessions (``tests/e2e/test_idle``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from holdfast_wire.frames import Exited, Started

from gateway.model.records import Record, SandboxSpec
from tests.gateway.agent_peer import RESULT, AgentPeer, scripted
from tests.gateway.harness import DEADLINE_S, ScriptedAgent, Served
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


def _spec(idle_s: float | None) -> SandboxSpec:
    return SandboxSpec(sandbox_id="sb-1", owner="ada", incarnation="1" * 16, image="host", idle_timeout_s=idle_s, lifetime_s=1000.0)


async def _place(served: Served, endpoint: str, idle_s: float | None) -> float:
    """Create a ready sandbox; return when it would expire."""
    spec = _spec(idle_s)
    await served.store.create(spec, fingerprint="f")
    record = await served.store.mark_ready("sb-1", spec.incarnation, endpoint)
    assert isinstance(record, Record)
    assert record.expires_at is not None
    return record.expires_at


def _touch_pending(served: Served) -> bool:
    return any("sb-1" in task.get_name() for task in served.gateway.background._tasks)


async def _extended(served: Served, than: float) -> float:
    seen = [than]

    async def moved() -> bool:
        record = await served.store.get("sb-1")
        assert isinstance(record, Record)
        assert record.expires_at is not None
        seen.append(record.expires_at)
        return record.expires_at > than

    await until_async(moved, deadline_s=DEADLINE_S, what="the expiry to move")
    return seen[-1]


async def test_an_exec_counts_as_use_while_it_runs_and_when_it_ends(served: Served) -> None:
    proceed = asyncio.Event()

    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {}))
        await proceed.wait()
        await peer.send(Exited(1, "x", RESULT))

    async with ScriptedAgent(scripted(script)) as agent, served.client() as client, asyncio.timeout(DEADLINE_S):
        expires = await _place(served, agent.endpoint, 0.6)
        answer = asyncio.create_task(client.post("/sandboxes/sb-1/exec", json={"command": "true", "wait": True}))
        for _ in range(3):
            expires = await _extended(served, expires)
        proceed.set()
        assert (await answer).status_code == 200
        await _extended(served, expires)


@pytest.mark.parametrize("route", ["exec", "files", "apply_patch"])
async def test_a_slow_request_body_counts_as_use_while_it_arrives(served: Served, route: str) -> None:
    proceed = asyncio.Event()

    async def slow_body() -> AsyncIterator[bytes]:
        yield b'{"path": "/x",'
        await proceed.wait()
        yield b' "command": 7, "patch": 7}'

    async with served.client() as client, asyncio.timeout(DEADLINE_S):
        expires = await _place(served, "unix:///nowhere", 0.6)
        answer = asyncio.create_task(client.post(f"/sandboxes/sb-1/{route}", content=slow_body()))
        for _ in range(3):
            expires = await _extended(served, expires)
        proceed.set()
        assert (await answer).status_code == 422
        await _extended(served, expires)


@pytest.mark.parametrize("idle_s", [None, 60.0])
async def test_use_is_recorded_only_with_an_idle_limit(served: Served, monkeypatch: pytest.MonkeyPatch, idle_s: float | None) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {}), Exited(1, "x", RESULT))

    recorded: list[float] = []

    async def touch(ids: object, ago_s: float = 0.0) -> None:
        recorded.append(ago_s)

    monkeypatch.setattr(served.store, "touch", touch)
    async with ScriptedAgent(scripted(script)) as agent, served.client() as client, asyncio.timeout(DEADLINE_S):
        await served.store.create(_spec(idle_s), fingerprint="f")
        await served.store.mark_ready("sb-1", _spec(idle_s).incarnation, agent.endpoint)
        assert (await client.post("/sandboxes/sb-1/exec", json={"command": "true", "wait": True})).status_code == 200
        await until_async(lambda: not _touch_pending(served), deadline_s=DEADLINE_S, what="every use to be recorded")
        assert bool(recorded) == (idle_s is not None)
        recorded.clear()
        async with served.attach("sb-1"):
            served.gateway.attached.sweep()
        await until_async(lambda: not len(served.gateway.attached), deadline_s=DEADLINE_S, what="the session to end")
    assert not recorded, "an attached client alone does not count as use"
