"""Parameters that follow their Open: collected before anything happens, bounded, and discarded when the client disconnects."""

from __future__ import annotations

import os
from typing import Any, cast

import msgpack
import pytest
from holdfast_wire.codec import encode_item
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import AnyItem, Close, Failed, Hello, Open, Signal, Write
from holdfast_wire.limits import PARAMS_BYTES, PARAMS_CONTAINERS, PARAMS_ITEMS, PARAMS_SANDBOX_BYTES
from holdfast_wire.session.halves import ByteCounter

from session_agent.agent.context import AgentContext
from session_agent.agent.session.channels import Channel, Handler
from session_agent.agent.session.large_params import Gathering
from session_agent.agent.session.sessions import Sessions
from session_agent.agent.settings import AgentSettings
from tests.support.channel import SilentConnection


class Recorder:
    """A channel and a handler that record the calls to them."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.number, self.params = 1, params
        self.consumed = 0
        self.sent: list[Any] = []
        self.opened: list[dict[str, Any]] = []
        self.calls: list[tuple[Any, ...]] = []

    def consume(self, size_bytes: int) -> None:
        self.consumed += size_bytes

    def send(self, fact: Any) -> None:
        self.sent.append(fact)

    def open(self, params: dict[str, Any]) -> Handler:
        self.opened.append(params)
        return cast("Handler", self)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


def gathering(size: object, total: ByteCounter | None = None) -> tuple[Recorder, Gathering]:
    recorder = Recorder({"packed": size})
    return recorder, Gathering(recorder, recorder.open, ByteCounter() if total is None else total)


PARAMS = {"id": "c", "argv": ["x" * 100_000] * 10}


@pytest.mark.parametrize("piece", [1000, 131_072, 10_000_000])
def test_nothing_is_opened_before_all_parameters_have_arrived(piece: int) -> None:
    packed = msgpack.packb(PARAMS)
    recorder, channel = gathering(len(packed))
    channel.signal("INT")
    for start in range(0, len(packed) - 1, piece):
        channel.write(packed[start : min(start + piece, len(packed) - 1)], False)
    assert (recorder.opened, recorder.calls) == ([], [])
    assert recorder.consumed == len(packed) - 1
    channel.resize(3, 4)
    channel.write(packed[-1:] + b"input", True)
    assert recorder.opened == [PARAMS]
    assert recorder.calls == [("signal", "INT"), ("resize", 3, 4), ("write", b"input", True)]


async def test_after_the_parameters_all_events_go_to_the_handler() -> None:
    packed = msgpack.packb(PARAMS)
    recorder = Recorder({})

    def factory(context: AgentContext, channel: Channel) -> Handler:
        return recorder.open(channel.params)

    sessions = Sessions(AgentContext(AgentSettings("s", "t")), {"command": factory}, "epoch", {})
    held = sessions.attach(Hello(1, "a session of a test", b"k" * 16, "", 0, 1, {}, 1), SilentConnection(), 0.0)
    start = packed[:-1]
    pieces = [Write(1, start[at : at + 131_072]) for at in range(0, len(start), 131_072)]
    end: list[AnyItem] = [Signal(1, "INT"), Write(1, packed[-1:]), Write(1, b"more"), Close(1, True)]
    offset = 0
    for item in (Open(1, "command", {"packed": len(packed)}), *pieces, *end):
        held.session.receive(encode_item(item, offset), 0.0)
        held.dispatch(0.0)
        offset += len(item.data) if isinstance(item, Write) else 1
    assert recorder.opened == [PARAMS]
    assert recorder.calls == [("signal", "INT"), ("write", b"more", False), ("close", True)]


def test_a_client_that_disconnects_leaves_nothing() -> None:
    total = ByteCounter()
    for _ in range(3 * PARAMS_SANDBOX_BYTES // PARAMS_BYTES):  # the announced bytes of each are released
        recorder, channel = gathering(PARAMS_BYTES, total)
        channel.write(os.urandom(1000), False)
        channel.drop()
        channel.write(b"late", False)
        assert (recorder.opened, recorder.calls, recorder.consumed) == ([], [], 1004)
    recorder, channel = gathering(100)
    channel.close(False)
    assert [type(fact) for fact in recorder.sent] == [Failed]
    assert recorder.sent[0].error["code"] == "cancelled"


def test_the_announced_bytes_are_bounded() -> None:
    total = ByteCounter()
    held = [gathering(PARAMS_BYTES, total)[1] for _ in range(PARAMS_SANDBOX_BYTES // PARAMS_BYTES)]
    with pytest.raises(HoldfastError) as full:
        gathering(1, total)
    assert full.value.code == "queue_full"
    held.pop().drop()
    _, channel = gathering(1, total)
    for one in (channel, *held):
        one.drop()


@pytest.mark.parametrize("size", [0, -1, "5", None, 1.5, True])
def test_invalid_sizes_are_refused(size: object) -> None:
    with pytest.raises(HoldfastError) as refused:
        gathering(size)
    assert refused.value.code == "invalid_argument"


def test_too_large_a_size_is_refused() -> None:
    with pytest.raises(HoldfastError) as refused:
        gathering(PARAMS_BYTES + 1)
    assert refused.value.code == "arguments_too_long"


@pytest.mark.parametrize(
    "packed",
    [
        b"\xc1", b"\x90", msgpack.packb([1]), msgpack.packb({"a": 1}) + b"x", msgpack.packb({1: 2}), msgpack.packb({"a": "b"})[:-1],
        msgpack.packb({"a": [[]] * PARAMS_CONTAINERS}), msgpack.packb({"a": [0] * (PARAMS_ITEMS + 1)}),
        b"\x81\xa1a" + b"\x91" * 20 + b"\x90", b"\x81\xa1a\xc7\x01\x05x", b"\x81\xa1a\xa1\xff",
    ],
)  # fmt: skip
def test_parameters_that_are_no_map_within_the_limits_are_refused(packed: bytes) -> None:
    recorder, channel = gathering(len(packed))
    with pytest.raises(HoldfastError) as refused:
        channel.write(packed, False)
    assert (refused.value.code, recorder.opened) == ("invalid_argument", [])


def test_input_that_ends_early_is_refused() -> None:
    _, channel = gathering(10)
    with pytest.raises(HoldfastError, match="ended before"):
        channel.write(b"123", True)
    channel.drop()
