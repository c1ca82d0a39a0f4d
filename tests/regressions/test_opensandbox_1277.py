"""OpenSandbox #1277: the stream of a command ended without its proper end, and strict clients discarded the finished command.

Its `RunCommand` sleeps after the last event and lets the connection close without the terminating chunk; `httpx` raises, and 17 of 453
rollouts were lost to it. Here: 453 commands over a link whose connections are cut every few thousand bytes, often just after the result
was sent; each gives one result.
"""

from __future__ import annotations

import pytest

from tests.faults.proxy import Weather
from tests.regressions.conftest import Link
from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash"), pytest.mark.timeout(120)]

ROLLOUTS = 453


@pytest.fixture
def weather() -> Weather:
    return Weather(cut_every_bytes=8000, lose=0.02)


def test_every_one_of_453_results_arrives(link: Link) -> None:
    with link.fresh().shell(name="rollouts") as shell:
        for number in range(ROLLOUTS):
            result = shell.run(f"echo {number} >> /tmp/rollouts; (exit {number % 7})", timeout=30)
            assert result.exit_code == number % 7
            assert not result.truncated
        ran = shell.run("cat /tmp/rollouts; rm /tmp/rollouts", timeout=30).stdout.split()
    assert ran == [str(number) for number in range(ROLLOUTS)], "each ran once"
    assert link.proxy.faults.cuts >= 20, "too few cuts to prove anything"
