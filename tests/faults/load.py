"""Sessions under load: each appends its commands' ids to one file of its sandbox and notes what it was told.

Owns the appending loop, the reading of errors as "failed" or "unknown", and the stop-watch of resumes. Used by every scenario that
ends with the history checker, in this process and in ``worker``.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from holdfast import AsyncSandbox, AsyncShell, HoldfastError, SandboxLostError, SandboxNotFoundError

from session_agent.node.settings import NodeSettings

from .history import Told

HISTORY = "/tmp/history"
PATIENCE_S = 150.0
"""A command that has no outcome by then hangs, which is a violation of its own; the SDK gives up a lost connection after 120 s."""


class Notes(Protocol):
    """Where asked and told go: a ``History``, or the log of a worker."""

    def asked(self, session: str, command: str) -> None: ...
    def answer(self, command: str, told: Told) -> None: ...


def history_path(data: Path, sandbox_id: str) -> Path:
    """The file of ``HISTORY`` as the machine sees it: it can be read when nothing in the sandbox answers any more.

    The node's state file of the sandbox names its folder. Without one, as after a sandbox has ended, the path does not exist.
    """
    state = Path(NodeSettings(str(data), "").state_file(sandbox_id))
    folder = json.loads(state.read_text())["folder"] if state.exists() else str(data / "sandboxes" / sandbox_id)
    return Path(folder, "upper", HISTORY.lstrip("/"))


def script(command_id: str) -> str:
    """What a command does: leave its one trace, and answer with it."""
    return f"echo {command_id} >> {HISTORY}; echo {command_id}"


def read_told(error: HoldfastError) -> Told:
    """An error that says the command did not start, or that is of no command yet, is a definite failure; any other leaves it open."""
    facts = error.detail
    return "failed" if facts.get("started", None if "command_id" in facts else False) is False else "unknown"


def story(command: str, told: Told, error: HoldfastError, *, asked_before: bool = False) -> str:
    """The line of a report that explains why ``command`` was not acknowledged."""
    code = f"{error.code}/{error.reason}" if error.reason else error.code
    facts = ", ".join(f"{name}={error.detail[name]}" for name in ("accepted", "started", "received") if name in error.detail)
    again = ", asked again" if asked_before else ""
    return f"{told:7} {code:24} {command}{again}: {error.message} ({facts or 'no facts of a command'})"


class Appender:
    """One session: one command after the other, on a named shell or by itself, until ``run``'s condition says stop."""

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
        """``by_rest``: the output that went with a lost answer may be missing, as long as the result says so."""
        self.name = name
        self._by_rest = by_rest
        self.done = 0
        self.ended_by: str = ""
        self.reasons: Counter[str] = Counter()
        self.stories: list[str] = []
        """One line for each command that was not acknowledged: what it was told, word for word."""
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
        """Append while ``more()``. ``again`` is a command asked for before whose outcome is still open: the same id once more."""
        number = first
        if again:
            await self._one(again, asked_before=True)
        while more() and not self.ended_by:
            command = f"{self.name}.{number}"
            number += 1
            self._notes.asked(self.name, command)
            await self._one(command)
            if self._pause_s:
                await asyncio.sleep(self._rng.random() * 2 * self._pause_s)

    async def _one(self, command: str, *, asked_before: bool = False) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                result = await self._perform(command)
        except HoldfastError as error:
            self.reasons[f"{error.code}/{error.reason}" if error.reason else error.code] += 1
            # that this process never got to ask says nothing of the one before it, which was killed while it waited
            told: Told = "unknown" if asked_before else read_told(error)
            self.stories.append(story(command, told, error, asked_before=asked_before))
            self._notes.answer(command, told)
            self._shell = None
            if isinstance(error, SandboxLostError | SandboxNotFoundError):
                self.ended_by = error.reason or error.code
            return
        except TimeoutError:
            self.violations.append(f"{command} had no outcome after {PATIENCE_S:g} s")
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
        """Time the resumes of the driver in use now."""
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
