"""Sessions under load: each appends its commands' ids to one file of its sandbox and records the outcome of each command.

Owns the appending loop, the classification of errors as "failed" or "unknown", and the timing of resumes. Used by every scenario that
ends with the history checker, in this process and in ``worker``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from holdfast import AsyncSandbox, AsyncShell, HoldfastError, SandboxLostError, SandboxNotFoundError

from .history import Reported

HISTORY = "/tmp/history"
HANG_S = 150.0
"""A command without an outcome after this time hangs, which is a violation; the SDK gives up a lost connection after 120 s."""


class Notes(Protocol):
    """Where requests and outcomes are recorded: a ``History``, or the log of a worker."""

    def sent(self, session: str, command: str) -> None: ...
    def answer(self, command: str, reported: Reported) -> None: ...


def history_path(data: Path, sandbox_id: str) -> Path:
    """The path of ``HISTORY`` on the machine, so that it can be read after the sandbox has ended.

    The folder of a sandbox has its host's name. Without such a folder, as after the end of the sandbox, the path does not exist.
    """
    for hostname in (data / "sandboxes").glob("*/upper/etc/hostname"):
        with contextlib.suppress(OSError):
            if hostname.read_text().strip() == sandbox_id:
                return hostname.parents[1] / HISTORY.lstrip("/")
    return data / "sandboxes" / sandbox_id


def script(command_id: str) -> str:
    """The script of a command: append its id to the file, and print it."""
    return f"echo {command_id} >> {HISTORY}; echo {command_id}"


def classify_error(error: HoldfastError) -> Reported:
    """ "failed" if the error states that the command did not start or precedes any command; otherwise "unknown"."""
    facts = error.detail
    return "failed" if facts.get("started", None if "command_id" in facts else False) is False else "unknown"


def story(command: str, reported: Reported, error: HoldfastError, *, repeated: bool = False) -> str:
    """The line of the report that explains why ``command`` was not acknowledged."""
    code = f"{error.code}/{error.reason}" if error.reason else error.code
    facts = ", ".join(f"{name}={error.detail[name]}" for name in ("accepted", "started", "received") if name in error.detail)
    again = ", repeated" if repeated else ""
    return f"{reported:7} {code:24} {command}{again}: {error.message} ({facts or 'no facts of a command'})"


class Appender:
    """One session: runs one command after the other, in a named shell or as one-offs, while ``run``'s condition holds."""

    def __init__(
        self,
        name: str,
        sandbox: AsyncSandbox,
        notes: Notes,
        *,
        by_exec: bool,
        rng: random.Random,
        pause_s: float = 0.0,
        by_rest: bool = False,
    ) -> None:
        """``by_rest``: output that was lost with an answer may be missing if the result is marked truncated."""
        self.name = name
        self._by_rest = by_rest
        self.done = 0
        self.ended_by: str = ""
        self.reasons: Counter[str] = Counter()
        self.stories: list[str] = []
        """One line for each command that was not acknowledged, with the text of its error."""
        self.violations: list[str] = []
        self.resumes: list[float] = []
        self._sandbox = sandbox
        self._notes = notes
        self._by_exec = by_exec
        self._rng = rng
        self._pause_s = pause_s
        self._shell: AsyncShell | None = None
        self._watched: Any = None

    async def run(self, more: Callable[[], bool], first: int = 0, again: str = "") -> None:
        """Append while ``more()``. ``again`` is an earlier command whose outcome is still open; it is sent again with the same id."""
        number = first
        if again:
            await self._one(again, repeated=True)
        while more() and not self.ended_by:
            command = f"{self.name}.{number}"
            number += 1
            self._notes.sent(self.name, command)
            await self._one(command)
            if self._pause_s:
                await asyncio.sleep(self._rng.random() * 2 * self._pause_s)

    async def _one(self, command: str, *, repeated: bool = False) -> None:
        try:
            async with asyncio.timeout(HANG_S):
                result = await self._perform(command)
        except HoldfastError as error:
            self.reasons[f"{error.code}/{error.reason}" if error.reason else error.code] += 1
            # an earlier process, killed while it waited, may have started the command, whatever this error states
            reported: Reported = "unknown" if repeated else classify_error(error)
            self.stories.append(story(command, reported, error, repeated=repeated))
            self._notes.answer(command, reported)
            self._shell = None
            if isinstance(error, SandboxLostError | SandboxNotFoundError):
                self.ended_by = error.reason or error.code
            return
        except TimeoutError:
            self.violations.append(f"{command} had no outcome after {HANG_S:g} s")
            self.ended_by = "hung"
            return
        finally:
            self.watch()
        self.done += 1
        short = result.truncated and self._by_rest
        if result.exit_code != 0 or (not short and (result.stdout != command + "\n" or result.truncated)):
            self.violations.append(f"{command} answered {result.exit_code} {result.stdout!r} truncated={result.truncated}")
        self._notes.answer(command, "acknowledged")

    async def _perform(self, command: str) -> Any:
        if self._by_exec:
            return await self._sandbox.exec(script(command), command_id=command)
        if self._shell is None:
            self._shell = await self._sandbox.shell(self.name)
            self.watch()
        return await self._shell.run(script(command), command_id=command)

    def watch(self) -> None:
        """Measure the resumes of the driver that is in use now."""
        driver = self._sandbox._driver
        if driver is not None and driver is not self._watched:
            self._watched = driver
            watch_resumes(driver.engine, self.resumes)


def watch_resumes(engine: Any, resumes: list[float]) -> None:
    """Append to ``resumes`` the seconds from each loss of ``engine``'s connection to the next greeting."""
    broken, attached = engine.broken, engine._attached
    down_at: list[float] = []

    def on_broken(websocket: Any, why: str, now: float) -> float | None:
        if not down_at:
            down_at.append(now)
        return broken(websocket, why, now)  # type: ignore[no-any-return]

    def on_attached(event: Any, now: float) -> None:
        if down_at:
            resumes.append(now - down_at.pop())
        attached(event, now)

    engine.broken, engine._attached = on_broken, on_attached
