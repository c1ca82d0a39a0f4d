"""A spool counts dropped bytes exactly, on the real stack and with both APIs: received + dropped == seen, per stream."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from holdfast import STDERR, STDOUT, InvalidArgumentError

from tests.sdk.support.requirements import STACK

pytestmark = STACK

LINES = 400_000
FLOOD = f"seq 1 {LINES}; seq 1 1000 >&2; : > /tmp/over"
WHOLE = "".join(f"{n}\n" for n in range(1, LINES + 1)).encode()


async def test_a_client_that_does_not_read_gets_the_tail(live: Any) -> None:
    """The command does not wait for its reader; the reader gets the exact number of missed bytes, and where they were."""
    process = await live.start(FLOOD, spool="tail", spool_bytes=100_000)
    assert (await live.exec("until test -e /tmp/over; do sleep 0.05; done", timeout=60)).ok, "the command waited for its reader"
    result = await process.wait(60)
    out, err = result.streams[STDOUT], result.streams[STDERR]
    assert (result.exit_code, result.truncated) == (0, True)
    assert out.seen == len(WHOLE)
    assert out.sha256 == hashlib.sha256(WHOLE).hexdigest()
    assert out.dropped > 0
    assert len(result.stdout_bytes) + out.dropped == out.seen
    assert len(result.stderr_bytes) + err.dropped == err.seen == len("".join(f"{n}\n" for n in range(1, 1001)))
    assert WHOLE.endswith(result.stdout_bytes[-25_000:]), "the tail is sent in pieces of up to 64 KiB"


async def test_a_late_follower_gets_the_count_of_dropped_bytes(live: Any) -> None:
    process = await live.start(FLOOD, spool="tail", spool_bytes=65_536, detached=True)
    await process.detach()
    assert (await live.exec("until test -e /tmp/over; do sleep 0.05; done", timeout=60)).ok
    result = await (await live.follow(process.command_id)).wait(60)
    assert result.truncated
    for number, kept in ((STDOUT, result.stdout_bytes), (STDERR, result.stderr_bytes)):
        count = result.streams[number]
        assert len(kept) + count.dropped == count.seen
    assert len(result.stdout_bytes) + len(result.stderr_bytes) <= 65_536 + 16_384


async def test_a_client_that_reads_in_time_misses_no_output(live: Any) -> None:
    """Bytes that were read before the spool dropped them are not lost."""
    pace = "for i in $(seq 40); do head -c 5000 /dev/zero; sleep 0.01; done"
    result = await live.exec(pace, spool="tail", spool_bytes=60_000)
    assert (len(result.stdout_bytes), result.streams[STDOUT].dropped, result.truncated) == (200_000, 0, False)


async def test_a_small_spool_that_blocks_loses_no_output(live: Any) -> None:
    result = await live.exec(f"seq 1 {LINES}", spool_bytes=4096)
    assert (result.stdout_bytes == WHOLE, result.streams[STDOUT].dropped, result.truncated) == (True, 0, False)


@pytest.mark.parametrize("spool_bytes", [0, -1, 1 << 40, True, "1"])
async def test_bad_sizes(live: Any, spool_bytes: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        await live.exec("true", spool_bytes=spool_bytes)
