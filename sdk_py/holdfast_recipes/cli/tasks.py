"""``holdfast recipes mutate``: repair tasks from libraries with tests, validated in sandboxes, as rows and archives in a folder; and
``holdfast recipes equivalence``: the same scripted agent on this machine and in sandboxes.

Owns arguments, the folder and printing. Tasks are made in ``swe.factory``, the comparison is ``swe.equivalence``'s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast import AsyncSandboxClient

from holdfast_recipes.harness.limits import Resources
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.errors import DataError, SettingError
from holdfast_recipes.pipeline.service import GROUP_TTL_S, run_until_ended
from holdfast_recipes.swe.archives import ArchiveError, Archives
from holdfast_recipes.swe.equivalence import TEST_TIMEOUT_S, compared, table
from holdfast_recipes.swe.factory import Factory, MutantCounts
from holdfast_recipes.swe.job import maker
from holdfast_recipes.swe.projects import PROJECTS, FetchError, Project, project, sdist


def add_mutate(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(each.name for each in PROJECTS)
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help=f"of {names} (all of them), or the file of a source distribution")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for tasks.jsonl, archives and downloads")
    parser.add_argument("--most", type=int, default=300, metavar="N", help="tasks in all (%(default)s)")
    parser.add_argument("--most-per-project", type=int, metavar="N", help="tasks of one library")
    parser.add_argument("--module", help="of a file: the module to mutate, as a path in the distribution")
    parser.add_argument("--tests", nargs="+", help="of a file: the test files for the module")
    parser.add_argument("--path", default=".", help="of a file: what goes on Python's path (%(default)s)")
    parser.add_argument("--image", default="host", help="of the sandboxes; needs Python 3, git and tar (%(default)s)")
    parser.add_argument("--cpu", type=float, default=1, help="of a sandbox (%(default)s)")
    parser.add_argument("--memory", type=float, default=0.5, metavar="GIB", help="of a sandbox (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="sandboxes at the same time (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of mutants (%(default)s)")
    parser.add_argument("--downloads", type=Path, metavar="FOLDER", help="where distributions are kept (downloads in the folder)")


def mutate(arguments: argparse.Namespace) -> int:
    if min(arguments.most, arguments.concurrency, arguments.most_per_project or 1) < 1:
        raise SettingError("--most, --most-per-project and --concurrency must be at least 1")
    if arguments.cpu <= 0 or arguments.memory <= 0:
        raise SettingError("--cpu and --memory must be above 0")
    return run_until_ended(_mutate(arguments, _projects(arguments)))


def _projects(arguments: argparse.Namespace) -> list[tuple[Project, Path | None]]:
    """Each with its file, where it is one of the caller's."""
    chosen: list[tuple[Project, Path | None]] = []
    for word in arguments.projects or [each.name for each in PROJECTS]:
        if word.endswith((".tar.gz", ".tgz")):
            if not arguments.module or not arguments.tests:
                raise SettingError(f"{word} is a file: name the module to mutate with --module, and its tests with --tests")
            path = Path(word)
            chosen.append((sdist(path, arguments.module, tuple(arguments.tests), arguments.path), path))
            continue
        name, _, version = word.partition("==")
        try:
            known = project(name)
        except ValueError as error:
            raise SettingError(str(error), hint="or give the file of a source distribution") from error
        if version and version != known.version:
            raise SettingError(f"{name} is pinned at {known.version} here", hint="give the file of another release")
        chosen.append((known, None))
    return chosen


async def _mutate(arguments: argparse.Namespace, projects: list[tuple[Project, Path | None]]) -> int:
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    downloads = arguments.downloads or arguments.out / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    for _, path in projects:
        if path is not None:
            (downloads / path.name).write_bytes(path.read_bytes())
    async with AsyncSandboxClient() as client, client.group(f"mutate-{secrets.token_hex(4)}", ttl_s=GROUP_TTL_S) as group:
        factory = Factory(
            maker(client, group=group),
            Archives(arguments.out / "archives"),
            downloads,
            image=arguments.image,
            resources=Resources(arguments.cpu, arguments.memory),
            concurrency=arguments.concurrency,
            seed=arguments.seed,
        )
        try:
            made = factory.rows([each for each, _ in projects], arguments.most, most_per_project=arguments.most_per_project)
            async with contextlib.aclosing(made):
                async for row in made:
                    rows.append(row)
                    _show(len(rows), arguments.most, factory.counts)
        except (FetchError, ArchiveError) as error:
            raise DataError(str(error), hint="a package registry is needed once; what was fetched is kept") from error
        finally:  # also what an interrupted run has made
            if rows:
                files.write_lines(arguments.out / "tasks.jsonl", rows)
    seconds = time.monotonic() - started
    print(
        json.dumps(_record(rows, factory.counts, seconds), indent=2)
        if arguments.json
        else _summary(rows, factory.counts, seconds, arguments.out)
    )
    return 0 if rows else 1


