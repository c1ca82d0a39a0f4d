"""When a new command is watched: after a short delay, unless it ends before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from holdfast_wire.frames import Started

from session_agent.agent.process import delayed_watch
from session_agent.agent.process.delayed_watch import DELAY_S, DelayedWatch
from tests.support.process_channel import client

PATH = os.environ["PATH"]
STUBS = {"core": (0, 0)}
"""With any limit a command is started through a stub, as in a sandbox: its exec is confirmed later."""


class Timer:
    """A timer of the clock, which can be cancelled."""

    def __init__(self, clock: Clock, timer: tuple[float, Callable[..., None], tuple[Any, ...]]) -> None:
        self._clock, self._timer = clock, timer

    def cancel(self) -> None:
        self._clock.timers.remove(self._timer)


class Clock:
    """An event loop that has only timers, and whose time a test advances."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, step: Callable[..., None], *arguments: Any) -> Timer:
        self.timers.append((when, step, arguments))
        return Timer(self, self.timers[-1])

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
        self.began = clock.now
        self.watched_after_s: float | None = None
        watch.add(self)

    def watch(self) -> None:
        self._watch.remove(self)
        self.watched_after_s = self._clock.now - self.began


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


def test_a_command_is_watched_after_the_delay(clock: Clock) -> None:
    process = Process(DelayedWatch(), clock)
    clock.advance(1.0)
    assert process.watched_after_s == pytest.approx(DELAY_S)


def test_a_command_that_ends_before_is_never_watched(clock: Clock) -> None:
    watch = DelayedWatch()
    process = Process(watch, clock)
    clock.advance(DELAY_S / 2)
    watch.remove(process)
    clock.advance(1.0)
    assert process.watched_after_s is None
    assert not clock.timers


def test_each_of_several_commands_has_its_own_delay(clock: Clock) -> None:
    watch = DelayedWatch()
    first = Process(watch, clock)
    clock.advance(DELAY_S / 2)
    second = Process(watch, clock)
    clock.advance(1.0)
    assert first.watched_after_s == pytest.approx(DELAY_S)
    assert second.watched_after_s == pytest.approx(DELAY_S)


def test_short_commands_do_not_delay_a_longer_one(clock: Clock) -> None:
    """Whenever the timer fires, one of them is waiting, and none is due."""
    watch = DelayedWatch()
    for _ in range(1000):
        short = Process(watch, clock)
        clock.advance(0.001)
        watch.remove(short)
    longer = Process(watch, clock)
    clock.advance(1.0)
    assert longer.watched_after_s == pytest.approx(DELAY_S)


def test_after_cancel_none_is_watched_and_new_ones_are(clock: Clock) -> None:
    watch = DelayedWatch()
    process = Process(watch, clock)
    watch.cancel()
    assert not clock.timers
    clock.advance(1.0)
    assert process.watched_after_s is None
    later = Process(watch, clock)
    clock.advance(1.0)
    assert later.watched_after_s == pytest.approx(DELAY_S)


async def test_signals_before_the_exec_is_confirmed_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_watch, "DELAY_S", 3600.0)
    async with client(env={"PATH": PATH}, ulimits=STUBS) as sandbox:
        channel = sandbox.command("sleep", "60")
        channel.handler.signal("TERM")
        assert (await channel.outcome()).result["signal"] == "TERM"


async def test_a_live_command_reports_its_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_watch, "DELAY_S", 3600.0)
    async with client(env={"PATH": PATH}, ulimits=STUBS) as sandbox:
        channel = sandbox.command("sleep", "60", id="c", live=True)
        await channel.until(lambda: channel.facts)
        assert type(channel.facts[0]) is Started
        again = sandbox.command("sleep", "60", id="c")
        await again.until(lambda: again.facts)
        assert type(again.facts[0]) is Started, "it is the same command"
