"""The spool: order, offsets, bounds, gaps and digests, without any process."""

from __future__ import annotations

import builtins
import hashlib
import os
import random
import sys
import tracemalloc
from typing import Any

import pytest
from holdfast_wire.limits import MIB, WINDOW_BYTES

from session_agent.agent.context import SandboxLimits, spool_budget
from session_agent.agent.output.checksums import Sha256
from session_agent.agent.output.spool import ATTACHED_BYTES, Budget, Spool, SpoolReader
from tests.support.own_process import in_own_process


def drain(reader: SpoolReader, room: int = 1 << 20) -> tuple[dict[int, bytes], dict[int, int]]:
    """Read all that is available to a reader: bytes and gaps per stream."""
    data: dict[int, bytes] = {1: b"", 2: b""}
    gaps: dict[int, int] = {1: 0, 2: 0}
    while True:
        while (gap := reader.gap()) is not None:
            gaps[gap[0]] += gap[1]
        piece = reader.take(room)
        if piece is None:
            return data, gaps
        assert 0 < len(piece[1]) <= room
        data[piece[0]] += piece[1]


def test_every_reader_sees_everything_in_order() -> None:
    spool = Spool(Budget())
    early = spool.attach(lambda: True)
    spool.append(1, b"one")
    assert drain(early)[0] == {1: b"one", 2: b""}
    spool.append(2, b"err")
    spool.append(1, b"two")
    late = spool.attach(lambda: True)
    assert [late.take(100), late.take(100), late.take(100)] == [(1, b"one"), (2, b"err"), (1, b"two")]
    assert drain(early)[0] == {1: b"two", 2: b"err"}
    assert early.at_end
    assert late.at_end


def test_random_pieces_with_random_readers() -> None:
    seed = int(os.environ.get("HOLDFAST_FUZZ_SEED", "1"))
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(200):
        budget = Budget()
        spool = Spool(budget)
        written: dict[int, bytes] = {1: b"", 2: b""}
        readers: list[tuple[SpoolReader, dict[int, bytes]]] = []
        for _ in range(rng.randrange(1, 60)):
            match rng.randrange(3):
                case 0:
                    stream, data = rng.choice((1, 2)), rng.randbytes(rng.choice((1, 10, 5000, 20000)))
                    spool.append(stream, data)
                    written[stream] += data
                case 1 if len(readers) < 4:
                    starts = {s: rng.randrange(len(written[s]) + 1) for s in (1, 2)}
                    reader = spool.attach(lambda: True, starts)
                    readers.append((reader, {s: written[s][: starts[s]] for s in (1, 2)}))
                case _ if readers:
                    reader, before = readers[rng.randrange(len(readers))]
                    piece = reader.take(rng.choice((1, 100, 100_000)))
                    if piece:
                        before[piece[0]] += piece[1]
        for reader, before in readers:
            rest, gaps = drain(reader)
            assert gaps == {1: 0, 2: 0}
            assert {s: before[s] + rest[s] for s in (1, 2)} == written
        for stream in (1, 2):
            assert spool.streams()[stream] == [len(written[stream]), 0, hashlib.sha256(written[stream]).hexdigest()]
        spool.release()
        assert budget.held_bytes == 0


def test_taken_bytes_are_freed_except_the_last_window() -> None:
    budget = Budget()
    spool = Spool(budget)
    reader = spool.attach(lambda: True)
    for _ in range(100):
        spool.append(1, b"x" * 65536)
        drain(reader)
        spool.taken()
    assert (1 << 20) <= budget.held_bytes <= (1 << 20) + 65536
    second = spool.attach(lambda: True)
    data, gaps = drain(second)
    assert len(data[1]) + gaps[1] == 100 * 65536
    spool.release()
    assert budget.held_bytes == 0


def is_full(spool: Spool) -> bool:
    return spool.full


def test_the_limit_depends_on_whether_a_reader_is_attached() -> None:
    attached = [True]
    spool = Spool(Budget(), limit_bytes=3 * ATTACHED_BYTES)
    reader = spool.attach(lambda: attached[0])
    spool.append(1, b"x" * ATTACHED_BYTES)
    assert is_full(spool)
    attached[0] = False
    assert not is_full(spool)
    resumed: list[bool] = []
    spool.pause(lambda: resumed.append(True))
    spool.taken()
    assert resumed == [True]
    spool.append(1, b"x" * (2 * ATTACHED_BYTES))
    assert is_full(spool)
    attached[0] = True
    drain(reader)
    assert not is_full(spool)


