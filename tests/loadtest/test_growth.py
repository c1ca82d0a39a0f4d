"""The rule for growth in a soak: series with and without a trend, and a process with a leak."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.footprint import Footprint, Reading
from loadtest.growth import Sample, broken, judged, load, table
from loadtest.watch import watched
from tests.support.until import until

MIB = 1 << 20
LEAKY = """
import os, sys, threading
kept = []
for line in sys.stdin:
    if line == "memory\\n":
        kept.append(os.urandom(1 << 20))
    elif line == "descriptors\\n":
        kept.append(open("/dev/null"))
    elif line == "threads\\n":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("done", flush=True)
"""


def series(value: Callable[[float], float], measure: str = "memory_bytes", process: str = "gateway", seconds: int = 1800) -> list[Sample]:
    """One sample every five seconds."""
    return [(float(at), process, 7, measure, value(float(at))) for at in range(5, seconds, 5)]


RANDOM = random.Random(4)


def noise() -> float:
    return RANDOM.uniform(-5 * MIB, 5 * MIB)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("nothing", lambda _: 50 * MIB),
        ("noise", lambda _: 50 * MIB + noise()),
        ("a warm-up", lambda at: 50 * MIB + min(at, 500) * MIB / 10),
        ("one step", lambda at: 50 * MIB + (10 * MIB if at > 1300 else 0)),
        ("a saw", lambda at: 50 * MIB + (at % 300) * MIB / 10),
        ("a fall", lambda at: 90 * MIB - at * MIB / 100),
        ("less than the allowance", lambda at: 50 * MIB + at * MIB / 1000),
    ],
)
def test_series_without_a_trend_are_not_growth(what: str, value: Callable[[float], float]) -> None:
    assert broken(series(value)) == [], what


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("a line", lambda at: 50 * MIB + at * MIB / 100),
        ("a line in noise", lambda at: 50 * MIB + at * MIB / 100 + noise()),
        ("many steps", lambda at: 50 * MIB + at // 100 * MIB),
        ("after a long quiet", lambda at: 50 * MIB + max(0, at - 900) * MIB / 50),
    ],
)
def test_series_with_a_trend_are_growth(what: str, value: Callable[[float], float]) -> None:
    [sentence] = broken(series(value))
    assert sentence.startswith("gateway (7): memory_bytes rose by "), what
    assert table(series(value)).endswith("grows")


def test_counts_are_judged_by_their_own_allowances() -> None:
    assert broken(series(lambda at: 5 + at // 300, "threads"))
    assert broken(series(lambda at: 5 + at // 300, "descriptors")) == []
    assert broken(series(lambda at: 0 if at < 1000 else 4, "descriptors")) == []
    assert broken(series(lambda at: 30 + at // 100, "descriptors"))


def test_the_memory_of_redis_may_grow_with_the_number_of_creates() -> None:
    grown = series(lambda at: 5 * MIB + at * 4096, process="redis")
    work = series(lambda at: at * 5, "creates_total")
    assert len(broken(grown)) == 1
    assert broken([*grown, *work]) == []
    assert len(broken([*series(lambda at: 5 * MIB + at * 4096), *work])) == 1, "the memory of other processes may not"
    assert "creates" not in table([*grown, *work])


def test_the_memory_of_locust_may_grow_with_its_counts_of_each_second() -> None:
    for bytes_per_s, sentences in ((6000, 0), (30_000, 1)):
        assert len(broken(series(lambda at, rate=bytes_per_s: 50 * MIB + at * rate, process="locust"))) == sentences  # type: ignore[misc]
    assert len(broken(series(lambda at: 50 * MIB + at * 6000))) == 1, "the memory of other processes may not"


def test_a_restarted_process_is_reported() -> None:
    later = [(at, name, 8, measure, value) for at, name, _, measure, value in series(lambda _: 1.0)]
    assert "gateway was started again: it had 2 process ids" in broken([*series(lambda _: 1.0), *later])


def test_agents_are_judged_only_if_they_run_to_the_end() -> None:
    for ended, sentences in ((1800, 1), (1500, 0)):
        grown = series(lambda at: at * MIB, process="agent", seconds=ended)
        assert len(broken([*grown, *series(lambda _: 1.0)])) == sentences


def test_a_short_run_is_not_judged() -> None:
    assert judged(series(lambda at: at * MIB, seconds=100)) == []
    assert "too short to judge growth" in broken(series(lambda at: at * MIB, seconds=100))[0]


@pytest.fixture
def leaky(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """A folder like a stack's with one process, and a function that makes the process leak one memory block, descriptor or thread."""
    command = [sys.executable, "-c", LEAKY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "gateway.pid").write_text(str(process.pid))
        stdin, stdout = process.stdin, process.stdout

        def leak(what: str) -> None:
            stdin.write(f"{what}\n")
            stdin.flush()
            assert stdout.readline() == "done\n"

        yield tmp_path, leak
        process.stdin.close()


@pytest.mark.parametrize("what", ["memory", "descriptors", "threads", "nothing"])
def test_a_process_that_leaks_is_found(leaky: tuple[Path, Callable[[str], None]], what: str) -> None:
    data, leak = leaky
    footprint = Footprint(data, {}, {})
    samples: list[Sample] = []
    for number in range(45):
        leak(what)
        samples += [(float(number), each.process, each.pid, each.measure, each.value) for each in footprint.read()]
    found = broken(samples)
    if what == "nothing":
        assert found == []
    else:
        assert [sentence.split()[2].removesuffix("_bytes") for sentence in found] == [what]


def test_the_file_of_a_watch_contains_its_samples(leaky: tuple[Path, Callable[[str], None]]) -> None:
    data, _ = leaky
    with watched(Footprint(data, {}, {}), data / "footprint.csv", 0.01) as samples:
        until(lambda: len(samples) > 40, deadline_s=60, what="some samples")
    assert load(data / "footprint.csv") == samples
    assert {measure for _, process, _, measure, _ in samples if process == "gateway"} == {
        "memory_bytes",
        "descriptors",
        "threads",
        "mounts",
    }


def test_an_error_of_the_sampler_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_read(_: Footprint) -> list[Reading]:
        raise ValueError("a format that is not known")

    monkeypatch.setattr(Footprint, "read", broken_read)
    with pytest.raises(ValueError, match="not known"), watched(Footprint(tmp_path, {}, {}), tmp_path / "footprint.csv", 0.01):
        pass


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for name in ("binary", "other.csv", "nothing", "."):
        command = [sys.executable, "-m", "loadtest.growth", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert "this is not the footprint.csv of a soak" in done.stderr
        assert "Traceback" not in done.stderr
