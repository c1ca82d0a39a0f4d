"""Runs jobs in processes of one thread each, and keeps what they gave.

Owns the file of results, a JSON line for each job; a job that is there is not run again, so a run that was cut short goes on. A job that
raises is a line with its error, and the others go on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast_server.subreaper import die_with_parent

from . import plan

PARENT = "HOLDFAST_RECIPES_PARENT"
"""Names the process that a run may not outlive: the next one after a kill writes the same files."""


def run_one(job: plan.Job) -> dict[str, Any]:
    """In a process of its own, with one thread."""
    import torch

    from . import balance_ablation, credit_ablation, estimators

    torch.set_num_threads(1)
    kinds: dict[str, Callable[[plan.Job], dict[str, Any]]] = {
        "credit": credit_ablation.run,
        "estimators": estimators.run,
        "balance": balance_ablation.run,
    }
    started = time.monotonic()
    line = {"experiment": job.experiment, "arm": job.arm, "seed": job.seed, "plan": job.plan}
    try:
        line["result"] = kinds[job.settings["kind"]](job)
    except Exception:  # noqa: BLE001  a failed job is a line; the table says that it is missing
        line["error"] = traceback.format_exc()
    return line | ended(started)


def ended(started: float) -> dict[str, float]:
    """What a line says at its end: its seconds, and the load of the machine (mean of five minutes), without which they say little."""
    return {"seconds": round(time.monotonic() - started, 1), "load": round(os.getloadavg()[1], 1)}


def run(jobs: Sequence[plan.Job], path: Path, processes: int, limit_s: float | None = None) -> list[dict[str, Any]]:
    """Run what is missing, and return all lines. After ``limit_s`` nothing more is started."""
    done = {(line["experiment"], line["arm"], line["seed"], line["plan"]) for line in read(path) if "error" not in line}
    missing = [job for job in jobs if (job.experiment, job.arm, job.seed, job.plan) not in done]
    started = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=die_with_parent, initargs=(signal.SIGKILL, os.getpid())) as pool:
        queue = iter(missing)
        running = {pool.submit(run_one, job): job for job in islice(queue, processes)}
        while running:
            future = next(as_completed(running))
            job = running.pop(future)
            line = future.result()
            append(path, line)
            print(
                f"{time.monotonic() - started:7.0f} s  {job.key:44} {line['seconds']:6.1f} s{'  FAILED' if 'error' in line else ''}",
                flush=True,
            )
            if limit_s is None or time.monotonic() - started < limit_s:
                following = next(queue, None)
                if following is not None:
                    running[pool.submit(run_one, following)] = following
    return read(path)


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line. One that a kill cut off gets its end first, so that it spoils no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of earlier runs. A last line that was cut off by a kill is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines
