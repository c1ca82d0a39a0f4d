"""The history that an agent sends: hostile content is bounded, typed or refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import pytest
from holdfast_wire.errors import HoldfastError
from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.agent_socket import AgentCallError
from gateway.use_cases.history import PastCommand, parsed

HOSTILE: list[Any] = [None, True, -1, 2**63, 2**70 % 2**64, math.nan, math.inf, -0.5, "x" * 4000, ""]


@pytest.mark.parametrize("value", HOSTILE)
def test_values_of_another_type_or_size_are_left_out(value: Any) -> None:
    row = dict.fromkeys(PastCommand.__slots__, value) | {"id": value}
    (one,) = parsed(msgpack.packb(row))
    assert one.kind in ("command", "run", "terminal")
    assert max(len(one.command_id), len(one.shell)) <= 128
    assert len(one.line) <= 200
    assert all(number is None or 0 <= number < 2**53 for number in (one.started_at, one.duration_s, one.cpu_s, one.exit_code))
    assert all(0 <= size < 2**53 for size in (one.stdout_bytes, one.stderr_bytes, one.held_bytes))
    json.dumps([one.started_at, one.signal, one.reason], allow_nan=False)


@pytest.mark.parametrize(
    "content",
    [
        b"\xc1",
        b"\x81",
        msgpack.packb([1]),
        msgpack.packb(7),
        msgpack.packb({"line": "x" * 5000}),
        msgpack.packb({"line": b"x"}),
        msgpack.packb({"line": {str(number): 1 for number in range(33)}}),
        b"\x80" * 2001,
        b"\x81\xa4line" * 10_000,
        msgpack.packb({"line": "whole"}) + b"\x81",
    ],
)
def test_what_is_no_history_is_refused(content: bytes) -> None:
    with pytest.raises(HoldfastError) as refused:
        parsed(content)
    assert refused.value.code == "agent_unreachable"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_history_or_one_error(content: bytes) -> None:
    try:
        found = parsed(content)
    except AgentCallError:
        return
    assert all(isinstance(one, PastCommand) for one in found)


def test_text_that_is_not_utf8_is_replaced() -> None:
    (one,) = parsed(msgpack.packb({"line": "\ud800x"}, unicode_errors="surrogatepass"))
    assert one.line.endswith("x")
    one.line.encode()
