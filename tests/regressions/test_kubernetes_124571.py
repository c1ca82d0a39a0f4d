"""kubernetes #124571: `kubectl exec` cut standard output short and still ended with status 0.

`seq 1 2000000` over a slow connection gave another last line every time. The output must be complete or marked as incomplete. Here: the
same command over a link that splits and cuts, as collected output, as a stream, and with a limit of the client.
"""

from __future__ import annotations

import hashlib

import pytest

from tests.faults.proxy import Weather
from tests.regressions.conftest import Link
from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash"), pytest.mark.timeout(120)]

LAST = 2_000_000
WHOLE = "".join(f"{number}\n" for number in range(1, LAST + 1)).encode()


@pytest.fixture
def weather() -> Weather:
    return Weather(cut_every_bytes=1_500_000, split=True)  # ten cuts of the 15 MB are likely, fewer than two are not


def test_collected_output_is_complete(link: Link) -> None:
    for _ in range(2):
        result = link.sandbox.exec(f"seq 1 {LAST}", timeout=60)
        assert (result.exit_code, result.truncated) == (0, False)
        assert result.stdout_bytes == WHOLE
        assert result.streams[1].seen == len(WHOLE)
    assert link.proxy.faults.cuts >= 2


def test_streamed_output_is_complete(link: Link) -> None:
    with link.sandbox.shell() as shell:
        stream = shell.stream(f"seq 1 {LAST}", timeout=60)
        digest = hashlib.sha256()
        for chunk in stream:
            digest.update(chunk.data)
    assert digest.digest() == hashlib.sha256(WHOLE).digest()
    assert stream.result.exit_code == 0
    assert link.proxy.faults.cuts >= 2


def test_output_that_is_kept_in_part_is_marked_as_truncated(link: Link) -> None:
    result = link.sandbox.exec(f"seq 1 {LAST}", timeout=60, max_output_bytes=1_000_000)
    assert result.truncated
    assert result.stdout_bytes == WHOLE[:1_000_000]
    assert result.streams[1].seen == len(WHOLE), "the count includes all output"
    assert result.streams[1].sha256 == hashlib.sha256(WHOLE).hexdigest()
    assert link.proxy.faults.cuts >= 2
