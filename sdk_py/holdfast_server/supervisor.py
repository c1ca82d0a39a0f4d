"""Starts the processes of a Procfile, restarts those that end, and stops all of them in reverse order.

Owns the life of each process: its group, its output pipe, its pid file, the back-off before it is started again (0.1 s doubling to 5 s,
forgotten after 10 s of life) and the order of shutdown (SIGTERM, a bounded wait, SIGKILL, one process after the other). The variable
HOLDFAST_FAILED_STARTS holds how many times in a row a process has exited soon after its start. Does not know what the processes do, except
for an optional URL whose status 200 means that the stack is ready, and exit status 78 (settings that cannot be used), which ends all
processes if the stack was not ready yet.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_server import subreaper
from holdfast_server.output import Lines, Screen
from holdfast_server.procfile import Entry

_BACKOFF_FIRST_S = 0.1
_BACKOFF_MOST_S = 5.0
_STEADY_AFTER_S = 10.0
_DRAIN_S = 0.5
"""How long output is read after the end of a process, because another process may keep its pipe open."""
_AGAIN_S = 0.1
"""A signal within this time is counted once, because it may arrive twice: from its sender and from make, or once for each thread of a
subreaper that is killed."""
_REPORT_AFTER_S = 3.0
"""After this time the parts that are not ready are listed."""
_LONG_S = 3600.0
_ANSWER_S = 2.0
_BAD_SETTINGS = 78
"""EX_CONFIG: another start would read the same settings. After the stack was ready, files may have changed, and a restart may help."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `stop_grace_s` bounds the wait for each process between SIGTERM and SIGKILL."""

    entries: Sequence[Entry]
    environment: dict[str, str]
    directory: Path
    logs: Path
    pids: Path
    ready_url: str | None
    stop_grace_s: float = 10.0
    key: str = ""
    """An API key of the stack: with it a link to the page is printed that signs in once."""


class _Member:
    """One entry and its current process; if there is none, the time at which the next one is started."""

    def __init__(self, entry: Entry, lines: Lines, pids: Path) -> None:
        self.entry = entry
        self.lines = lines
        self.pid_file = pids / f"{entry.name}.pid"
        self.process: subprocess.Popen[bytes] | None = None
        self.reader: threading.Thread | None = None
        self.started_at = 0.0
        self.due = 0.0
        self.backoff_s = _BACKOFF_FIRST_S
        self.failed_starts = 0


