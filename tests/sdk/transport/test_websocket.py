"""The framing of one connection, tested with the server side of the ``websockets`` library: whole, split at every byte, and hostile."""

from __future__ import annotations

import pytest
from holdfast._options import Options, check_url
from holdfast._transport.service import Service
from holdfast._transport.session.policy import Backoff, judge_close, judge_refusal
from holdfast._transport.session.websocket import CloseInfo, Refusal, WebSocket
from holdfast_wire.limits import MESSAGE_BYTES
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

SERVICE = Service(Options("http://127.0.0.1:1", "k"))


def handshake(websocket: WebSocket) -> tuple[ServerProtocol, bytes]:
    server = ServerProtocol(max_size=MESSAGE_BYTES)
    server.receive_data(websocket.greeting())
    (request,) = server.events_received()
    response = server.accept(request)  # type: ignore[arg-type]
    response.headers["X-Holdfast-Ticket"] = "t"
    server.send_response(response)
    return server, b"".join(server.data_to_send())


def opened() -> tuple[WebSocket, ServerProtocol]:
    websocket = WebSocket(SERVICE, "/x", {})
    server, answer = handshake(websocket)
    assert websocket.feed(answer) == []
    assert websocket.open
    assert websocket.headers["x-holdfast-ticket"] == "t"
    return websocket, server


def test_messages_directly_after_the_handshake_are_read() -> None:
    websocket = WebSocket(SERVICE, "/x", {})
    server, answer = handshake(websocket)
    server.send_binary(b"first")
    data = answer + b"".join(server.data_to_send())
    for cut in (len(answer), len(answer) + 1, len(answer) - 1):
        fresh = WebSocket(SERVICE, "/x", {})
        fresh._key = websocket._key
        fresh.greeting()
        assert fresh.feed(data[:cut]) + fresh.feed(data[cut:]) == [b"first"]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, MESSAGE_BYTES])
def test_messages_of_every_length_are_sent_and_received(size: int) -> None:
    websocket, server = opened()
    message = bytes(size)
    server.receive_data(websocket.pack([message, b"next"]))
    assert [bytes(frame.data) for frame in server.events_received()] == [message, b"next"]  # type: ignore[union-attr]
    server.send_binary(message)
    assert websocket.feed(b"".join(server.data_to_send())) == [message]


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 40))
def test_splits_do_not_matter(messages: list[bytes], step: int) -> None:
    websocket, server = opened()
    for message in messages:
        server.send_binary(message)
    data = b"".join(server.data_to_send())
    got: list[bytes] = []
    for start in range(0, len(data), step):
        got += websocket.feed(data[start : start + step])
    assert got == messages


@given(st.binary(max_size=600), st.integers(1, 50))
def test_any_bytes_give_messages_or_a_close(data: bytes, step: int) -> None:
    websocket, _ = opened()
    for start in range(0, len(data), step):
        websocket.feed(data[start : start + step])
    websocket.feed_eof()
    assert websocket.closed is not None


@given(st.binary(max_size=600))
def test_any_bytes_for_a_handshake_are_a_refusal(data: bytes) -> None:
    websocket = WebSocket(SERVICE, "/x", {})
    websocket.greeting()
    websocket.feed(data)
    websocket.feed_eof()
    assert websocket.refusal is not None


def test_fragments_are_joined_and_pings_answered() -> None:
    websocket, _ = opened()
    frames = [Frame(Opcode.BINARY, b"a", fin=False), Frame(Opcode.PING, b"p"), Frame(Opcode.CONT, b"b"), Frame(Opcode.BINARY, b"c")]
    data = b"".join(frame.serialize(mask=False) for frame in frames)
    assert websocket.feed(data) == [b"ab", b"c"]
    assert websocket.has_reply
    assert websocket.reply()[0] == 0x8A


