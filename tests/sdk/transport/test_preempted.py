"""A thread that is preempted between any two lines of a wait misses no event that happens in the meantime.

The waiting code is traced, and a step of another thread runs before its n-th line, for every n. No clock is involved.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import pytest
from holdfast._options import Options
from holdfast._sync.process import Process
from holdfast._sync.transfers import Transfer
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.sinks import CommandSink, TransferSink
from holdfast._transport.threads.driver import SessionDriver
from holdfast._transport.threads.events import Event
from holdfast_wire.frames import Closed, Exited, Output, Started

from tests.support.until import until

PATIENCE_S = 60.0
ENDED = {"exit_code": 0, "streams": {}}


class Session:
    """A session whose credit the test sets."""

    def __init__(self) -> None:
        self.credit = 0
        self.sent = 0

    def consume(self, number: int, size: int) -> None: ...

    def room(self, number: int) -> int:
        return self.credit

    def send(self, item: Any) -> None:
        size = len(getattr(item, "data", b""))
        self.credit -= size
        self.sent += size


class WatchedEvent(Event):
    """An event that calls ``about_to_wait`` before it blocks, and whose waits have a time limit."""

    about_to_wait: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self._is_set:
            WatchedEvent.about_to_wait()
            assert super().wait(PATIENCE_S), "it waits for an event that has already happened"
        return True


class Preempted:
    """Runs ``step`` once: before the line of the synchronous SDK with that number, or when the code is about to block."""

    def __init__(self, driver: SessionDriver, line: int, step: Callable[[], None]) -> None:
        self.driver, self.line, self.step, self.lines, self.happened = driver, line, step, 0, False
        WatchedEvent.about_to_wait = self.run_step

    def run_step(self) -> None:
        if not self.happened:
            self.happened = True
            self.driver.perform(self.step)

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if "/_sync/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.line:
                self.run_step()
        return self.trace

    def run(self, step: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            return step()
        finally:
            sys.settrace(before)


def driver_of() -> SessionDriver:
    WatchedEvent.about_to_wait = staticmethod(lambda: None)
    driver = SessionDriver(Options(url="http://127.0.0.1:1", api_key="key"), "sb")
    driver.event = lambda: WatchedEvent(driver.check_here)  # type: ignore[method-assign]
    return driver


def call_of(driver: SessionDriver) -> Call:
    sink = CommandSink(Session(), driver.event)  # type: ignore[arg-type]
    sink.call = call = Call(sink, "c", 1 << 20, new_event=driver.event, collecting=False)
    sink.fact(Started(1, "c", {}))
    return call


def transfer_of(driver: SessionDriver) -> Transfer:
    transfer = Transfer.__new__(Transfer)
    transfer._driver = driver
    transfer._endless = True  # waits without a time limit
    transfer._sink = TransferSink(Session(), driver.event)  # type: ignore[arg-type]
    return transfer


def at_each_line(begin: Callable[[int], bool]) -> None:
    """Call ``begin`` with each line's number, until it returns False because there are no more lines."""
    line = 1
    while begin(line):
        line += 1
    assert line > 5, "the code is not traced"


def test_the_last_output_is_delivered_before_the_end() -> None:
    def once(line: int) -> bool:
        driver = driver_of()
        call = call_of(driver)
        sink = call.sink

        def end() -> None:
            sink.fact(Output(1, 1, b"tail"))
            sink.fact(Exited(1, "c", {"exit_code": 0, "streams": {1: {"seen": 8}}}))

        sink.fact(Output(1, 1, b"head"))
        preempted = Preempted(driver, line, end)
        process = Process(driver, call)
        assert b"".join(chunk.data for chunk in preempted.run(lambda: list(process))) == b"headtail", line
        return preempted.lines >= line

    at_each_line(once)


def test_the_last_bytes_of_a_transfer_are_delivered_before_its_end() -> None:
    def once(line: int) -> bool:
        driver = driver_of()
        transfer = transfer_of(driver)
        sink = transfer._sink

        def end() -> None:
            sink.fact(Output(1, 1, b"tail"))
            sink.fact(Output(1, 1, b""))
            sink.fact(Closed(1, {}))

        sink.fact(Output(1, 1, b"head"))
        preempted = Preempted(driver, line, end)
        assert b"".join(preempted.run(lambda: list(iter(transfer.read, b"")))) == b"headtail", line
        return preempted.lines >= line

    at_each_line(once)


def test_the_end_of_a_transfer_is_not_missed() -> None:
    def once(line: int) -> bool:
        driver = driver_of()
        transfer = transfer_of(driver)

        def end() -> None:
            transfer._sink.fact(Output(1, 1, b"unread"))
            transfer._sink.fact(Closed(1, {"size": 6}))

        preempted = Preempted(driver, line, end)
        assert preempted.run(transfer.closed) == {"size": 6}, line
        return preempted.lines >= line

    at_each_line(once)


def test_credit_that_arrives_at_any_time_is_used() -> None:
    def once(line: int) -> bool:
        driver = driver_of()
        transfer = transfer_of(driver)
        sink = transfer._sink
        session: Any = sink.session
        session.credit = 3

        def grant() -> None:
            session.credit += 10
            sink.writable()

        preempted = Preempted(driver, line, grant)
        preempted.run(lambda: transfer.write(b"0123456789"))
        assert session.sent == 10, line
        return preempted.lines >= line

    at_each_line(once)


@pytest.mark.parametrize("what", ["wait", "read"])
def test_two_threads_that_wait_for_one_end_are_both_woken(what: str) -> None:
    interval = sys.getswitchinterval()

    def once(line: int) -> bool:
        driver = driver_of()
        call = call_of(driver)
        process = Process(driver, call)
        other = threading.Thread(target=getattr(process, what), daemon=True)
        other.start()
        changed: Any = call.changed
        until(lambda: changed._waiters, deadline_s=60, what="the other thread to wait")
        preempted = Preempted(driver, line, lambda: call.sink.fact(Exited(1, "c", ENDED)))
        preempted.run(getattr(process, what))
        other.join(PATIENCE_S)
        assert not other.is_alive(), line
        return preempted.lines >= line

    try:
        sys.setswitchinterval(1.0)  # the other thread is awake, but runs late
        at_each_line(once)
    finally:
        sys.setswitchinterval(interval)


async def test_two_concurrent_reads_share_the_output(sandbox: Any) -> None:
    process = await sandbox.start("cat")
    readers = [asyncio.create_task(process.read()) for _ in range(2)]
    await process.write(b"x")
    await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
    await process.close_stdin()
    chunks = await asyncio.wait_for(asyncio.gather(*readers), 60)
    assert {chunk and chunk.data for chunk in chunks} == {b"x", None}
