"""What all chaos scenarios share: the seed, several gateways, progress messages, and the check at the end of a run.

Owns the Procfile with several gateway replicas and the watching of a set of appenders. Scenarios own their faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_server.embed import free_port

from tests.support.stack import Stack, running_stack

from .history import History, check
from .load import Appender, history_path
from .proxy import FaultProxy
from .report import Outcome

_PROGRESS_S = 5.0
IMAGE = "python:3.12"


@dataclass(frozen=True, slots=True)
class Context:
    """``full``: run the complete numbers however long they take; otherwise as many as fit into the scenario's seconds."""

    seed: int
    full: bool
    log: Callable[[str], None]

    def rng(self, *names: object) -> random.Random:
        """A separate random source for each part of the run, derived from the one seed."""
        return random.Random(":".join(str(name) for name in (self.seed, *names)))


@dataclass(frozen=True, slots=True)
class Replicas:
    """A stack with several gateways, each on its own port; ``names`` are those in the Procfile."""

    stack: Stack
    names: tuple[str, ...]
    ports: tuple[int, ...]

    @property
    def targets(self) -> list[str]:
        return [f"tcp://127.0.0.1:{port}" for port in self.ports]


@contextlib.contextmanager
def replicated_stack(count: int = 3, **environment: str) -> Iterator[Replicas]:
    """`make up` with ``count`` gateways and without sandbox disks, so that the checker can read files from outside, even after a crash."""
    top = Path(__file__).resolve().parents[2]
    lines = (top / "Procfile").read_text().splitlines()
    gateway = next(line.partition(":")[2].strip() for line in lines if line.startswith("gateway:"))
    more = {f"gateway{number}": free_port() for number in range(2, count + 1)}
    lines += [f"{name}: env PORT={port} {gateway}" for name, port in more.items()]
    settings = {"HOLDFAST_DEFAULT_DISK": "none", "HOLDFAST_REDIS_TIMEOUT_MS": "600", **environment}
    with scratch_file("Procfile", "\n".join(lines) + "\n") as path, running_stack(settings, ["--procfile", str(path)]) as stack:
        first = int(stack.url.rpartition(":")[2])
        yield Replicas(stack, ("gateway", *more), (first, *more.values()))


@contextlib.contextmanager
def scratch_file(name: str, content: str) -> Iterator[Path]:
    """A temporary file for the duration of the block."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hf-chaos-") as folder:
        path = Path(folder) / name
        path.write_text(content)
        yield path


async def watch(
    context: Context, name: str, tasks: Sequence[asyncio.Task[None]], appenders: Sequence[Appender], proxies: Sequence[FaultProxy]
) -> None:
    """Log progress until all ``tasks`` are done; raise what one of them raised."""
    started = time.monotonic()
    pending: set[asyncio.Task[None]] = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, timeout=_PROGRESS_S)
        for task in done:
            task.result()
        commands, cuts = sum(appender.done for appender in appenders), sum(proxy.faults.total for proxy in proxies)
        context.log(
            f"{name:8} {time.monotonic() - started:4.0f} s  {commands} commands, {cuts} faults, {len(pending)} of {len(tasks)} busy"
        )


def settle(outcome: Outcome, appenders: Sequence[Appender], proxies: Sequence[FaultProxy]) -> None:
    """Add the results of the appenders and the faults of the proxies to ``outcome``."""
    for appender in appenders:
        outcome.reasons += appender.reasons
        outcome.violations += appender.violations
        outcome.stories += appender.stories
        outcome.resumes += appender.resumes
    for proxy in proxies:
        outcome.faults.update(cut=proxy.faults.cuts, refusal=proxy.faults.refusals, freeze=proxy.faults.frozen)
    outcome.faults += type(outcome.faults)()  # leave out what did not occur


def check_all(outcome: Outcome, data: Path, histories: dict[str, History]) -> None:
    """Check each sandbox's history against its file."""
    for sandbox_id, history in histories.items():
        path = history_path(data, sandbox_id)
        outcome.add(check(history, path.read_text().splitlines() if path.exists() else []))