def test_only_the_pong_to_the_last_ping_is_queued() -> None:
    """A peer that sends pings and does not read must not grow the memory of the client."""
    websocket, _ = opened()
    for number in range(1000):
        websocket.feed(Frame(Opcode.PING, b"%03d" % number).serialize(mask=False))
    reply = websocket.reply()
    assert reply[:2] == b"\x8a\x83"
    assert bytes(a ^ b for a, b in zip(reply[2:5], reply[6:9], strict=True)) == b"999"
    assert not websocket.has_reply


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\x80\0\0\0\0",  # masked by the server
        b"\x82\x7f" + (MESSAGE_BYTES + 1).to_bytes(8, "big"),
        b"\xc2\x01x",  # compressed, which was not agreed
        b"\x80\x01x",  # a continuation without a first frame
        b"\x81\x01x",  # text
        b"\x02\x01x\x02\x01x",  # a message within a message
        b"\x02\x01x\x82\x01x",
        b"\x02\x7f" + MESSAGE_BYTES.to_bytes(8, "big") + bytes(MESSAGE_BYTES) + b"\x80\x01x",
        b"\x09\x00",  # a fragment of a ping
    ],
)
def test_protocol_violations_close(data: bytes) -> None:
    websocket, _ = opened()
    assert websocket.feed(data) == []
    assert websocket.closed is not None
    assert websocket.feed(b"\x82\x01x") == []


def test_close_codes_are_reported() -> None:
    websocket, _ = opened()
    websocket.feed(Frame(Opcode.CLOSE, Close(1012, "restart").serialize()).serialize(mask=False))
    assert websocket.closed == CloseInfo(1012, "restart")
    websocket, _ = opened()
    websocket.feed_eof()
    assert websocket.closed == CloseInfo(1006)


def test_refusals_keep_status_and_body() -> None:
    websocket = WebSocket(SERVICE, "/x", {})
    websocket.greeting()
    websocket.feed(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nbo")
    websocket.feed(b"dy")
    assert websocket.refusal is not None
    assert (websocket.refusal.status, websocket.refusal.body) == (404, b"body")


def test_the_verdict_on_refusals() -> None:
    ours = b'{"code": "sandbox_gone", "detail": "it is gone", "reason": "oom", "fault": "workload", "hint": "h"}'
    verdict = judge_refusal(Refusal(410, {"content-type": "application/problem+json"}, ours), attached_before=True)
    assert verdict.fatal
    assert (verdict.why.reason, verdict.why.fault, verdict.why.message) == ("oom", "workload", "it is gone")
    later = judge_refusal(Refusal(503, {"retry-after": "7"}, b""), attached_before=False)
    assert (later.fatal, later.retry_after_s, later.not_holdfast) == (False, 7.0, False)
    assert judge_refusal(Refusal(403, {"content-type": "text/html"}, b"no"), attached_before=False).not_holdfast
    hostile = judge_refusal(Refusal(503, {"retry-after": "1e99"}, b""), attached_before=False)
    assert hostile.retry_after_s <= 60


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1011, 1012, 4404, 4409, 4410, 4503])
def test_close_codes_after_which_the_client_resumes(code: int) -> None:
    assert not judge_close(CloseInfo(code), attached_before=True).fatal


@pytest.mark.parametrize("code", [1002, 1009, 4400, 4401, 4403, 4411, 4414, 4999])
def test_close_codes_that_end_the_session(code: int) -> None:
    assert judge_close(CloseInfo(code), attached_before=True).fatal


@pytest.mark.parametrize(
    ("close_code", "text", "code", "reason", "message"),
    [
        (4410, "sandbox_gone: evicted: the node is drained", "agent_unreachable", None, ": the node is drained"),
        (4410, "sandbox_failed: the agent ended", "agent_unreachable", None, ": the agent ended"),
        (4403, "origin_refused: not from here: no", "protocol_error", None, ": not from here: no"),
        (4503, "agent_unreachable: it does not answer", "agent_unreachable", None, ": it does not answer"),
        (4411, "sandbox_gone: evicted: of another close code", "session_fenced", None, "(session_fenced)"),
        (4414, "session_lost: closed: a reason of this client's own", "session_lost", None, ": closed: a reason of this client's own"),
        (4503, "agent_unreachable", "agent_unreachable", None, "(agent_unreachable)"),
        (4410, "no code: at all", "agent_unreachable", None, "(sandbox_gone)"),
        (4410, "", "agent_unreachable", None, "(sandbox_gone)"),
    ],
)
def test_the_text_of_a_close_names_the_error(close_code: int, text: str, code: str, reason: str | None, message: str) -> None:
    why = judge_close(CloseInfo(close_code, text), attached_before=False).why
    assert (why.code, why.reason) == (code, reason)
    assert why.message.endswith(message)
    assert not why.is_infrastructure, "the close may come from the agent"


