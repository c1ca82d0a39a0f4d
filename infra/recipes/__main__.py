"""`make recipes-learn` and its parts: runs what `plan.json` registers and writes `recipes.json` and the tables.

Owns the command line. `learn` runs jobs that have no result yet; `report` makes figures and tables from the results that are there.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from holdfast_server.subreaper import die_with_parent

from . import jobs, page, plan, repair_runs, report, smoke, tables

MAIN = ["e5", "e4", "e6"]
EQUAL = list(plan.load(plan.EQUAL))[1:]
"""At equal steps and at equal tokens, with the sweeps, in the order in which they are run."""
MORE = ["e6_hard", "e6_noise", "e6_rank", "e4_more_runs", "e4_sweep"]
"""The second part of what is registered, for which the hour has no room."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.recipes", description="The recipes' experiments, in a miniature.")
    commands = parser.add_subparsers(dest="command", required=True)
    learn = commands.add_parser("learn", help="run the registered experiments")
    learn.add_argument("--only", nargs="+", choices=MAIN + EQUAL + MORE, help=f"instead of {' '.join(MAIN)}")
    learn.add_argument("--more", action="store_true", help=f"also the second part: {' '.join(MORE)}")
    learn.add_argument("--seeds", nargs="+", type=int, help="instead of the registered ones")
    learn.add_argument("--processes", type=int, default=2)
    learn.add_argument("--limit-s", type=float, help="start nothing more after so many seconds")
    repair = commands.add_parser("repair", help="E1: learn in real sandboxes, without and with injected faults")
    repair.add_argument("--seeds", nargs="+", type=int)
    repair.add_argument("--limit-s", type=float, help="begin no further run after so many seconds")
    commands.add_parser("smoke", help="the parts of `make recipes`")
    shown = commands.add_parser("report", help="write recipes.json and print the tables")
    for each in (learn, repair, shown):
        each.add_argument("--results", type=Path, default=Path("build/recipes/runs.jsonl"))
    shown.add_argument("--json", type=Path, default=Path("recipes.json"))
    shown.add_argument("--tables", type=Path, help="also the page in Markdown")
    shown.add_argument("--html", type=Path, help="also the page with charts")
    shown.add_argument("--earlier", type=Path, help="a recipes.json that gives the experiments of which there are no lines")
    arguments = parser.parse_args(words)
    if jobs.PARENT in os.environ:
        die_with_parent(signal.SIGKILL, int(os.environ[jobs.PARENT]))
    if arguments.command == "smoke":
        return smoke.main()
    if arguments.command == "repair":
        return repair_runs.main(arguments.results, arguments.seeds, arguments.limit_s)
    if arguments.command == "learn":
        chosen = arguments.only or MAIN + (EQUAL + MORE if arguments.more else [])
        registered = plan.jobs(plan.PATH, [name for name in chosen if name not in EQUAL], arguments.seeds)
        registered += plan.jobs(plan.EQUAL, [name for name in chosen if name in EQUAL], arguments.seeds)
        lines = jobs.run(registered, arguments.results, arguments.processes, arguments.limit_s)
        latest = {(line["experiment"], line["arm"], line["seed"]): line for line in lines}
        return 1 if any("error" in line for line in latest.values()) else 0
    made = report.write(jobs.read(arguments.results), arguments.json, arguments.earlier)
    if arguments.tables:
        arguments.tables.write_text(tables.page(made))
    if arguments.html:
        arguments.html.write_text(page.page(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
