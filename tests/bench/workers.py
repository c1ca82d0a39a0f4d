"""Starts, controls and ends load processes; `tests.bench.load` is their program."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

_READY_DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class Load:
    """The result of all workers together. Latencies in seconds are those of the slowest worker."""

    commands: int
    per_second: float
    p50: float
    p99: float


class Workers:
    """Load processes that are ready."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def work(self, seconds: float, period_s: float = 0.0) -> Load:
        """Let all of them work at once, each session beginning a command every `period_s`, or as fast as it can."""
        answers = await asyncio.gather(*(self._one(process, seconds, period_s) for process in self._processes))
        return Load(
            commands=sum(int(answer["commands"]) for answer in answers),
            per_second=sum(answer["commands"] / answer["seconds"] for answer in answers),
            p50=max(answer["p50"] for answer in answers),
            p99=max(answer["p99"] for answer in answers),
        )

    @staticmethod
    async def _one(process: asyncio.subprocess.Process, seconds: float, period_s: float) -> dict[str, float]:
        assert process.stdin is not None
        process.stdin.write(f"go {seconds} {period_s}\n".encode())
        answer: dict[str, float] = json.loads(await _line(process, seconds + 60))
        return answer


async def _line(process: asyncio.subprocess.Process, deadline_s: float) -> bytes:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), deadline_s)
    if not line:
        raise RuntimeError(f"a load process ended with {await process.wait()}")
    return line


@contextlib.asynccontextmanager
async def workers(kind: str, counts: Sequence[int], where: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[Workers]:
    """One process per entry of `counts`, ready to work; each with that many sessions."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.bench.load",
            kind,
            str(count),
            str(sum(counts[:number])),
            *where,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(environment),
        )
        for number, count in enumerate(counts)
    ]
    try:
        for process in processes:
            assert await _line(process, _READY_DEADLINE_S) == b"ready\n"
        yield Workers(processes)
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()