def test_a_disconnected_reader_does_not_block_the_others() -> None:
    """The bytes of a disconnected client are kept while there is room; after that the client that still reads takes precedence."""
    attached = [True]
    spool = Spool(Budget(), limit_bytes=500_000)
    away, live = spool.attach(lambda: attached[0]), spool.attach(lambda: True)
    for _ in range(20):
        spool.append(1, b"x" * 10_000)
        drain(live)
        spool.taken()
    attached[0] = False
    for _ in range(20):
        spool.append(1, b"x" * 10_000)
        drain(live)
        spool.taken()
    attached[0] = True
    assert drain(away) == ({1: b"x" * 400_000, 2: b""}, {1: 0, 2: 0}), "it was behind by less than a spool: nothing is lost"
    attached[0] = False
    for _ in range(1000):
        assert not spool.full
        spool.append(1, b"x" * 10_000)
        data, gaps = drain(live)
        assert (len(data[1]), gaps[1]) == (10_000, 0)
        spool.taken()
    attached[0] = True
    data, gaps = drain(away)
    assert len(data[1]) + gaps[1] == 10_000_000
    assert 400_000 <= len(data[1]) <= WINDOW_BYTES + 10_000, "the last window is kept in any case"


def test_tail_drops_the_oldest_with_an_exact_count() -> None:
    budget = Budget()
    spool = Spool(budget, tail=True, limit_bytes=50_000)
    reader = spool.attach(lambda: False)
    written = b"".join(b"%08d" % i for i in range(50_000))
    for at in range(0, len(written), 1000):
        spool.append(1, written[at : at + 1000])
        assert not spool.full
    data, gaps = drain(reader)
    assert gaps[1] + len(data[1]) == len(written)
    assert written.endswith(data[1])
    assert 25_000 <= len(data[1]) <= 50_000
    assert spool.streams()[1] == [len(written), gaps[1], hashlib.sha256(written).hexdigest()]


def test_the_sandbox_has_a_limit_too() -> None:
    budget = Budget(limit_bytes=100_000)
    unread, live = Spool(budget), Spool(budget)
    unread.append(1, b"x" * 100_000)
    assert unread.full
    reader = live.attach(lambda: True)
    live.append(1, b"y" * 10)
    assert live.full
    drain(reader)
    live.taken()
    assert not live.full


def test_tails_stay_within_the_budget_of_the_sandbox() -> None:
    """A hundred commands that each keep the tail of their output share the budget of one sandbox."""
    budget = Budget(limit_bytes=1_000_000)
    spools = [Spool(budget, tail=True) for _ in range(100)]
    for _ in range(20):
        for spool in spools:
            spool.append(1, b"z" * 16_000)
    assert budget.held_bytes <= 1_000_000 + len(spools) * 16_000, "each keeps its last piece"
    for spool in spools:
        seen, dropped, _ = spool.streams()[1]
        assert (seen, int(dropped)) == (320_000, 320_000 - len(spool.held(1)))
        assert not spool.full


def test_a_spool_that_waits_for_budget_continues_when_another_frees_it() -> None:
    """No client reads the second command, so nothing but the freed budget can resume it."""
    budget = Budget(limit_bytes=100_000)
    first, second = Spool(budget), Spool(budget)
    first.append(1, b"x" * 100_000)
    second.append(1, b"y")
    assert is_full(second)
    resumed: list[bool] = []
    second.pause(lambda: resumed.append(True))
    first.release()
    assert not is_full(second)
    assert resumed == [True]


