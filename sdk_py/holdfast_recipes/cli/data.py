"""``holdfast recipes curate`` and ``validate``: from runs to a data set, and the check of one.

Owns arguments, the choice of a subset, and printing. Filters and credit are in ``pipeline.curate``, files in ``pipeline.publish``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from holdfast_recipes.core.credit import CreditRules
from holdfast_recipes.core.curation import SWE_TOKEN_LIMIT
from holdfast_recipes.core.selection import SELECTORS, Candidate, select
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline import validate as validation
from holdfast_recipes.pipeline.curate import UNRESOLVED, Curation, Curator, curated, token_count
from holdfast_recipes.pipeline.errors import SettingError
from holdfast_recipes.pipeline.publish import ROWS_PER_FILE, About, publish


def add_curate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="runs' folders, or files of trajectories")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder for the data set")
    parser.add_argument("--name", help="of the data set (the folder's)")
    parser.add_argument("--licence", default="", help="for the card")
    parser.add_argument("--description", default="", help="for the card")
    parser.add_argument(
        "--tokenizer", default="recorded", metavar="HOW", help="recorded, bytes, or the student's tokenizer.json (%(default)s)"
    )
    parser.add_argument("--token-limit", type=int, default=SWE_TOKEN_LIMIT, metavar="N", help="drop longer runs (%(default)s)")
    parser.add_argument(
        "--unresolved", choices=UNRESOLVED, default="credit", help="loss on credited turns, drop, or all turns (%(default)s)"
    )
    rules = CreditRules()
    parser.add_argument("--eps", type=float, default=rules.eps, help="least rise of a value from turn to turn (%(default)s)")
    parser.add_argument("--merge-gap", type=int, default=rules.merge_gap, metavar="K", help="join rises up to K steps apart (%(default)s)")
    parser.add_argument("--closed", action="store_true", help="credit the literal interval of the paper")
    parser.add_argument("--select", choices=[*SELECTORS, "composite"], help="choose --count resolved runs (needs --tasks)")
    parser.add_argument("--count", type=int, metavar="N", help="of --select")
    parser.add_argument("--tasks", type=Path, metavar="FILE", help="the tasks, whose gold patches selectors measure")
    parser.add_argument("--seed", type=int, default=0, help="of --select (%(default)s)")
    parser.add_argument("--form", choices=("parquet", "jsonl"), default="parquet", help="of the files (%(default)s; parquet needs pyarrow)")
    parser.add_argument("--rows-per-file", type=int, default=ROWS_PER_FILE, metavar="N", help="(%(default)s)")


def curate(arguments: argparse.Namespace) -> int:
    if bool(arguments.select) != (arguments.count is not None) or (arguments.select and not arguments.tasks):
        raise SettingError("--select, --count and --tasks belong together")
    try:
        rules = CreditRules(eps=arguments.eps, merge_gap=arguments.merge_gap, closed=arguments.closed)
        settings = Curation(arguments.unresolved, rules, arguments.token_limit)
    except ValueError as error:
        raise SettingError(str(error)) from error
    if arguments.eps < 0 or arguments.merge_gap < 0 or arguments.token_limit < 1 or (arguments.count or 0) < 0:
        raise SettingError("--eps, --merge-gap and --count cannot be below 0, nor --token-limit below 1")
    count = token_count(arguments.tokenizer)
    chosen = _chosen(arguments, Curator(count, settings)) if arguments.select else None
    curator = Curator(count, settings)
    kept = curated(_runs(arguments.runs), curator)
    shown = {"eps": rules.eps, "merge_gap": rules.merge_gap, "closed": rules.closed, "unresolved": settings.unresolved}
    shown |= {"token_limit": settings.token_limit, "tokenizer": arguments.tokenizer}
    shown |= {"select": arguments.select, "count": arguments.count, "seed": arguments.seed} if arguments.select else {}
    about = About(
        arguments.name or arguments.out.name, arguments.licence, arguments.description, lambda: curator.seen, curator.dropped, shown
    )
    if chosen is not None:
        kept = (run for run in kept if run.trajectory_id in chosen)
    manifest = publish(kept, arguments.out, about, form=arguments.form, rows_per_file=arguments.rows_per_file)
    if arguments.json:
        print(json.dumps({"folder": str(arguments.out), **manifest}, indent=2, ensure_ascii=False))
        return 0
    dropped = ", ".join(f"{name} {number}" for name, number in curator.dropped.items() if number) or "nothing"
    print(f"{curator.seen} runs, {manifest['rows']} kept: {manifest['resolved']} resolved, {manifest['unresolved']} unresolved")
    print(f"dropped: {dropped}")
    if manifest["turns_of_unresolved"]:
        print(f"turns of unresolved runs with loss: {manifest['credited_turns']} of {manifest['turns_of_unresolved']}")
    print(f"wrote {arguments.out}")
    return 0


def _runs(paths: list[Path]) -> Iterator[Trajectory]:
    for path in paths:
        yield from files.trajectories(path)


def _chosen(arguments: argparse.Namespace, curator: Curator) -> frozenset[str]:
    """Ids of the runs that a selector takes, of the resolved ones that the filters keep."""
    patches = {task.task_id: task.gold_patch for task in files.tasks(arguments.tasks)}
    kept = [(run.trajectory_id, run.task_id, run.repo) for run in curated(_runs(arguments.runs), curator) if run.resolved]
    if unknown := sorted({task for _, task, _ in kept} - patches.keys()):
        raise SettingError(
            f"{arguments.tasks} lacks tasks of the runs: {', '.join(unknown[:3])}", hint="give the file they were collected from"
        )
    candidates = [Candidate.of_patch(repo, patches[task]) for _, task, repo in kept]
    return frozenset(kept[index][0] for index in select(arguments.select, candidates, arguments.count, seed=arguments.seed))


def add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=Path, help="a data set's folder, a run's folder, or a file of rows or trajectories")
    parser.add_argument("--most", type=int, default=100, metavar="N", help="show at most so many problems (%(default)s)")


def validate(arguments: argparse.Namespace) -> int:
    """1 where there are problems."""
    found = validation.validate(arguments.path, most=max(0, arguments.most))
    if arguments.json:
        print(json.dumps({"path": str(arguments.path), "ok": not found, "problems": found}, indent=2, ensure_ascii=False))
    else:
        print("\n".join(found) or f"{arguments.path}: nothing is wrong")
    return 1 if found else 0
