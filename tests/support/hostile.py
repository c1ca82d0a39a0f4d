"""Hostile bytes for the agent's parsers: the result of parsing a stream, and seeded damage.

Owns the invariants that the quick property tests and the long fuzzing runs share: for any input the result is the documented one
or one documented error, and does not depend on how the bytes were split.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress

from holdfast_wire.archives.tar import Member, TarLimits, TarReader
from holdfast_wire.errors import HoldfastError

from session_agent.agent.files.patches.diff_parser import parse
from session_agent.agent.files.patches.unified_diff import PatchError, apply, prefix_depth
from session_agent.agent.files.transfers import Sink, finish

Events = list[tuple[Member, bytes]]

LIMITS = TarLimits(entries=50, size_bytes=1_000_000)
_WORDS = (
    b"\0" * 512,
    b"\xff",
    b"\n",
    b"@@ -0,0 +1 @@\n",
    b"--- ",
    b"+++ ",
    b"\\ No newline",
    b"ustar\0",
    b"99999999999",
    b"-1",
    b"30 path=x\n",
    b"/../",
)


def recording(reader: TarReader, events: Events) -> Sink:
    """Append the members of a stream to ``events``."""
    while (member := (yield from reader.member())) is not None:
        events.append((member, b""))
        while data := (yield from reader.content()):
            events[-1] = (member, events[-1][1] + bytes(data))
        assert len(events[-1][1]) == member.size
    return {}


def read_tar(data: bytes, piece: int = 0) -> tuple[Events, str]:
    """The members of a stream and its error code, empty if it is valid."""
    events: Events = []
    sink = recording(TarReader(LIMITS), events)
    next(sink)
    try:
        for at in range(0, len(data), piece or max(1, len(data))):
            sink.send(data[at : at + (piece or len(data))])
        finish(sink)
    except HoldfastError as error:
        code = error.code
    else:
        code = ""
    assert code in ("", "archive_invalid", "archive_limit")
    return events, code


def check_tar(data: bytes, pieces: tuple[int, ...] = (1, 511)) -> None:
    """Any bytes are an archive or give one typed error, independent of how they are split."""
    whole = read_tar(data)
    for piece in pieces:
        assert read_tar(data, piece) == whole


def check_diff(diff: bytes, original: bytes) -> None:
    """Any bytes are a diff that can or cannot be applied, or give `PatchError`."""
    try:
        patches = parse(diff)
    except PatchError:
        return
    assert patches
    prefix_depth(patches)
    for patch in patches:
        assert patch.old or patch.new
        with suppress(PatchError):
            apply(patch, original)


def damaged(seed: bytes, rng: random.Random) -> bytes:
    """``seed`` with a few bytes changed, cut, doubled or replaced by texts that are difficult for parsers."""
    data = bytearray(seed)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((0, 1, 1, 2, 8, 100, 512)))
        choice = rng.randrange(5)
        if choice == 0 and data:
            at = min(at, len(data) - 1)
            data[at] ^= 1 << rng.randrange(8)
        elif choice == 1:
            del data[at:end]
        elif choice == 2:
            data[at:at] = data[at:end]
        elif choice == 3:
            data[at:end] = rng.choice(_WORDS)
        else:
            data[at:end] = rng.randbytes(end - at)
    return bytes(data)


def resum(archive: bytes) -> bytes:
    """Give every block that looks like a header a correct checksum, so that the parser reads the damaged header."""
    out = bytearray(archive)
    for at in range(0, len(out) - 511, 512):
        block = out[at : at + 512]
        if block[148:156].strip(b"\0 01234567") == b"" and any(block):
            block[148:156] = b" " * 8
            out[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    return bytes(out)


def rounds(name: str, default_s: float) -> Iterator[random.Random]:
    """One seeded generator per round, for ``HOLDFAST_FUZZ_SECONDS``; the seed of a failing round is printed by the assertion."""
    first = int(os.environ.get("HOLDFAST_FUZZ_SEED", time.time_ns() & 0xFFFFFFFF))
    end = time.monotonic() + float(os.environ.get("HOLDFAST_FUZZ_SECONDS", default_s))
    number = first
    while time.monotonic() < end or number == first:
        print(f"{name}: HOLDFAST_FUZZ_SEED={number}", end="\r")
        yield random.Random(number)
        number += 1
    print(f"{name}: {number - first} rounds")