@pytest.mark.parametrize("is_read", [False, True])
def test_a_spool_that_waits_for_budget_continues_when_another_can_be_reclaimed(is_read: bool) -> None:
    budget = Budget(limit_bytes=100_000)
    first, second = Spool(budget, drops_unattached=True), Spool(budget)
    reader = first.attach(lambda: is_read)
    first.append(1, b"x" * 50_000)
    second.append(1, b"y" * 50_000)
    assert is_full(second)
    resumed: list[bool] = []
    second.pause(lambda: resumed.append(True))
    if is_read:
        drain(reader)
    if is_read:
        first.received(reader)
    else:
        first.detach(reader)
        first.end()
    assert resumed == [True]
    assert budget.held_bytes < budget.limit_bytes


def test_output_that_a_reader_received_is_reclaimed_before_a_spool_waits() -> None:
    budget = Budget(limit_bytes=100_000)
    spools = [Spool(budget) for _ in range(3)]
    for spool in spools[:2]:
        spool.append(1, b"x" * 50_000)
    reader = spools[0].attach(lambda: True, keep=True)
    assert len(drain(reader)[0][1]) == 50_000
    spools[0].received(reader)
    assert len(drain(spools[0].attach(lambda: True))[0][1]) == 50_000, "while there is room it is kept"
    spools[2].append(1, b"z")
    assert not is_full(spools[2])
    assert [len(spool.held(1)) for spool in spools] == [0, 50_000, 1]
    assert drain(spools[0].attach(lambda: True)) == ({1: b"", 2: b""}, {1: 50_000, 2: 0}), "the loss is reported as a gap"


def test_a_reader_that_keeps_leaves_all_to_the_next_while_there_is_room() -> None:
    budget = Budget()
    spool = Spool(budget, limit_bytes=4 * MIB)
    reader = spool.attach(lambda: True, keep=True)
    for _ in range(64):
        spool.append(1, b"x" * 65536)
        drain(reader)
        spool.taken()
        assert not spool.full
    assert len(spool.held(1)) == 4 * MIB
    other = spool.attach(lambda: True)
    assert len(drain(other)[0][1]) == 4 * MIB
    spool.detach(other)
    for _ in range(64):
        spool.append(1, b"x" * 65536)
        assert not spool.full
        assert len(drain(reader)[0][1]) == 65536
        spool.taken()
    assert len(spool.held(1)) == 4 * MIB


@in_own_process
def test_the_overhead_of_small_pieces_counts_too() -> None:
    """Two streams alternate, two bytes at a time: each piece takes many times its size, and the limit is one of memory."""
    budget = Budget(limit_bytes=2 * MIB)
    spool = Spool(budget)
    tracemalloc.start()
    try:
        while not spool.full:
            spool.append(1, b"12")
            spool.append(2, b"34")
        assert spool.size < 1 * MIB
        assert tracemalloc.get_traced_memory()[0] < 3 * budget.limit_bytes
    finally:
        tracemalloc.stop()
    reader = spool.attach(lambda: True)
    assert len(drain(reader)[0][1]) == spool.size // 2
    spool.taken()
    assert not is_full(spool)
    spool.append(1, b"12")
    assert budget.held_bytes < 1000
    spool.release()
    drain(reader)
    spool.detach(reader)
    assert (budget.held_bytes, budget.reclaimable) == (0, ({}, {}, {}))


def test_small_pieces_for_a_slow_reader_make_the_process_wait_sooner() -> None:
    spool = Spool(Budget())
    spool.attach(lambda: True)
    while not spool.full:
        spool.append(1, b"12")
        spool.append(2, b"34")
    assert spool.size < ATTACHED_BYTES // 8


def test_the_last_window_of_read_output_is_reclaimed_before_a_spool_waits() -> None:
    budget = Budget(limit_bytes=4 * WINDOW_BYTES)
    live = [Spool(budget) for _ in range(4)]
    for spool in live:
        reader = spool.attach(lambda: True)
        spool.append(1, b"x" * WINDOW_BYTES)
        spool.append(1, b"y")
        drain(reader)
        spool.taken()
    unread = Spool(budget)
    unread.append(1, b"z" * WINDOW_BYTES)
    assert not is_full(unread)


def test_bytes_kept_for_later_readers_make_no_spool_wait() -> None:
    budget = Budget(limit_bytes=1_000_000)
    much, other = Spool(budget), Spool(budget)
    reader = much.attach(lambda: True, keep=True)
    while budget.held_bytes + 50_128 < budget.limit_bytes:
        much.append(1, b"x" * 50_000)
        drain(reader)
        much.taken()
    other.append(1, b"y" * (budget.limit_bytes - budget.held_bytes - 128))
    assert budget.held_bytes == budget.limit_bytes
    assert not is_full(other)
    assert len(much.held(1)) >= 900_000, "no more of it was dropped than necessary"


