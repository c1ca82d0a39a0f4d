"""The text of live output whose chunks end within a character."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from holdfast._transport.session.command_call import Call
from holdfast_wire.frames import Exited, Output


class _Session:
    def consume(self, number: int, size_bytes: int) -> None:
        pass


class _Sink:
    number = 1
    session = _Session()


class _Event:
    def set(self) -> None:
        pass

    def clear(self) -> None:
        pass


def _call() -> Call:
    return Call(cast("Any", _Sink()), "c", 1 << 20, new_event=cast("Any", _Event), collecting=False)


def _texts(pieces: list[tuple[int, bytes]]) -> dict[int, str]:
    call, texts = _call(), {1: "", 2: ""}
    for at, (stream, data) in enumerate(pieces):
        call.on_output(Output(1, stream, data))
        if at == len(pieces) - 1:
            call.on_exited(Exited(1, "c", {"exit_code": 0}))
        while (chunk := call.take()) is not None:
            assert tuple(chunk) == (stream, data)
            texts[stream] += chunk.text
    return texts


def test_a_split_character_is_in_the_second_chunk() -> None:
    assert _texts([(1, b"a\xe6\xbc"), (2, b"\xf0\x9f"), (1, b"\xa2|"), (2, b"\x8e\x89")]) == {1: "a漢|", 2: "🎉"}


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    assert _texts([(1, b"a\xe6\xbc")])[1] == "a\ufffd"


@pytest.mark.parametrize("seed", range(20))
def test_any_chunks_give_the_text_of_all_bytes(seed: int) -> None:
    rng = random.Random(seed)
    data = "".join(rng.choice("aé漢🎉\n") for _ in range(200)).encode() + bytes(rng.randrange(256) for _ in range(50)) + b"."
    cuts = sorted(rng.sample(range(1, len(data)), 60))
    pieces = [(1, data[start:end]) for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert _texts(pieces)[1] == data.decode("utf-8", "replace")
