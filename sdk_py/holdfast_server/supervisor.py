"""Starts the processes of a Procfile, restarts what dies, ends all of it in reverse order.

Owns the life of each process: its group, its output pipe, its pid file, the back-off before it is started again
(0.1 s doubling to 5 s, forgotten after 10 s of life) and the order of shutdown (SIGTERM, a bounded wait, SIGKILL, one
process after the other). HOLDFAST_FAILED_STARTS is how often in a row it exited by itself, soon after its start. Knows nothing of
what the processes do, but for the optional URL whose 200 means ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_server import subreaper
from holdfast_server.output import Lines, Screen
from holdfast_server.procfile import Entry

_BACKOFF_FIRST_S = 0.1
_BACKOFF_MOST_S = 5.0
_STEADY_AFTER_S = 10.0
_READ_BYTES = 64 * 1024
_AGAIN_S = 0.1
"""One request may arrive twice: from its sender and from make, or once for each thread of a subreaper that is killed."""
_REPORT_AFTER_S = 3.0
"""After this the parts that are not ready are listed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `stop_grace_s` bounds the wait for each process between SIGTERM and SIGKILL."""

    entries: Sequence[Entry]
    environment: dict[str, str]
    directory: Path
    logs: Path
    pids: Path
    ready_address: tuple[str, int] | None
    stop_grace_s: float = 10.0


class _Member:
    """One entry and its present process."""

    def __init__(self, entry: Entry, lines: Lines) -> None:
        self.entry = entry
        self.lines = lines
        self.process: subprocess.Popen[bytes] | None = None
        self.output: int | None = None
        self.started_at = 0.0
        self.backoff_s = _BACKOFF_FIRST_S
        self.failed_starts = 0
        self.again: asyncio.TimerHandle | None = None
        self.ended = asyncio.Event()


class Supervisor:
    """Runs a plan until a signal asks it to stop. One per process: it reaps every child."""

    def __init__(self, plan: Plan, screen: Screen) -> None:
        self._plan = plan
        self._screen = screen
        self._members = [_Member(entry, Lines(entry.name, screen, plan.logs / f"{entry.name}.log")) for entry in plan.entries]
        self._stop = asyncio.Event()
        self._hurried = False
        self._clean = True
        self._since = time.monotonic()
        self._requested_at = 0.0

    async def run(self) -> int:
        """Return 0 once a signal has ended everything in order, 1 when something had to be killed."""
        loop = asyncio.get_running_loop()
        for number in subreaper.stop_signals():
            loop.add_signal_handler(number, self._stop_requested)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for member in self._members:
            self._start(member)
        watch = asyncio.create_task(self._announce_ready(), name="ready")
        await self._stop.wait()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        return await self._end_all()

    def _stop_requested(self) -> None:
        if self._stop.is_set():
            if time.monotonic() - self._requested_at >= _AGAIN_S:
                self._hurried = True
                for member in self._members:
                    self._kill(member)
            return
        self._requested_at = time.monotonic()
        self._screen.note("up: stopping (once more: kill at once)")
        self._stop.set()

    def _start(self, member: _Member) -> None:
        member.again = None
        parent = os.getpid()
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        try:
            member.process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {member.entry.command}"],
                cwd=self._plan.directory,
                env={**self._plan.environment, "HOLDFAST_FAILED_STARTS": str(member.failed_starts)},
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                # One prctl call, no locks: safe beside the screen's thread. It covers a kill -9 of both our processes.
                preexec_fn=lambda: subreaper.die_with_parent(signal.SIGTERM, parent),  # noqa: PLW1509
            )
        finally:
            os.close(writer)
        member.output = reader
        member.started_at = time.monotonic()
        member.ended.clear()
        asyncio.get_running_loop().add_reader(reader, self._read, member, reader)
        try:
            (self._plan.pids / f"{member.entry.name}.pid").write_text(f"{member.process.pid}\n")
        except OSError as error:
            self._screen.show(member.entry.name, f"its pid file cannot be written: {error.strerror}".encode())
        self._screen.show(member.entry.name, f"started, process {member.process.pid}".encode())

    def _read(self, member: _Member, reader: int) -> None:
        try:
            data = os.read(reader, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            member.lines.feed(data)
        else:
            self._close_output(member, reader)

    def _drain(self, member: _Member) -> None:
        """Read what was written before the end; a stray holder of the pipe must not keep us waiting."""
        for _ in range(64):
            if member.output is None:
                return
            self._read(member, member.output)
        if member.output is not None:
            self._close_output(member, member.output)

    def _close_output(self, member: _Member, reader: int) -> None:
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        if member.output == reader:
            member.output = None

    def _reap(self) -> None:
        by_pid = {member.process.pid: member for member in self._members if member.process is not None}
        for pid, status in subreaper.reap():
            member = by_pid.get(pid)
            if member is not None:
                self._ended(member, os.waitstatus_to_exitcode(status))

    def _ended(self, member: _Member, code: int) -> None:
        assert member.process is not None
        pid = member.process.pid
        member.process.returncode = code
        member.process = None
        _signal_group(pid, signal.SIGKILL)  # its helpers do not outlive it
        self._drain(member)
        member.lines.end()
        (self._plan.pids / f"{member.entry.name}.pid").unlink(missing_ok=True)
        member.ended.set()
        how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        if self._stop.is_set():
            self._screen.show(member.entry.name, f"ended ({how})".encode())
            return
        steady = time.monotonic() - member.started_at >= _STEADY_AFTER_S
        if steady:
            member.backoff_s = _BACKOFF_FIRST_S
        member.failed_starts = member.failed_starts + 1 if code > 0 and not steady else 0
        delay_s = member.backoff_s
        member.backoff_s = min(delay_s * 2, _BACKOFF_MOST_S)
        self._screen.show(member.entry.name, f"died ({how}), starts again in {delay_s:g} s".encode())
        member.again = asyncio.get_running_loop().call_later(delay_s, self._start, member)

    async def _end_all(self) -> int:
        for member in self._members:
            if member.again is not None:
                member.again.cancel()
        for member in reversed(self._members):
            await self._end(member)
            member.lines.close()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        subreaper.reap()
        stray = subreaper.descendants(os.getpid())
        if stray:
            self._screen.note(f"up: killing {len(stray)} processes that were left behind")
        left = subreaper.kill_descendants()
        self._screen.note("up: everything has ended" if not left else f"up: these processes did not end: {left}")
        return 0 if self._clean and not left else 1

    async def _end(self, member: _Member) -> None:
        if not self._hurried:
            if member.process is not None:
                _signal_group(member.process.pid, signal.SIGTERM)
                await self._until_ended(member)
            self._kill(member)
        await self._until_ended(member)

    async def _until_ended(self, member: _Member) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._plan.stop_grace_s):
                await member.ended.wait()

    def _kill(self, member: _Member) -> None:
        if member.process is not None:
            self._clean = False
            self._screen.show(member.entry.name, b"does not end: killed")
            _signal_group(member.process.pid, signal.SIGKILL)

    async def _announce_ready(self) -> None:
        if self._plan.ready_address is None:
            return
        host, port = self._plan.ready_address
        reported: list[str] = []
        while (away := await _unready(host, port)) is not None:
            if away and away != reported and time.monotonic() - self._since > _REPORT_AFTER_S:
                reported = away
                self._screen.note("\n".join(["up: not ready yet:", *(f"    {line}" for line in away)]))
            await asyncio.sleep(0.05)
        self._screen.note(f"up: ready after {time.monotonic() - self._since:.1f} s: http://{host}:{port}")


async def _unready(host: str, port: int) -> list[str] | None:
    """None when everything is there; else what the gateway reports as unavailable, nothing where it does not answer."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET /readyz HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
        if b" 200 " in head.split(b"\r\n")[0]:
            return None
        return [f"{part}: {why}" for part, why in json.loads(body)["unavailable"].items()]
    except (OSError, TimeoutError, ValueError, KeyError, AttributeError, TypeError):
        return []


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
