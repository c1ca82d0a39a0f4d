"""A process with appending sessions that may be killed at any moment: ``python -m tests.faults.worker``.

It logs each command before it sends it and each outcome after it got it, one line each, so that a restarted process knows which
outcomes are still open; it sends those commands again with the same ids. Started by ``monkey``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import AsyncSandboxClient

from .history import History, Reported
from .load import Appender

ATTACH_S = 45.0
"""A client that was restarted may find Redis, gateways and controller dead at once, and the runner waits up to 5 s before each start."""


class Log:
    """The log of a worker, each line written with one system call, so that a kill leaves no partial line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def sent(self, session: str, command: str) -> None:
        self._write("sent", session, command)

    def answer(self, command: str, reported: Reported) -> None:
        self._write("outcome", command, reported)

    def note(self, kind: str, value: str) -> None:
        self._write("note", kind, value)

    def _write(self, *fields: str) -> None:
        os.write(self._file, (" ".join(fields) + "\n").encode())


@dataclass
class Read:
    """A worker's log, read back: the history, per session the next number and the command whose outcome is open, and notes."""

    history: History = field(default_factory=History)
    notes: list[tuple[str, str]] = field(default_factory=list)
    next_number: dict[str, int] = field(default_factory=dict)
    open_command: dict[str, str] = field(default_factory=dict)


def read_log(path: Path) -> Read:
    """Read the log at ``path``."""
    read = Read()
    for line in path.read_text().splitlines() if path.exists() else []:
        match line.split(" ", 2):
            case ["sent", session, command]:
                read.history.sent(session, command)
                read.next_number[session] = int(command.rpartition(".")[2]) + 1
                read.open_command[session] = command
            case ["outcome", command, reported]:
                read.history.answer(command, reported)  # type: ignore[arg-type]
                read.open_command.pop(command.rpartition(".")[0], None)
            case ["note", kind, value]:
                read.notes.append((kind, value))
    return read


async def work(url: str, key: str, path: Path, sandbox_id: str, name: str, sessions: int) -> None:
    """Append on ``sessions`` sessions of one sandbox until it is lost or the process ends."""
    read, log = read_log(path), Log(path)
    async with (
        AsyncSandboxClient(url, key, connect_timeout_s=ATTACH_S) as client,
        AsyncSandboxClient(url, key, connect_timeout_s=ATTACH_S, transport="rest") as rest,
    ):
        names = [f"{name}-{n}" for n in range(sessions)]
        rng = random.Random(name)
        appenders = []
        for n, one in enumerate(names):  # in turn: in a shell, as a one-off, in a shell, and over REST
            by_rest = n % 4 == 3
            sandbox = (rest if by_rest else client).get_sandbox(sandbox_id)
            appenders.append(Appender(one, sandbox, log, by_exec=n % 2 == 1, rng=rng, by_rest=by_rest))
        runs = [one.run(lambda: True, read.next_number.get(one.name, 0), read.open_command.get(one.name, "")) for one in appenders]
        reporting = asyncio.create_task(_report(log, appenders))
        await asyncio.gather(*runs)
        reporting.cancel()
        _log_results(log, appenders)
        for appender in appenders:
            log.note("ended", appender.ended_by)


async def _report(log: Log, appenders: list[Appender]) -> None:
    while True:
        await asyncio.sleep(0.2)  # a report five times a second, until it is cancelled
        _log_results(log, appenders)


def _log_results(log: Log, appenders: list[Appender]) -> None:
    for appender in appenders:
        while appender.resumes:
            log.note("resume", f"{appender.resumes.pop():.6f}")
        while appender.stories:
            log.note("story", json.dumps(appender.stories.pop(0)))
        while appender.violations:
            log.note("violation", json.dumps(appender.violations.pop()))
        for reason, count in appender.reasons.items():
            log.note("reason", f"{count}x{reason}")
        appender.reasons.clear()


if __name__ == "__main__":
    _, url, path, sandbox_id, name, sessions = sys.argv
    asyncio.run(work(url, os.environ["HOLDFAST_API_KEY"], Path(path), sandbox_id, name, int(sessions)))