def _show(made: int, wanted: int, counts: MutantCounts) -> None:
    """One line on a terminal, rewritten."""
    if sys.stderr.isatty():
        tried = sum(counts.outcomes.values())
        print(f"\r{made}/{wanted} tasks of {tried} mutants", end="\n" if made == wanted else "", file=sys.stderr, flush=True)


def _record(rows: list[dict[str, Any]], counts: MutantCounts, seconds: float) -> dict[str, Any]:
    return {
        "tasks": len(rows),
        "by_project": dict(Counter(row["repo"] for row in rows)),
        "by_operator": dict(Counter(row["operator"] for row in rows)),
        "by_split": dict(Counter(row["split"] for row in rows)),
        "mutants": dict(counts.outcomes),
        "sandboxes": counts.sandboxes,
        "seconds": round(seconds, 1),
        "test_seconds": round(counts.test_seconds, 1),
        "test_cpu_seconds": round(counts.test_cpu_seconds, 1),
    }


def _summary(rows: list[dict[str, Any]], counts: MutantCounts, seconds: float, folder: Path) -> str:
    record = _record(rows, counts, seconds)
    lines = [f"{record['tasks']} tasks are in {folder / 'tasks.jsonl'} after {seconds:.0f} s and {counts.sandboxes} sandboxes"]
    groups = {name.replace("_", " "): record[name] for name in ("by_project", "by_operator", "by_split", "mutants")}
    lines += [f"{name}: " + ", ".join(f"{key} {count}" for key, count in sorted(found.items())) for name, found in groups.items()]
    each = f", {counts.test_cpu_seconds / len(rows):.2f} s of them for each task" if rows else ""
    return "\n".join([*lines, f"tests took {counts.test_cpu_seconds:.0f} s of processors{each}"])


def add_equivalence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", metavar="TASKS", type=Path, help="tasks of `holdfast recipes mutate`")
    parser.add_argument("--most", type=int, default=100, metavar="N", help="tasks (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="rollouts at the same time on either side (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what the agent does to which task (%(default)s)")
    parser.add_argument("--archives", type=Path, metavar="FOLDER", help="of the tasks (archives beside them)")
    parser.add_argument("--test-timeout", type=float, default=TEST_TIMEOUT_S, metavar="SECONDS", help="of a test run (%(default)s)")


def equivalence(arguments: argparse.Namespace) -> int:
    """1 where a reward differs."""
    tasks = files.tasks(arguments.tasks)
    if any(not task.archives for task in tasks):
        raise SettingError("the bare machine has no images: only tasks that are made from archives can be compared")
    if arguments.concurrency < 1 or arguments.most < 1 or arguments.test_timeout <= 0:
        raise SettingError("--most and --concurrency must be at least 1, and --test-timeout above 0")
    step = max(1, len(tasks) // arguments.most)
    chosen = [replace(task) for task in tasks[::step]][: arguments.most]
    return run_until_ended(_equivalence(arguments, chosen))


async def _equivalence(arguments: argparse.Namespace, tasks: list[Any]) -> int:
    folder = arguments.archives or (arguments.tasks if arguments.tasks.is_dir() else arguments.tasks.parent) / "archives"
    async with AsyncSandboxClient() as client, client.group(f"equivalence-{secrets.token_hex(4)}", ttl_s=GROUP_TTL_S) as group:
        pairs = await compared(
            tasks,
            maker(client, group=group),
            Archives(folder),
            concurrency=arguments.concurrency,
            seed=arguments.seed,
            test_timeout_s=arguments.test_timeout,
        )
    print(json.dumps([pair.to_json() for pair in pairs], indent=2) if arguments.json else table(pairs))
    return 0 if all(pair.same for pair in pairs) else 1
