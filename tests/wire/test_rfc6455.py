"""Frames by the sections of RFC 6455, for the gateway's relay, the agent and the SDK; and two libraries that judge the same bytes."""

from __future__ import annotations

import pytest
from holdfast_wire.errors import ProtocolError
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.websocket_frames import BINARY, FrameHeaders, MessageReader, accept_key, control_breach
from websockets.utils import accept_key as library_accept_key

from tests.support.rfc6455 import CASES, Case, Side, frame, name_of, websockets_verdict, wsproto_verdict

SIDES: tuple[Side, ...] = ("client", "server")
every = pytest.mark.parametrize("case", CASES, ids=name_of)
each_side = pytest.mark.parametrize("side", SIDES)


def reader_verdict(case: Case, side: Side, pieces: int) -> tuple[int, list[bytes]]:
    """The close code of the reader that agent and SDK share, and the messages before it."""
    reader, data, messages = MessageReader(masked=side == "client"), case.data(side), []
    for start in range(0, len(data), pieces):
        for first, payload in reader.feed(data[start : start + pieces]):
            if first == BINARY:
                messages.append(payload)
            elif code := control_breach(first, payload):
                return code, messages
    return reader.breach, messages


@every
@each_side
@pytest.mark.parametrize("pieces", [1 << 20, 1000, 7])
def test_what_agent_and_sdk_make_of_it(case: Case, side: Side, pieces: int) -> None:
    code, messages = reader_verdict(case, side, pieces)
    assert code == case.expected
    if not code:
        assert messages == [payload for first, payload in case.frames if first == BINARY]


@every
@each_side
@pytest.mark.parametrize("pieces", [1 << 20, 1000, 7])
def test_what_the_relay_makes_of_it(case: Case, side: Side, pieces: int) -> None:
    """It reads headers alone: a payload that is wrong is for the end that receives it."""
    headers, data = FrameHeaders(masked=side == "client"), case.data(side)
    refused = False
    try:
        for start in range(0, len(data), pieces):
            headers.feed(data[start : start + pieces])
    except ProtocolError:
        refused = True
    assert refused == (case.expected != 0 and not case.payload_only)
    if not refused:
        assert not headers.mid_frame
        assert headers.close_seen == any(first == 0x88 for first, _ in case.frames)


@every
@each_side
def test_two_libraries_agree_with_the_table(case: Case, side: Side) -> None:
    """Otherwise the table could be wrong, and our readers with it."""
    for name, verdict in (("websockets", websockets_verdict), ("wsproto", wsproto_verdict)):
        if name not in case.lenient:
            assert bool(verdict(case, side)) == bool(case.code), name


@pytest.mark.parametrize("section", ["5.1", "5.2", "5.3", "5.4", "5.5", "5.5.1", "5.5.2", "5.5.3", "5.6", "7.4.1", "7.4.2"])
def test_every_section_that_applies_has_cases(section: str) -> None:
    assert any(case.section == section for case in CASES)


@each_side
def test_a_message_over_the_limit_is_refused_by_its_header(side: Side) -> None:
    """Section 7.4.1: 1009. Nothing of the payload has to be there."""
    head = frame(BINARY, b"x" * (MESSAGE_BYTES + 1), side)[: 14 if side == "client" else 10]
    reader = MessageReader(masked=side == "client")
    assert (reader.feed(head), reader.breach) == ([], 1009)
    with pytest.raises(ProtocolError) as caught:
        FrameHeaders(masked=side == "client").feed(head)
    assert caught.value.code == "request_too_large"


@each_side
def test_a_length_with_its_first_bit_set_is_refused(side: Side) -> None:
    """Section 5.2: the first bit of a length of 64 bits is 0."""
    head = bytes((BINARY, 0xFF if side == "client" else 0x7F)) + b"\x80" + bytes(7) + (bytes(4) if side == "client" else b"")
    reader = MessageReader(masked=side == "client")
    assert (reader.feed(head), reader.breach) == ([], 1009)
    with pytest.raises(ProtocolError):
        FrameHeaders(masked=side == "client").feed(head)


def test_the_accepted_key() -> None:
    """Section 4.2.2, with its example."""
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert accept_key("x" * 24) == library_accept_key("x" * 24)