class Supervisor:
    """Runs a plan until a signal asks it to stop. One per process: it reaps every child, and the stop signals are blocked."""

    def __init__(self, plan: Plan, screen: Screen) -> None:
        self._plan = plan
        self._screen = screen
        self._members = [_Member(entry, Lines(entry.name, screen, plan.logs / f"{entry.name}.log"), plan.pids) for entry in plan.entries]
        self._signals = subreaper.stop_signals() | {signal.SIGCHLD}
        self._stopping = threading.Event()
        self._requested_at = 0.0
        self._hurried = False
        self._clean = True
        self._ready = threading.Event()
        self._refused = False

    def run(self) -> int:
        """Run until a signal. Returns 0 after an orderly end, 1 if a process had to be killed, 2 if settings cannot be used."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        if self._plan.ready_url is not None:
            threading.Thread(target=self._announce_ready, args=(self._plan.ready_url,), name="ready", daemon=True).start()
        while not self._stopping.is_set():
            now = time.monotonic()
            for member in self._members:
                if member.process is None and member.due <= now:
                    self._start(member)
            due = min((member.due for member in self._members if member.process is None), default=math.inf)
            self._handle_signal(due - time.monotonic())
        for member in reversed(self._members):
            self._end(member)
        return self._end_strays()

    def _handle_signal(self, timeout_s: float) -> None:
        """Handle the next signal, or return after that time."""
        found = subreaper.next_signal(self._signals, min(max(timeout_s, 0.0), _LONG_S))
        if found == signal.SIGCHLD:
            by_pid = {member.process.pid: member for member in self._members if member.process is not None}
            for pid, status in subreaper.reap():
                if pid in by_pid:
                    self._ended(by_pid[pid], os.waitstatus_to_exitcode(status))
        elif found is not None and not self._stopping.is_set():
            self._requested_at = time.monotonic()
            self._screen.note("up: stopping (a second Ctrl-C kills all processes at once)")
            self._stopping.set()
        elif found is not None and time.monotonic() - self._requested_at >= _AGAIN_S:
            self._hurried = True

    def _start(self, member: _Member) -> None:
        parent = os.getpid()

        def prepare() -> None:
            # Two system calls, no locks: safe beside the threads. The first covers a kill -9 of both our processes.
            subreaper.die_with_parent(signal.SIGTERM, parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)

        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {member.entry.command}"],
                cwd=self._plan.directory,
                env={**self._plan.environment, "HOLDFAST_FAILED_STARTS": str(member.failed_starts)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509
            )
        except OSError as error:  # no memory, descriptor or process is left for it: the others go on
            self._start_later(member, f"cannot be started ({error.strerror})", member.backoff_s)
            return
        assert process.stdout is not None
        member.process = process
        member.started_at = time.monotonic()
        try:
            member.pid_file.write_text(f"{process.pid}\n")
        except OSError as error:
            member.lines.show(f"the file with its process id cannot be written: {error.strerror}")
        member.lines.show(f"started, process {process.pid}")
        member.reader = threading.Thread(target=member.lines.copy, args=(process.stdout,), name=member.entry.name, daemon=True)
        member.reader.start()

    def _ended(self, member: _Member, code: int) -> None:
        assert member.process is not None
        assert member.reader is not None
        member.process.returncode = code
        _signal_group(member.process.pid, signal.SIGKILL)  # with its children
        member.process = None
        member.reader.join(_DRAIN_S)
        member.pid_file.unlink(missing_ok=True)
        how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        if code == _BAD_SETTINGS and self._plan.ready_url is not None and not self._ready.is_set() and not self._stopping.is_set():
            self._screen.note(f"up: stopping: {member.entry.name} cannot use its settings; its line above names the cause")
            self._refused = True
            self._stopping.set()
        if self._stopping.is_set():
            member.lines.show(f"ended ({how})")
            return
        steady = time.monotonic() - member.started_at >= _STEADY_AFTER_S
        member.failed_starts = member.failed_starts + 1 if code > 0 and not steady else 0
        self._start_later(member, f"died ({how})", _BACKOFF_FIRST_S if steady else member.backoff_s)

    def _start_later(self, member: _Member, why: str, delay_s: float) -> None:
        member.due, member.backoff_s = time.monotonic() + delay_s, min(delay_s * 2, _BACKOFF_MOST_S)
        member.lines.show(f"{why}, starts again in {delay_s:g} s")

    def _end(self, member: _Member) -> None:
        if member.process is not None and not self._hurried:
            _signal_group(member.process.pid, signal.SIGTERM)
            self._wait_for(member, lambda: self._hurried)
        if member.process is not None:
            self._clean = False
            member.lines.show("does not end: killed")
            _signal_group(member.process.pid, signal.SIGKILL)
            self._wait_for(member, lambda: False)
        member.lines.close()

    def _wait_for(self, member: _Member, given_up: Callable[[], bool]) -> None:
        end = time.monotonic() + self._plan.stop_grace_s
        while member.process is not None and not given_up() and (left_s := end - time.monotonic()) > 0:
            self._handle_signal(left_s)

    def _end_strays(self) -> int:
        subreaper.reap()
        stray = subreaper.descendants(os.getpid())
        if stray:
            self._screen.note(f"up: killing {len(stray)} processes that were left behind")
        left = subreaper.kill_descendants()
        self._screen.note("up: all processes have ended" if not left else f"up: these processes did not end: {left}")
        return 2 if self._refused else 0 if self._clean and not left else 1

    def _announce_ready(self, url: str) -> None:
        since, reported = time.monotonic(), None
        while (missing := missing_parts(url)) is not None:
            if missing and missing != reported and time.monotonic() - since > _REPORT_AFTER_S:
                reported = missing
                self._screen.note("\n".join(["up: not ready yet:", *(f"    {line}" for line in missing)]))
            if self._stopping.wait(0.05):
                return
        self._ready.set()
        self._screen.note(f"up: ready after {time.monotonic() - since:.1f} s: {url}")
        link = page_link(url, self._plan.key) if self._plan.key else ""
        if link:
            self._screen.note(f"up: the page, by a link that signs in once within an hour:\n    {link}")


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def page_link(url: str, key: str) -> str:
    """A link that signs a browser in to the page; "" if the gateway makes none."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_ANSWER_S)
    try:
        connection.request("POST", "/ui/links", headers={"X-API-Key": key})
        answer = connection.getresponse()
        return str(json.loads(answer.read())["url"]) if answer.status == 201 else ""
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    finally:
        connection.close()


def missing_parts(url: str) -> list[str] | None:
    """None if the stack is ready; else the parts that the gateway reports as unavailable, or an empty list if it does not answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_ANSWER_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        if answer.status == 200:
            return None
        return [f"{part}: {why}" for part, why in json.loads(answer.read())["unavailable"].items()]
    except (OSError, http.client.HTTPException, ValueError, KeyError, AttributeError, TypeError):
        return []
    finally:
        connection.close()
