"""The reading of a stream of server-sent events: any pieces, and what is delivered when it is cut."""

from __future__ import annotations

import json

import pytest
from holdfast import EventGap, ProtocolError, SandboxEvent, ServiceError
from holdfast._event_results import EventReader
from hypothesis import given
from hypothesis import strategies as st


def _event(name: str, position: str = "", **facts: object) -> bytes:
    end = f"id: {position}\n\n" if position else "\n"
    return f"event: {name}\ndata: {json.dumps(facts)}\n{end}".encode()


PARTS = {
    "1-0": b"retry: 1000\n" + _event("position", "1-0") + b":\n\n",
    "2-0": _event(
        "created",
        sandbox_id="sb-1",
        time=1.5,
        image="host",
        labels={"a": "b"},
        group="g",
        created_at=1.5,
        parent="sb-0",
        turn=3,
        paused="disk",
    )
    + _event("deleted", "2-0", sandbox_id="sb-2", time=2, reason="oom", fault="workload", message="out of memory"),
    "3-0": _event("of_a_later_version", "3-0", x=1),
    "4-0": _event("gap", "4-0", message="lost"),
}
"""What comes with each position."""
STREAM = b"".join(PARTS.values())
EVENTS = [
    SandboxEvent("created", "sb-1", 1.5, "host", {"a": "b"}, "g", 1.5, parent="sb-0", turn=3, paused="disk"),
    SandboxEvent("deleted", "sb-2", 2, reason="oom", fault="workload", message="out of memory"),
    EventGap("lost"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    reader, found, at = EventReader(""), [], 0
    for cut in [*sorted(cuts), len(STREAM)]:
        found += reader.feed(STREAM[at:cut])
        at = cut
    assert found == EVENTS
    assert (reader.position, reader.begun) == ("4-0", True)


@given(st.integers(0, len(STREAM)))
def test_a_cut_stream_continues_without_a_repeated_or_missing_event(cut: int) -> None:
    first = EventReader("")
    found = first.feed(STREAM[:cut])
    second = EventReader(first.position)
    found += second.feed(b"".join(part for position, part in PARTS.items() if position > first.position))
    assert found == EVENTS
    assert second.position == "4-0"


def test_events_without_a_position_are_not_held_without_bound() -> None:
    reader = EventReader("")
    found = reader.feed(_event("created", sandbox_id="sb-1", time=1) * 25_000)
    assert len(found) == 20_000
    assert reader.position == ""


@pytest.mark.parametrize("data", ["", "[]", "{", '{"sandbox_id": 1}', '{"time": "x"}', '{"labels": []}', "[" * 5000])
def test_what_is_no_event_is_refused(data: str) -> None:
    stream = f"event: created\ndata: {data}\nid: 1\n\n".encode()
    if not data:
        assert EventReader("").feed(stream) == []
        return
    with pytest.raises((ProtocolError, ServiceError)):
        EventReader("").feed(stream)


def test_an_endless_line_is_refused() -> None:
    with pytest.raises(ServiceError):
        EventReader("").feed(b"data: " + b"x" * 2_000_000)
