"""Attach: every refusal before the upgrade, tickets, and the drain of a gateway that stops."""

from __future__ import annotations

import base64
from pathlib import Path

import orjson
import pytest
from holdfast_wire.codec import decode
from holdfast_wire.frames import GoAway
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.model.records import Cause, SandboxSpec
from gateway.sessions import tickets
from gateway.settings import RelaySettings
from tests.gateway.harness import BOB, SECRET, ScriptedAgent, Served, echo, serve
from tests.gateway.refusals import OOM, refusal
from tests.support.pace import Stopwatch
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


# Refusals are HTTP answers -----------------------------------------------------------------------------------------


async def test_a_missing_or_wrong_key_is_refused(served: Served) -> None:
    assert (await refusal(served, key=None))[:2] == (401, "key_missing")
    assert (await refusal(served, key="hf_" + "0" * 32))[:2] == (403, "key_invalid")
    assert (await refusal(served, key="k" * 2000))[:2] == (403, "key_invalid")


async def test_an_unknown_sandbox_and_another_owners_look_the_same(served: Served) -> None:
    await served.place("sb-1", "unix:///nowhere")
    unknown = await refusal(served, "sb-0", key=BOB)
    anothers = await refusal(served, "sb-1", key=BOB)
    assert unknown[:2] == anothers[:2] == (404, "sandbox_not_found")
    assert unknown[2] == {**anothers[2], "detail": "there is no sandbox 'sb-0'"}


async def test_pending_failed_and_ended_sandboxes_are_refused_with_their_state(served: Served) -> None:
    spec = SandboxSpec(sandbox_id="sb-1", owner="ada", incarnation="1" * 16, image="host")
    await served.store.create(spec, fingerprint="f")
    assert (await refusal(served))[:2] == (409, "sandbox_not_ready")
    await served.store.mark_failed("sb-1", "1" * 16, OOM)
    assert (await refusal(served))[:2] == (409, "sandbox_failed")
    await served.place("sb-2", "unix:///nowhere")
    await served.store.mark_failed("sb-2", "1" * 16, OOM)
    status, code, body = await refusal(served, "sb-2")
    assert (status, code, body["reason"], body["fault"]) == (410, "sandbox_gone", "oom", "workload")
    await served.store.delete("sb-2", Cause("ttl", "caller"), owner="ada")
    status, code, body = await refusal(served, "sb-2")
    assert (status, code, body["reason"]) == (410, "sandbox_gone", "oom"), "the cause of the failure is kept after the delete"


async def test_a_missing_agent_is_unreachable(served: Served) -> None:
    await served.place("sb-1", "unix:///nowhere")
    assert (await refusal(served))[:2] == (503, "agent_unreachable")


async def test_an_agent_of_another_sandbox_at_the_address_is_refused(served: Served) -> None:
    """The process that answers must prove that it is the agent of this incarnation; the dial does not reveal the token."""
    for other in ({"incarnation": "2" * 16}, {"sandbox_id": "sb-9"}, {"secret": "x" * 64}):
        async with ScriptedAgent(echo, **other) as agent:  # type: ignore[arg-type]
            await served.place(f"sb-{len(agent.folder)}{next(iter(other))}".lower(), agent.endpoint)
            await served.store.delete("sb-1", Cause("deleted", "caller"), owner="ada", forget=True)
            await served.place("sb-1", agent.endpoint)
            assert (await refusal(served))[:2] == (502, "agent_identity")


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (b"", (503, "agent_unreachable")),
        (b"garbage\r\n\r\n", (503, "agent_unreachable")),
        (b"HTTP/1.1 200 OK\r\n\r\n", (503, "agent_unreachable")),
        (b"HTTP/1.1 101 Switching Protocols\r\nX-Holdfast-Proof: " + b"0" * 64 + b"\r\n\r\n", (502, "agent_identity")),
        (b"HTTP/1.1 101 x\r\nno colon\r\n\r\n", (503, "agent_unreachable")),
        (b"A" * 40_000, (503, "agent_unreachable")),
    ],
    ids=["empty", "no HTTP", "no upgrade", "wrong proof", "malformed header", "endless head"],
)
async def test_a_hostile_upgrade_is_refused(served: Served, answer: bytes, refused: tuple[int, str]) -> None:
    async with ScriptedAgent(echo, answer=answer) as agent:
        await served.place("sb-1", agent.endpoint)
        assert (await refusal(served))[:2] == refused


