"""``holdfast recipes mutate``: validated repair tasks from the source distributions of libraries.

Owns arguments, the folder of tasks, and printing; tasks are made in ``swe.factory``.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from pathlib import Path

from holdfast import AsyncSandboxClient

from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.errors import DataError, SettingError
from holdfast_recipes.swe.archives import Archives
from holdfast_recipes.swe.factory import Factory
from holdfast_recipes.swe.job import maker
from holdfast_recipes.swe.projects import PROJECTS, FetchError, Project

from .sandboxes import LEASE_S, run_until_ended

TASKS, ARCHIVES, DOWNLOADS = "tasks.jsonl", "archives", "downloads"


def add_mutate(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(each.name for each in PROJECTS)
    parser.add_argument("libraries", metavar="LIBRARY", nargs="*", help=f"of {names} (all)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=f"for {TASKS} and {ARCHIVES}")
    parser.add_argument("--most", type=int, default=300, metavar="N", help="tasks in all (%(default)s)")
    parser.add_argument("--per-library", type=int, metavar="N", help="tasks of one library")
    parser.add_argument("--split", choices=sorted({each.split for each in PROJECTS}), help="only libraries of this split")
    parser.add_argument("--image", default="host", help="with Python 3, git and tar (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="sandboxes at the same time (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants come first (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def mutate(arguments: argparse.Namespace) -> int:
    """1 where no task could be made."""
    known = {each.name: each for each in PROJECTS}
    if unknown := [name for name in arguments.libraries if name not in known]:
        raise SettingError(f"there is no library {unknown[0]}", hint=f"one of {', '.join(known)}")
    if min(arguments.most, arguments.concurrency, arguments.per_library or 1) < 1:
        raise SettingError("--most, --per-library and --concurrency are at least 1")
    projects = [known[name] for name in dict.fromkeys(arguments.libraries)] or list(PROJECTS)
    projects = [each for each in projects if arguments.split in (None, each.split)]
    if not projects:
        raise SettingError(f"none of these libraries is of the split {arguments.split}")
    if (arguments.out / TASKS).exists():
        raise DataError(f"{arguments.out / TASKS} exists", hint="give a new folder: runs refer to their tasks")
    return run_until_ended(_mutate(arguments, projects))


async def _mutate(arguments: argparse.Namespace, projects: list[Project]) -> int:
    began = time.monotonic()
    shown = sys.stderr.isatty() and not arguments.quiet and not arguments.json
    rows = []
    async with AsyncSandboxClient() as client, client.group(f"mutate-{secrets.token_hex(4)}", ttl_s=LEASE_S) as group:
        factory = Factory(
            maker(client, group=group),
            Archives(arguments.out / ARCHIVES),
            arguments.out / DOWNLOADS,
            image=arguments.image,
            concurrency=arguments.concurrency,
            seed=arguments.seed,
        )
        try:
            async for row in factory.rows(projects, arguments.most, most_per_project=arguments.per_library):
                rows.append(row)
                if shown:
                    sys.stderr.write(f"\r\x1b[K{len(rows)}/{arguments.most} tasks, {sum(factory.tally.outcomes.values())} mutants tried")
        except FetchError as error:
            raise DataError(str(error), hint="pip must reach a package index") from error
        finally:
            sys.stderr.write("\n" if shown else "")
    outcomes = dict(sorted(factory.tally.outcomes.items()))
    if rows:
        files.write_lines(arguments.out / TASKS, rows)
    seconds = round(time.monotonic() - began, 1)
    if arguments.json:
        print(json.dumps({"file": str(arguments.out / TASKS), "tasks": len(rows), "mutants": outcomes, "seconds": seconds}, indent=2))
    else:
        print(f"{len(rows)} tasks in {seconds} s" + (f": {arguments.out / TASKS}" if rows else ""))
        print("mutants: " + (", ".join(f"{name} {count}" for name, count in outcomes.items()) or "none"))
    return 0 if rows else 1
