"""Chaos scenario: kill -9 of random processes: gateways, controller, Redis, the client's process, and at the end the node.

Each round creates some sandboxes, each with its own client process, kills something about every second, and then kills the node and
with it every sandbox. The history file of each sandbox is held open from outside, so that acknowledged commands can be checked after
the sandbox is gone. A command that was running when the node died gets a typed error, nothing hangs, and new sandboxes can be created.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast import AsyncSandboxClient, HoldfastError

from tests.support.until import until, until_async

from .context import IMAGE, Context, Replicas, settle
from .history import check
from .load import HISTORY, history_path
from .proxy import FaultProxy, Weather
from .report import Outcome
from .worker import Read, read_log

WORKERS = 4
SESSIONS = 4
ROUND_S = 22.0
PARTS = ("gateway", "gateway", "gateway2", "gateway2", "controller", "redis", "worker", "worker", "cut")
"""What a kill may hit; an entry that is listed twice is twice as likely."""
EXPLAINED = frozenset({"sandbox_gone/node-lost"})
"""The only errors that a command may get instead of its result: only the node is lost permanently."""
END_S = 60.0
"""How long a client may take until it knows that its sandbox is lost."""


class Worker:
    """One client process and its sandbox, whose history file is read from outside."""

    def __init__(self, url: str, key: str, folder: Path, name: str, sandbox_id: str, data: Path) -> None:
        self.log = folder / f"{name}.log"
        self._arguments = [url, str(self.log), sandbox_id, name, str(SESSIONS)]
        self._environment = {**os.environ, "HOLDFAST_API_KEY": key}
        self._errors = folder / f"{name}.err"
        path = history_path(data, sandbox_id)
        until(path.exists, deadline_s=60, what=str(path))
        self._history = path.open()
        self.start()

    def start(self) -> None:
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.worker", *self._arguments], env=self._environment, stderr=errors
            )

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.wait()
        self.start()

    def finish(self, outcome: Outcome) -> Read:
        """Wait for the process to end, or kill it; then check its log against the history file."""
        try:
            status: int | None = self.process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            status = None
            self.process.kill()
            self.process.wait()
        error = self._errors.read_text()[-600:]
        read = read_log(self.log)
        waiting = ", ".join(read.open_command.values())
        outcome.expect(status == 0, f"a client ended with {status} after its sandbox was lost, waiting for {waiting or 'nothing'}: {error}")
        outcome.add(check(read.history, self._history.read().splitlines()))
        self._history.close()
        for kind, value in read.notes:
            if kind == "resume":
                outcome.resumes.append(float(value))
            elif kind == "story":
                outcome.stories.append(json.loads(value))
            elif kind == "violation":
                outcome.violations.append(json.loads(value))
            elif kind == "reason":
                count, _, reason = value.partition("x")
                outcome.reasons[reason] += int(count)
        return read


async def run(context: Context, replicas: Replicas, outcome: Outcome, seconds: float) -> None:
    """Run rounds of ``ROUND_S`` while there is time, at least one."""
    started, rng, rounds = time.monotonic(), context.rng("monkey"), 0
    weather = Weather(cut_every_bytes=200_000, linger=0.3)
    with (
        tempfile.TemporaryDirectory(prefix="hf-monkey-") as folder,
        FaultProxy(*replicas.targets, seed=context.seed, weather=weather) as proxy,
    ):
        while not rounds or time.monotonic() - started < seconds - ROUND_S / 2:
            rounds += 1
            await _round(context, replicas, outcome, proxy, rng, Path(folder), rounds)
        settle(outcome, [], [proxy])
    unexplained = [line for line in outcome.stories if line.split()[1] not in EXPLAINED]
    outcome.violations += [f"unexplained: {line}" for line in unexplained]
    outcome.notes["rounds, each ended by the death of the node"] = rounds
    outcome.seconds = time.monotonic() - started


async def _round(
    context: Context, replicas: Replicas, outcome: Outcome, proxy: FaultProxy, rng: random.Random, folder: Path, number: int
) -> None:
    stack = replicas.stack
    async with AsyncSandboxClient(proxy.url, stack.key) as client:
        made = [await _create(client) for _ in range(WORKERS)]
        workers = [Worker(proxy.url, stack.key, folder, f"r{number}w{n}", sandbox_id, stack.data) for n, sandbox_id in enumerate(made)]
        end = time.monotonic() + ROUND_S
        while time.monotonic() < end:
            await asyncio.sleep(rng.uniform(0.2, 1.2))  # the pause between faults, drawn from the seed
            part = rng.choice(PARTS)
            if part == "worker":
                rng.choice(workers).kill_and_restart()
            elif part == "cut":
                proxy.cut_all()
                continue
            else:
                await asyncio.to_thread(stack.kill_process, part)
            outcome.faults[f"kill -9 {part}"] += 1
        done = sum(len(read_log(worker.log).history.reported) for worker in workers)
        await asyncio.to_thread(_kill_node, replicas)
        outcome.faults["kill -9 node"] += 1
        context.log(
            f"monkey   round {number}: {done} commands, {sum(outcome.faults.values())} kills, {proxy.faults.total} cuts; node killed"
        )
        killed = time.monotonic()
        reads = [await asyncio.to_thread(worker.finish, outcome) for worker in workers]
        note = "slowest, from the node's death until every client heard that its sandbox is lost, in seconds"
        outcome.notes[note] = round(max(float(outcome.notes.get(note, 0)), time.monotonic() - killed), 1)
        ended = [value for read in reads for kind, value in read.notes if kind == "ended"]
        outcome.expect(len(ended) == WORKERS * SESSIONS, f"{len(ended)} of {WORKERS * SESSIONS} sessions learnt that their sandbox is lost")
        for value in ended:
            outcome.expect(value not in ("", "hung"), f"a session ended by {value!r}, not by the loss of its sandbox")


def _kill_node(replicas: Replicas) -> None:
    old = replicas.stack.kill_process("node")
    replicas.stack.wait_restarted("node", old)


async def _create(client: AsyncSandboxClient) -> str:
    """A new sandbox with an empty history; the machine may still be recovering."""
    made: list[str] = []

    async def tried() -> bool:
        with contextlib.suppress(HoldfastError):
            sandbox = await client.create_sandbox(IMAGE, ready_timeout_s=20)
            await sandbox.exec(f"touch {HISTORY}")
            await sandbox.close()
            made.append(sandbox.id)
        return bool(made)

    await until_async(tried, deadline_s=END_S, what="a new sandbox")
    return made[0]