def test_a_spool_that_drops_unattached_waits_only_for_an_attached_reader() -> None:
    """With a reader it waits for that reader; without one it drops its oldest bytes. Of ended spools the oldest is reclaimed first."""
    attached = [True]
    budget = Budget(limit_bytes=1_000_000)
    spool = Spool(budget, drops_unattached=True, limit_bytes=200_000)
    reader = spool.attach(lambda: attached[0])
    spool.append(1, b"x" * 200_000)
    assert is_full(spool)
    resumed: list[bool] = []
    spool.pause(lambda: resumed.append(True))
    attached[0] = False
    spool.taken()
    assert resumed == [True]
    for _ in range(10):
        spool.append(1, b"x" * 50_000)
        assert not is_full(spool)
    assert len(spool.held(1)) == 200_000
    attached[0] = True
    data, gaps = drain(reader)
    assert (len(data[1]), gaps[1]) == (200_000, 500_000)
    ended = [Spool(budget, drops_unattached=True) for _ in range(8)]
    for other in ended:
        other.append(1, b"z" * 200_000)
        other.end()
    assert budget.held_bytes <= budget.limit_bytes
    assert [len(other.held(1)) for other in ended][-3:] == [200_000] * 3, "the newest are kept"
    assert len(ended[0].held(1)) == 0


def test_bytes_that_a_reader_took_do_not_count_as_dropped() -> None:
    """A tail also drops what was read, but no reader missed it, so no count includes it."""
    spool = Spool(Budget(), tail=True, limit_bytes=100_000)
    reader = spool.attach(lambda: True)
    for _ in range(20):
        spool.append(1, b"x" * 50_000)
        assert len(drain(reader)[0][1]) == 50_000
    assert spool.streams()[1][1] == 0
    spool.detach(reader)
    for _ in range(4):
        spool.append(1, b"x" * 50_000)
    assert spool.streams()[1][1] == 100_000
    assert drain(spool.attach(lambda: True, {1: 1_000_000}))[1] == {1: 100_000, 2: 0}


@pytest.mark.parametrize(
    ("memory", "budget"), [(0, 256 * MIB), (16 << 30, 256 * MIB), (1 << 30, 256 * MIB), (128 * MIB, 32 * MIB), (16 * MIB, 8 * MIB)]
)
def test_the_budget_fits_the_memory_of_the_sandbox(memory: int, budget: int) -> None:
    assert spool_budget(SandboxLimits(), memory) == budget


def test_offsets_beyond_the_end_are_the_end() -> None:
    spool = Spool(Budget())
    spool.append(1, b"abc")
    reader = spool.attach(lambda: True, {1: 10**9, 2: -5})
    assert drain(reader) == ({1: b"", 2: b""}, {1: 0, 2: 0})
    spool.append(1, b"d")
    assert reader.take(10) == (1, b"d")


@pytest.mark.parametrize("sizes", [[], [0, 5], [4096], [4095, 2], [100_000], [3] * 2000])
def test_digests_of_streams_of_any_length(sizes: list[int]) -> None:
    pieces = [os.urandom(size) for size in sizes]
    ours, whole = Sha256(), b""
    for piece in pieces:
        ours.update(piece)
        whole += piece
        assert ours.hexdigest() == hashlib.sha256(whole).hexdigest()
    ours.end()
    assert not ours._kept, "only the digest of a stream that ended is kept"
    assert ours.hexdigest() == hashlib.sha256(whole).hexdigest()


def test_a_digest_without_openssl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_hashlib", None)
    assert Sha256(b"short").hexdigest() == hashlib.sha256(b"short").hexdigest()
    real = builtins.__import__

    def refused(name: str, *rest: Any, **named: Any) -> Any:
        if name == "_hashlib":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refused)
    assert Sha256(b"x" * 10_000).hexdigest() == hashlib.sha256(b"x" * 10_000).hexdigest()
