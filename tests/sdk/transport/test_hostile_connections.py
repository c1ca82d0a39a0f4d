"""An agent that opens channels which the client did not ask for: a typed protocol error of that session, and of no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from holdfast import HoldfastError, ProtocolError, SandboxClient
from holdfast_wire.codec import encode_item
from holdfast_wire.frames import Accepted, AnyItem, Closed, Failed, Open, Opened, Output
from holdfast_wire.limits import ACCEPTED_WINDOW_BYTES, DATA_BYTES, FIRST_ACCEPTED, UNTAKEN

from tests.sdk.support.fake_agent import FakeAgent, HeldSession
from tests.support.until import until_async

Attack = Callable[[int], list[tuple[AnyItem, int]]]


def _unasked(listener: int) -> list[tuple[AnyItem, int]]:
    return [(Accepted(FIRST_ACCEPTED, listener + 100, {}), 0)]


def _flood(listener: int) -> list[tuple[AnyItem, int]]:
    return [(Accepted(FIRST_ACCEPTED + n, listener, {}), 0) for n in range(UNTAKEN + 1)]


def _flood_of_ended_ones(listener: int) -> list[tuple[AnyItem, int]]:
    frames: list[tuple[AnyItem, int]] = []
    for n in range(UNTAKEN + 1):
        frames += [(Accepted(FIRST_ACCEPTED + n, listener, {}), 0), (Closed(FIRST_ACCEPTED + n, {}), 1)]
    return frames


def _flood_of_bytes(listener: int) -> list[tuple[AnyItem, int]]:
    assert DATA_BYTES > ACCEPTED_WINDOW_BYTES
    return [(Accepted(FIRST_ACCEPTED, listener, {}), 0), (Output(FIRST_ACCEPTED, 1, b"x" * DATA_BYTES), 1)]


def _number_again(listener: int) -> list[tuple[AnyItem, int]]:
    return [(Accepted(FIRST_ACCEPTED + 5, listener, {}), 0), (Accepted(FIRST_ACCEPTED + 1, listener, {}), 0)]


def _number_of_a_client(listener: int) -> list[tuple[AnyItem, int]]:
    return [(Accepted(listener + 1, listener, {}), 0)]


def _after_its_listener(listener: int) -> list[tuple[AnyItem, int]]:
    return [(Closed(listener, {}), 1), (Accepted(FIRST_ACCEPTED, listener, {}), 0)]


def _output_of_a_listener(listener: int) -> list[tuple[AnyItem, int]]:
    return [(Output(listener, 1, b"x"), 1)]


@pytest.mark.parametrize(
    "attack",
    [
        _unasked,
        _flood,
        _flood_of_ended_ones,
        _flood_of_bytes,
        _number_again,
        _number_of_a_client,
        _after_its_listener,
        _output_of_a_listener,
    ],
    ids=lambda attack: attack.__name__.strip("_"),
)
async def test_it_ends_that_session_and_no_other(agent: FakeAgent, face: Any, attack: Attack, caplog: pytest.LogCaptureFixture) -> None:
    agent.transfer = lambda held, opened: held.session.send(Opened(opened.channel, {"host": "127.0.0.1", "port": 8000}))
    client = face.client(agent.url, "test-key")
    one, other = client.get_sandbox("sb-1"), client.get_sandbox("sb-2")
    try:
        listener = await one.listen(8000)
        second = await other.listen(8000)
        held = next(held for held in agent.sessions.values() if held.connection is not None)
        number = next(event.channel for event in agent.opened if event.kind == "listen")

        async def send() -> None:
            assert held.connection is not None
            for item, offset in attack(number):
                await held.connection.send(encode_item(item, offset))

        agent.call(send)
        if attack is _after_its_listener:  # a caller may see its proper end before the session's
            with contextlib.suppress(HoldfastError):
                await listener.wait()
            await until_async(lambda: "which does not listen" in caplog.text, deadline_s=60, what="the end of the session")
        else:
            with pytest.raises(HoldfastError) as caught:
                await listener.wait()
            assert caught.value.code == "protocol_error"
        result = await other.exec("echo on")
        assert result.stdout == "on\n"
        assert "ended" not in repr(second)
    finally:
        await one.close()
        await other.close()
        await client.close()


@pytest.mark.parametrize("info", [{}, {"peer": 5}, {"peer": ["x"]}, {"peer": [1, "x"]}, {"peer": ["h" * 500, -1], "more": [[]]}])
def test_wrong_details_of_a_connection_are_left_out(agent: FakeAgent, info: dict[str, Any]) -> None:
    def accept(held: HeldSession, opened: Open) -> None:
        held.session.send(Opened(opened.channel, {"host": "127.0.0.1", "port": 8000}))
        number = held.session.accept(opened.channel, info)
        held.session.send(Output(number, 1, b"hello"))
        held.session.send(Failed(number, {"code": "port_unreachable", "message": "gone"}))

    agent.transfer = accept
    with SandboxClient(agent.url, "test-key") as client:
        listener = client.get_sandbox("sb-1").listen(8000)
        connection = listener.accept(60)
        assert connection is not None
        assert connection.peer is None or len(connection.peer.host) <= 64
        assert connection.read() == b"hello"
        connection.close()


@pytest.mark.parametrize("info", [{}, {"host": 5, "port": 80}, {"host": "127.0.0.1", "port": "80"}, {"host": "127.0.0.1", "port": 70000}])
def test_a_listener_without_a_port_is_an_error(agent: FakeAgent, info: dict[str, Any]) -> None:
    agent.transfer = lambda held, opened: held.session.send(Opened(opened.channel, info))
    with SandboxClient(agent.url, "test-key") as client, pytest.raises(ProtocolError, match="no port"):
        client.get_sandbox("sb-1").listen(8000)
