"""When a new command is watched: after a short delay; on a busy machine after a longer one, unless it has written output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.frames import Exited, Output, Started

from session_agent.agent.process import delayed_watch
from session_agent.agent.process.delayed_watch import BUSY_FACTOR, DELAY_S, DelayedWatch, is_busy
from tests.support.process_channel import client
from tests.support.until import until_async

PATH = os.environ["PATH"]
BUSY = f"0.20 0.18 0.12 {100 * (os.cpu_count() or 1)}/10000 11206\n"
STUBS = {"core": (0, 0)}
"""With any limit a command is started through a stub, as in a sandbox: its exec is confirmed later."""
QUIET = "0.20 0.18 0.12 1/10000 11206\n"


class Clock:
    """An event loop that has only timers, and whose time a test advances."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, step: Callable[..., None], *arguments: Any) -> object:
        self.timers.append((when, step, arguments))
        return object()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and min(self.timers)[0] <= end:
            timer = min(self.timers)
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1](*timer[2])
        self.now = end


class Process:
    """A process to watch, which records when it was watched."""

    def __init__(self, watch: DelayedWatch, clock: Clock) -> None:
        self._watch, self._clock = watch, clock
        self.output = False
        self.began = clock.now
        self.watched_after_s: float | None = None
        watch.add(self)

    def watch(self) -> None:
        self._watch.remove(self)
        self.watched_after_s = self._clock.now - self.began

    def has_output(self) -> bool:
        return self.output


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file with the machine's load, which shows a busy machine at first."""
    file = tmp_path / "loadavg"
    file.write_text(BUSY)
    monkeypatch.setattr(delayed_watch, "LOAD_FILE", str(file))
    return file


def test_on_a_quiet_machine_a_command_is_watched_after_the_delay(clock: Clock, load: Path) -> None:
    load.write_text(QUIET)
    process = Process(DelayedWatch(), clock)
    clock.advance(1.0)
    assert process.watched_after_s == pytest.approx(DELAY_S)


def test_on_a_busy_machine_a_silent_command_is_watched_later(clock: Clock, load: Path) -> None:
    process = Process(DelayedWatch(), clock)
    clock.advance(0.1)
    assert process.watched_after_s is None
    clock.advance(1.0)
    assert process.watched_after_s == pytest.approx(DELAY_S * (1 + BUSY_FACTOR + BUSY_FACTOR**2))


def test_on_a_busy_machine_a_command_with_output_is_watched_after_the_delay(clock: Clock, load: Path) -> None:
    process = Process(DelayedWatch(), clock)
    process.output = True
    clock.advance(1.0)
    assert process.watched_after_s == pytest.approx(DELAY_S)


def test_the_next_command_begins_with_the_longer_delay_until_the_machine_is_quiet(clock: Clock, load: Path) -> None:
    watch = DelayedWatch()
    first = Process(watch, clock)
    clock.advance(0.01)
    watch.remove(first)
    second = Process(watch, clock)
    clock.advance(DELAY_S * (BUSY_FACTOR - 1))
    assert second.watched_after_s is None
    load.write_text(QUIET)
    clock.advance(1.0)
    assert second.watched_after_s == pytest.approx(DELAY_S * BUSY_FACTOR)
    third = Process(watch, clock)
    clock.advance(1.0)
    assert third.watched_after_s == pytest.approx(DELAY_S)


def test_the_delay_is_short_again_when_no_command_waits(clock: Clock, load: Path) -> None:
    watch = DelayedWatch()
    first = Process(watch, clock)
    clock.advance(0.01)
    watch.remove(first)
    clock.advance(1.0)
    load.write_text(QUIET)
    second = Process(watch, clock)
    clock.advance(1.0)
    assert second.watched_after_s == pytest.approx(DELAY_S)


def test_on_a_machine_that_is_quiet_again_no_command_waits_for_its_longer_delay(clock: Clock, load: Path) -> None:
    watch = DelayedWatch()
    first = Process(watch, clock)
    clock.advance(0.01)
    second = Process(watch, clock)
    load.write_text(QUIET)
    clock.advance(1.0)
    assert first.watched_after_s == pytest.approx(DELAY_S * (1 + BUSY_FACTOR))
    assert second.watched_after_s == pytest.approx(DELAY_S * (1 + BUSY_FACTOR) - 0.01)
    assert not clock.timers


def test_short_commands_one_after_another_do_not_keep_the_longer_delay(clock: Clock, load: Path) -> None:
    """Whenever the timer fires, one of them is waiting, and none is due."""
    watch = DelayedWatch()
    first = Process(watch, clock)
    clock.advance(0.05)
    watch.remove(first)
    load.write_text(QUIET)
    for _ in range(1000):
        short = Process(watch, clock)
        clock.advance(0.001)
        watch.remove(short)
    long = Process(watch, clock)
    clock.advance(1.0)
    assert long.watched_after_s is not None
    assert long.watched_after_s < 2 * DELAY_S


def test_a_load_file_that_is_a_named_pipe_does_not_block(load: Path) -> None:
    load.unlink()
    os.mkfifo(load)
    assert not is_busy()
    writer = os.open(load, os.O_RDWR)
    try:
        assert not is_busy()
    finally:
        os.close(writer)


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3 x/y 4", "1 2 3 /", "\0" * 4096])
def test_with_an_invalid_load_file_the_machine_is_not_busy(load: Path, text: str) -> None:
    load.write_text(text)
    assert not is_busy()
    load.unlink()
    assert not is_busy()


def test_the_load_of_this_machine_can_be_read() -> None:
    with open(delayed_watch.LOAD_FILE) as file:
        assert int(file.read().split()[3].split("/")[0]) >= 1
    assert is_busy() in (True, False)


async def test_signals_before_the_exec_is_confirmed_are_sent_at_once(load: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_watch, "DELAY_S", 3600.0)
    async with client(env={"PATH": PATH}, ulimits=STUBS) as sandbox:
        channel = sandbox.command("sleep", "60")
        channel.handler.signal("TERM")
        assert (await channel.outcome()).result["signal"] == "TERM"


async def test_a_live_command_reports_its_start_at_once(load: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_watch, "DELAY_S", 3600.0)
    async with client(env={"PATH": PATH}, ulimits=STUBS) as sandbox:
        channel = sandbox.command("sleep", "60", id="c", live=True)
        await channel.until(lambda: channel.facts)
        assert type(channel.facts[0]) is Started
        again = sandbox.command("sleep", "60", id="c")
        await again.until(lambda: again.facts)
        assert type(again.facts[0]) is Started, "it is the same command"


async def test_on_a_busy_machine_nothing_is_sent_before_the_end(load: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks = 0

    def busy() -> bool:
        nonlocal checks
        checks += 1
        return True

    monkeypatch.setattr(delayed_watch, "is_busy", busy)
    monkeypatch.setattr(delayed_watch, "BUSY_MOST_S", 3600.0)
    monkeypatch.setattr(delayed_watch, "BUSY_FACTOR", 10_000)
    async with client(env={"PATH": PATH}, ulimits=STUBS) as sandbox:
        channel = sandbox.command("sh", "-c", f"while ! test -e {tmp_path}/go; do sleep 0.01; done; echo late")
        await until_async(lambda: checks > 0, deadline_s=60, what="the first delay to end")
        assert channel.facts == []
        (tmp_path / "go").touch()
        await channel.outcome()
        assert [type(fact) for fact in channel.facts] == [Started, Output, Exited]
