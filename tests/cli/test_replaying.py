"""What of a recording a terminal gets."""

from __future__ import annotations

import re

import pytest
from holdfast.cli.replaying import ReplayFilter
from hypothesis import given
from hypothesis import strategies as st

HARMLESS = re.compile(
    rb"(?:[\x20-\x7e\t\r\n\x08]|[\xc2-\xf4][\x80-\xbf]+|\x1b\[[0-9;:]*[ABCDEFGHJKLMPSTXdfm@r]|\x1b\[\?(?:1|7|25|47|1047|1049)[hl]"
    rb"|\x1b[78DEM=>]|\x1b\([0AB])*"
)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain \xc3\xa4\r\n", b"plain \xc3\xa4\r\n"),
        (b"\x1b[31mred\x1b[0m\x1b[2;5H\x1b[?1049h", b"\x1b[31mred\x1b[0m\x1b[2;5H\x1b[?1049h"),
        (b"\x1b]0;title\x07", b"\\x1b]0;title"),
        (b"\x1b[6n\x1b[c\x1b[?1000h\x1bP+q\x1b\\", b"\\x1b[6n\\x1b[c\\x1b[?1000h\\x1bP+q\\x1b\\"),
        (b"\x9b6n\xc2\x9b6n", b"\\x9b6n\\xc2\\x9b6n"),
        (b"\x00\x0e\x7f", b"\\x00\\x0e\\x7f"),
    ],
)
def test_sequences(data: bytes, shown: bytes) -> None:
    for size in (len(data), 1):
        filtered = ReplayFilter()
        pieces = [filtered.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert b"".join(pieces) + filtered.end() == shown


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\x1b", b"\x1b[", b"]0;", b"\x9b", b"6n", b"?25h"]), max_size=12))
def test_any_bytes_are_harmless(pieces: list[bytes]) -> None:
    filtered = ReplayFilter()
    assert HARMLESS.fullmatch(b"".join(filtered.feed(piece) for piece in pieces) + filtered.end())