@pytest.mark.parametrize("proof", ["", "0" * 64, "é"])
async def test_an_agent_with_a_wrong_proof_is_refused(served: Served, proof: str) -> None:
    async with ScriptedAgent(echo, proof=proof) as agent:
        await served.place("sb-1", agent.endpoint)
        assert (await refusal(served))[:2] == (502, "agent_identity")


async def test_requests_from_an_unknown_origin_are_refused(served: Served) -> None:
    async with ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        for origin in ("https://evil.example", "null", "", f"{served.url}.evil.example"):
            assert (await refusal(served, Origin=origin))[:2] == (403, "origin_refused")
        async with served.attach("sb-1", Origin=served.url) as client:
            await client.send(b"same origin")
            assert await client.recv() == b"same origin"


async def test_sessions_of_one_key_are_capped(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path, RelaySettings(sessions_per_owner=1)) as served, ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1"):
            assert (await refusal(served))[:2] == (429, "session_limit")

        async def again() -> bool:
            try:
                async with served.attach("sb-1"):
                    return True
            except InvalidStatus:
                return False

        await until_async(again, deadline_s=60, what="room for another session")


# Tickets -----------------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_a_ticket_resumes_while_redis_is_away(served: Served, redis_server: RedisServer) -> None:
    async with ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            assert client.response is not None
            ticket = client.response.headers[tickets.HEADER]
            redis_server.kill()
            try:
                with Stopwatch() as watch:
                    assert (await refusal(served))[:2] == (503, "placement_unavailable")
                    assert watch.elapsed_s < 1.0
                await client.send(b"the live one does not notice")
                assert await client.recv() == b"the live one does not notice"
                async with served.attach("sb-1", X_Holdfast_Ticket=ticket) as second:
                    await second.send(b"x")
                    assert await second.recv() == b"x"
                assert (await refusal(served, key=BOB, X_Holdfast_Ticket=ticket))[0] == 503
                assert (await refusal(served, "sb-2", X_Holdfast_Ticket=ticket))[0] == 503
                assert (await refusal(served, X_Holdfast_Ticket=ticket[:-1] + ("1" if ticket[-1] == "0" else "0")))[0] == 503
            finally:
                redis_server.start()


async def test_a_ticket_of_an_ended_sandbox_gives_the_cause(served: Served) -> None:
    async with ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            assert client.response is not None
            ticket = client.response.headers[tickets.HEADER]
    await served.store.delete("sb-1", OOM, owner="ada")
    status, code, body = await refusal(served, X_Holdfast_Ticket=ticket)
    assert (status, code, body["reason"]) == (410, "sandbox_gone", "oom")


@pytest.mark.parametrize("text", ["", ".", "a.b", "é.x", "x" * 5000, "bm90anNvbg.0000"])
def test_a_malformed_ticket_is_refused(text: str) -> None:
    assert tickets.read((SECRET,), text, 0.0) is None


@pytest.mark.parametrize("fields", [[], [True, "more"]], ids=["fewer", "more"])
def test_a_ticket_of_another_version_is_refused(fields: list[object]) -> None:
    known = ["sb-1", "ada", "1" * 16, "unix:///x", 1000] if fields else ["sb-1", "ada"]
    body = base64.urlsafe_b64encode(orjson.dumps([*known, *fields])).decode().rstrip("=")
    assert tickets.read((SECRET,), f"{body}.{tickets._mac(SECRET, body)}", 0.0) is None


def test_a_ticket_expires_and_cannot_be_changed() -> None:
    ticket = tickets.Ticket("sb-1", "ada", "1" * 16, "unix:///x", 1000)
    text = tickets.sign(SECRET, ticket)
    assert tickets.read((SECRET,), text, 999.0) == ticket
    assert tickets.read((SECRET,), text, 1000.0) is None
    assert tickets.read(("y" * 64,), text, 999.0) is None
    for position in range(len(text)):
        changed = text[:position] + ("A" if text[position] != "A" else "B") + text[position + 1 :]
        assert tickets.read((SECRET,), changed, 999.0) is None


# The drain ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drain_s", [60.0, 0.1])
async def test_a_stopping_gateway_sends_go_away_and_then_closes(redis_url: str, tmp_path: Path, drain_s: float) -> None:
    async with serve(redis_url, tmp_path, RelaySettings(drain_s=drain_s)) as served, ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            await client.send(b"before")
            assert await client.recv() == b"before"
            served.server.should_exit = True
            message = await client.recv()
            assert isinstance(message, bytes)
            frame, _ = decode(message)
            assert isinstance(frame, GoAway)
            if drain_s > 1:
                await client.send(b"still served")
                assert await client.recv() == b"still served"
                return
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert client.close_code == 1012
