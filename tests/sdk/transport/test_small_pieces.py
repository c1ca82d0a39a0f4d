"""Output in pieces of a few bytes takes about its own size of memory, not ten times as much, whether it is unread or collected."""

from __future__ import annotations

from typing import Any

from holdfast._transport.session.command_call import Call
from holdfast._transport.session.sinks import CommandSink, TransferSink
from holdfast_wire.frames import Exited, Output
from holdfast_wire.session.client_session import ClientSession


class LinkEvent:
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout_s: float | None = None) -> None: ...


def new_call(*, collecting: bool) -> Call:
    session = ClientSession("s" * 32, b"k" * 32)
    session.consume = lambda number, size_bytes: None  # type: ignore[method-assign]
    sink = CommandSink(session, LinkEvent)
    sink.call = Call(sink, "c", 1 << 20, new_event=LinkEvent, collecting=collecting)
    return sink.call


def send_pieces(call: Call) -> dict[int, bytes]:
    """Send pieces of two bytes of both streams to ``call``; returns the whole of each stream."""
    whole: dict[int, bytes] = {1: b"", 2: b""}
    for number in range(20_000):
        stream = 1 + number // 100 % 2
        data = b"%02d" % (number % 100)
        whole[stream] += data
        call.on_output(Output(1, stream, data))
    return whole


def send_exit(call: Call, whole: dict[int, bytes]) -> None:
    result: dict[str, Any] = {"exit_code": 0, "duration_s": 0.0, "streams": {n: [len(data), 0, ""] for n, data in whole.items()}}
    call.on_exited(Exited(1, "c", result))


def test_unread_pieces_are_joined() -> None:
    call = new_call(collecting=False)
    whole = send_pieces(call)
    assert len(call.chunks) <= 200
    taken: dict[int, bytes] = {1: b"", 2: b""}
    while (chunk := call.take()) is not None:
        taken[chunk.stream] += chunk.data
    assert taken == whole


def test_collected_pieces_are_joined() -> None:
    call = new_call(collecting=True)
    whole = send_pieces(call)
    assert sum(map(len, call._kept.values())) <= 20
    send_exit(call, whole)
    result = call.result()
    assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (whole[1], whole[2], False)


def test_the_output_limit_is_exact_to_the_byte() -> None:
    call = new_call(collecting=True)
    call.limit = 7_777
    whole = send_pieces(call)
    send_exit(call, whole)
    result = call.result()
    assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (whole[1][:7_777], whole[2][:7_777], True)


def test_pieces_of_a_tunnel_are_joined() -> None:
    sink = TransferSink(ClientSession("s" * 32, b"k" * 32), LinkEvent)
    sink.session.consume = lambda number, size_bytes: None  # type: ignore[method-assign]
    for number in range(10_000):
        sink.fact(Output(1, 1, b"%04d" % number))
    assert len(sink.chunks) <= 20
    assert b"".join(iter(sink.take, None)) == b"".join(b"%04d" % number for number in range(10_000))