def test_delays_grow_to_a_cap_and_jitter() -> None:
    backoff = Backoff(0.1, 2.0)
    delays = [backoff.delay_s() for _ in range(40)]
    assert delays[0] <= 0.1
    assert max(delays) <= 2.0
    assert len(set(delays)) > 30
    assert backoff.delay_s(at_least_s=5.0) >= 5.0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("Upgrade: websocket", "upgrade: WebSocket"),
        ("Connection: Upgrade", "Connection: keep-alive, Upgrade"),
        ("Connection: Upgrade", "Connection: close"),
        ("Upgrade: websocket", "Upgrade: h2c"),
        ("HTTP/1.1 101", "HTTP/1.1 200"),
        ("HTTP/1.1 101", "HTTP/1.0 101"),
        ("X-Holdfast-Ticket: t", "Sec-WebSocket-Extensions: permessage-deflate"),
        ("X-Holdfast-Ticket: t", "Sec-WebSocket-Protocol: other"),
        ("X-Holdfast-Ticket: t", "Sec-WebSocket-Accept: again"),
        ("X-Holdfast-Ticket: t", "no colon"),
        ("X-Holdfast-Ticket: t", "Bad Name: t"),
    ],
)
def test_a_handshake_answer_is_accepted_exactly_when_the_library_accepts_it(old: str, new: str) -> None:
    websocket = WebSocket(SERVICE, "/x", {})
    answer = handshake(websocket)[1].replace(old.encode(), new.encode(), 1)
    assert websocket.feed(answer) == []
    websocket.feed_eof()
    library = ClientProtocol(parse_uri("ws://127.0.0.1:1/x"))
    library.key = websocket._key
    library.send_request(library.connect())
    library.receive_data(answer)
    library.receive_eof()
    responses = [event for event in library.events_received() if isinstance(event, Response)]
    assert websocket.open == (library.handshake_exc is None)
    if websocket.open:
        assert websocket.headers == {name.lower(): value for name, value in responses[0].headers.raw_items()}
        assert websocket.closed == CloseInfo(1006)
    else:
        refused = isinstance(library.handshake_exc, InvalidStatus)
        assert websocket.refusal is not None
        assert websocket.refusal.status == (responses[0].status_code if refused else 0)


def test_a_normal_exchange_ends_with_a_valid_close() -> None:
    websocket, server = opened()
    server.receive_data(websocket.pack([b"x" * 100]))
    server.send_binary(b"answer")
    server.send_ping(b"there?")
    assert websocket.feed(b"".join(server.data_to_send())) == [b"answer"]
    server.receive_data(websocket.reply() + websocket.close(1000, "done"))
    assert server.close_rcvd == Close(1000, "done")
    assert websocket.closed == CloseInfo(1000, "done")


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("https://Example.org", "Example.org", "/x"),
        ("http://[::1]:80/a%20b/", "[::1]:80", "/a%20b/x"),
        ("http://[::1]/a b", "[::1]", "/a%20b/x"),
        ("https://exämple.org/ä", "xn--exmple-cua.org:443", "/%C3%A4/x"),
    ],
)
def test_the_request_of_a_handshake_is_for_the_host_and_path_of_the_service(url: str, host: str, target: str) -> None:
    server = ServerProtocol()
    server.receive_data(WebSocket(Service(Options(check_url(url), "k")), "/x", {"X-Holdfast-Ticket": "t"}).greeting())
    (request,) = server.events_received()
    assert isinstance(request, Request)
    assert request.path == target
    sent = {name: request.headers[name] for name in ("Host", "X-API-Key", "X-Holdfast-Ticket")}
    assert sent == {"Host": host, "X-API-Key": "k", "X-Holdfast-Ticket": "t"}
