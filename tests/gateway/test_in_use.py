"""A sandbox with an idle limit lives while it is used, over REST as over a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from holdfast_wire.frames import Exited, Started

from gateway.placement.records import Record, SandboxSpec
from tests.gateway.harness import DEADLINE_S, ScriptedAgent, Served, echo
from tests.gateway.test_agent_call import RESULT, Talk, scripted
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


async def _place(served: Served, endpoint: str, idle_s: float | None) -> float:
    """A ready sandbox; when it would expire."""
    spec = SandboxSpec(sandbox_id="sb-1", owner="ada", incarnation="1" * 16, image="host", idle_timeout_s=idle_s, lifetime_s=1000.0)
    await served.store.create(spec, fingerprint="f")
    record = await served.store.mark_ready("sb-1", spec.incarnation, endpoint, "e1")
    assert isinstance(record, Record)
    assert record.expires_at is not None
    return record.expires_at


async def _later(served: Served, than: float) -> float:
    seen = [than]

    async def moved() -> bool:
        record = await served.store.get("sb-1")
        assert isinstance(record, Record)
        assert record.expires_at is not None
        seen.append(record.expires_at)
        return record.expires_at > than

    await until_async(moved, deadline_s=DEADLINE_S, what="the end to be put off")
    return seen[-1]


async def test_an_exec_keeps_it_while_it_runs_and_when_it_ends(served: Served) -> None:
    goes_on = asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.say(Started(1, "x", {}))
        await goes_on.wait()
        await talk.say(Exited(1, "x", RESULT))

    async with ScriptedAgent(scripted(script)) as agent, served.client() as client, asyncio.timeout(DEADLINE_S):
        expires = await _place(served, agent.endpoint, 0.6)
        answer = asyncio.create_task(client.post("/sandboxes/sb-1/exec", json={"command": "true", "wait": True}))
        for _ in range(3):
            expires = await _later(served, expires)
        goes_on.set()
        assert (await answer).status_code == 200
        await _later(served, expires)


@pytest.mark.parametrize("route", ["exec", "files", "apply_patch"])
async def test_what_comes_slowly_keeps_it_while_it_comes(served: Served, route: str) -> None:
    goes_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"path": "/x",'
        await goes_on.wait()
        yield b' "command": 7, "patch": 7}'

    async with served.client() as client, asyncio.timeout(DEADLINE_S):
        expires = await _place(served, "unix:///nowhere", 0.6)
        answer = asyncio.create_task(client.post(f"/sandboxes/sb-1/{route}", content=slowly()))
        for _ in range(3):
            expires = await _later(served, expires)
        goes_on.set()
        assert (await answer).status_code == 422
        await _later(served, expires)


async def test_an_attach_keeps_it_at_once(served: Served) -> None:
    async with ScriptedAgent(echo) as agent, asyncio.timeout(DEADLINE_S):
        expires = await _place(served, agent.endpoint, 0.6)
        async with served.attach("sb-1"):
            assert await _later(served, expires) > expires + 10  # the sweep that comes first has that long


async def test_without_an_idle_limit_nothing_is_noted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(Started(1, "x", {}), Exited(1, "x", RESULT))

    async def touch(*_: object, **__: object) -> None:
        raise AssertionError("noted")

    monkeypatch.setattr(served.store, "touch", touch)
    async with ScriptedAgent(scripted(script)) as agent, served.client() as client:
        await _place(served, agent.endpoint, None)
        assert (await client.post("/sandboxes/sb-1/exec", json={"command": "true", "wait": True})).status_code == 200
