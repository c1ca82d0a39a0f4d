"""What an agent reports on the channel ``activity``: hostile content is bounded, typed or refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import pytest
from holdfast_wire.errors import HoldfastError
from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.activity_reports import FIELDS, ReportReader
from gateway.agents.agent_socket import AgentCallError

HOSTILE: list[Any] = [
    None,
    True,
    -1,
    2**63,
    math.nan,
    math.inf,
    -0.5,
    "x" * 16_000,
    "",
    [1] * 500,
    ["a" * 500] * 200,
    {"a": 1},
    b"y" * 9000,
]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("kind", FIELDS)
def test_values_of_another_type_or_size_are_left_out(kind: str, value: Any) -> None:
    row = dict.fromkeys(FIELDS[kind], value) | {"type": kind, "t": value, "n": value, "unknown": value}
    (one,) = ReportReader().feed(msgpack.packb(row))
    assert one.keys() <= FIELDS[kind].keys() | {"type", "time", "n", "seq"}
    assert 0 <= one["time"] < 1e11
    for name, found in one.items():
        assert found is not None, name
        assert not isinstance(found, dict)
        if isinstance(found, str | bytes):
            assert len(found) <= 64 * 1024
        if isinstance(found, int | float):
            assert 0 <= found < 2**53
        if isinstance(found, list):
            assert len(found) <= 100
    json.dumps({name: found for name, found in one.items() if not isinstance(found, bytes)}, allow_nan=False)


def test_one_entry_may_have_a_whole_command() -> None:
    entry = {"type": "command_started", "t": 100.0, "n": 7, "id": "c1", "kind": "command", "line": "x"}
    entry |= {"output": [[0.5, 1, b"out"], [0.6, 2, b"err"], "none", [1]], "ended": {"exit_code": 3, "duration_s": 2.0, "id": "other"}}
    started, out, err, ended = ReportReader().feed(msgpack.packb(entry))
    assert (started["type"], "n" in started, started["seq"]) == ("command_started", False, 7)
    assert (out["data"], out["stream"], out["time"], err["stream"]) == (b"out", 1, 100.5, 2)
    assert (ended["type"], ended["id"], ended["exit_code"], ended["time"], ended["n"]) == ("command_ended", "c1", 3, 102.0, 7)


@pytest.mark.parametrize(
    "content",
    [b"\xc1", msgpack.packb([1]), msgpack.packb(7), msgpack.packb({"path": "x" * 20_000}), msgpack.packb({"data": b"x" * (2 << 20)}),
     msgpack.packb({str(number): 1 for number in range(65)}), b"\xc6\x00\x0f\xff\xff" + b"x" * (3 << 20)],
)  # fmt: skip
def test_what_is_no_report_is_refused(content: bytes) -> None:
    with pytest.raises(HoldfastError) as refused:
        ReportReader().feed(content)
    assert refused.value.code == "agent_unreachable"


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_are_facts_or_one_error(pieces: list[bytes]) -> None:
    reader = ReportReader()
    try:
        for piece in pieces:
            assert all(one["type"] in FIELDS for one in reader.feed(piece))
    except AgentCallError:
        return


def test_an_unknown_type_is_left_out() -> None:
    assert ReportReader().feed(msgpack.packb({"type": "invented", "n": 1})) == []
    assert ReportReader().feed(msgpack.packb({"type": ["command_started"], "n": 1})) == []
