"""``holdfast recipes tasks``: ``screen`` leaves out tasks that cannot be relied on, ``band`` those of no trainable difficulty.

Owns arguments, the files and printing. Screening is ``swe.pool``'s; the band is that of ``core.curation`` (P §3.3.3).
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast import AsyncSandboxClient

from holdfast_recipes.core.balance import exact
from holdfast_recipes.core.curation import in_band
from holdfast_recipes.harness.limits import Resources
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.errors import SettingError
from holdfast_recipes.pipeline.service import GROUP_TTL_S, run_until_ended
from holdfast_recipes.swe import pool
from holdfast_recipes.swe.archives import Archives
from holdfast_recipes.swe.job import maker
from holdfast_recipes.swe.sources import READERS, SweTask

JOURNAL = "screened.jsonl"
TASKS = "tasks.jsonl"


def add_tasks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("screen", "band"), help="screen: validate in sandboxes; band: by the success rate of a run")
    parser.add_argument("tasks", type=Path, metavar="TASKS", help="a file of tasks")
    parser.add_argument("--source", choices=sorted(READERS), help="the format of published rows")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=f"for {TASKS}, and screen's {JOURNAL}, where it goes on")
    screen = parser.add_argument_group("screen")
    screen.add_argument(
        "--runs", type=int, default=3, metavar="N", help="of the tests in each state; more find more flaky ones (%(default)s)"
    )
    screen.add_argument("--timeout", type=float, default=500.0, metavar="SECONDS", help="of a run of the tests (%(default)s)")
    screen.add_argument("--concurrency", type=int, default=4, metavar="N", help="sandboxes at the same time (%(default)s)")
    screen.add_argument("--cpu", type=float, default=2, help="of a sandbox (%(default)s)")
    screen.add_argument("--memory", type=float, default=8, metavar="GIB", help="of a sandbox (%(default)s)")
    screen.add_argument("--archives", type=Path, metavar="FOLDER", help="of tasks that are made from archives (archives beside the tasks)")
    band = parser.add_argument_group("band")
    band.add_argument("--runs-of", type=Path, nargs="+", metavar="RUN", help="runs' folders, or files of trajectories")
    band.add_argument("--low", default="0", help="keep tasks whose success rate is above this (%(default)s)")
    band.add_argument("--high", default="0.5", help="and at most this (%(default)s)")
    band.add_argument("--least", type=int, default=1, metavar="N", help="graded rollouts that a task needs (%(default)s)")


def tasks(arguments: argparse.Namespace) -> int:
    if (arguments.out / TASKS).resolve() == arguments.tasks.resolve():
        raise SettingError(f"{arguments.out / TASKS} is the file that is read", hint="give another folder with --out")
    if arguments.action == "band":
        return _band(arguments)
    if min(arguments.runs, arguments.concurrency) < 1 or min(arguments.timeout, arguments.cpu, arguments.memory) <= 0:
        raise SettingError("--runs and --concurrency must be at least 1, --timeout, --cpu and --memory above 0")
    return run_until_ended(_screen(arguments, files.tasks(arguments.tasks, arguments.source)))


async def _screen(arguments: argparse.Namespace, found: list[SweTask]) -> int:
    folder = arguments.archives or (arguments.tasks if arguments.tasks.is_dir() else arguments.tasks.parent) / "archives"
    archives = Archives(folder)
    lost = 0
    with files.Journal(arguments.out / JOURNAL) as journal:
        lines = {str(line["task_id"]): line for _, line in files.lines(journal.path)}
        missing = [task for task in found if task.task_id not in lines]
        async with AsyncSandboxClient() as client, client.group(f"screen-{secrets.token_hex(4)}", ttl_s=GROUP_TTL_S) as group:
            checked = pool.screened(
                missing,
                maker(client, group=group),
                lambda task: archives if task.archives else None,
                runs=arguments.runs,
                timeout_s=arguments.timeout,
                concurrency=arguments.concurrency,
                resources=Resources(arguments.cpu, arguments.memory),
            )
            async for task, validation in checked:
                if validation is None:
                    lost += 1
                    continue
                lines[task.task_id] = pool.record(task, validation)
                journal.append(lines[task.task_id])
    mine = [lines[task.task_id] for task in found if task.task_id in lines]
    counts = pool.counted(mine)
    kept = [task.to_json() for task in found if task.task_id in lines and not lines[task.task_id]["problems"]]
    files.write_lines(arguments.out / TASKS, kept)
    left_out = {"leak": counts.reasons["leak"], "flaky": counts.reasons["flaky"], **counts.reasons}
    _print({"tasks": len(found), "kept": counts.kept, "left_out": left_out, "lost_to_infrastructure": lost}, arguments)
    return 1 if lost else 0


def _band(arguments: argparse.Namespace) -> int:
    if not arguments.runs_of:
        raise SettingError("band needs --runs-of with the rollouts of these tasks")
    if arguments.least < 1:
        raise SettingError("--least must be at least 1")
    try:
        low, high = exact(arguments.low), exact(arguments.high)
    except ValueError as error:
        raise SettingError(f"--low and --high must be numbers: {error}") from error
    if not 0 <= low < high <= 1:
        raise SettingError(f"--low and --high are shares between 0 and 1, the first one less: {arguments.low}, {arguments.high}")
    trials: Counter[str] = Counter()
    successes: Counter[str] = Counter()
    ungraded = 0
    for path in arguments.runs_of:
        for run in files.trajectories(path):
            ungraded += run.reward is None
            trials[run.task_id] += run.reward is not None
            successes[run.task_id] += run.resolved
    found = files.tasks(arguments.tasks, arguments.source)
    sorted_out: Counter[str] = Counter({"too_few_rollouts": 0, "too_hard": 0, "too_easy": 0})
    kept = []
    for task in found:
        count, tried = successes[task.task_id], trials[task.task_id]
        if tried < arguments.least:
            sorted_out["too_few_rollouts"] += 1
        elif in_band(count, tried, low, high):
            kept.append(task.to_json())
        else:
            sorted_out["too_easy" if in_band(count, tried, high, 1) else "too_hard"] += 1
    files.write_lines(arguments.out / TASKS, kept)
    _print({"tasks": len(found), "kept": len(kept), "left_out": dict(sorted_out), "rollouts_without_a_grade": ungraded}, arguments)
    return 0 if kept else 1


def _print(record: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(record))
        return
    print(f"{record['kept']} of {record['tasks']} tasks are in {arguments.out / TASKS}")
    print("left out: " + ", ".join(f"{name} {count}" for name, count in record["left_out"].items()))
    for name in ("lost_to_infrastructure", "rollouts_without_a_grade"):
        if record.get(name):
            print(f"{name.replace('_', ' ')}: {record[name]}")
