"""``holdfast recipes eval suite``: a published benchmark with one agent and one model, resumably, as one table.

Owns arguments and printing. The suites are in ``suites.registry``; the work is ``suites.playing``'s.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from holdfast_recipes.pipeline.baselines import BASELINES
from holdfast_recipes.pipeline.errors import SettingError
from holdfast_recipes.pipeline.service import OWN, add_policy, add_sandboxes, check_policy, run_until_ended
from holdfast_recipes.suites.kinds import place_of
from holdfast_recipes.suites.playing import play
from holdfast_recipes.suites.registry import SUITES, Suite
from holdfast_recipes.suites.results import table

TABLE, RESULT = "table.md", "result.json"


def add_suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", choices=SUITES, help=", ".join(SUITES))
    parser.add_argument("--tasks", type=Path, metavar="PATH", help="the suite's tasks: rows (JSON lines, parquet), or a folder of tasks")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the run's folder; an unfinished run goes on")
    parser.add_argument("--rollouts", type=int, metavar="N", help="trials of each task (what is usual for the suite)")
    parser.add_argument("--most", type=int, metavar="N", help="only the first tasks")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--tries", type=int, default=3, metavar="N", help="of a trial that infrastructure spoils (%(default)s)")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the intervals (%(default)s)")
    parser.add_argument("--sandbox-hour", type=float, default=0.0, metavar="USD", help="price of a sandbox for an hour")
    parser.add_argument("--no-pull", action="store_true", help="leave images to the creation of sandboxes")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_policy(parser)
    add_sandboxes(parser, "--agent", tuple(BASELINES))
    harbor = parser.add_argument_group("tasks in Harbor's format")
    harbor.add_argument("--image", metavar="NAME", help="of every sandbox, instead of the tasks' own images")
    harbor.add_argument("--no-network", action="store_true", help="no sandbox reaches a network, whatever its task asks for")
    harbor.add_argument("--pass-env", action="append", default=[], metavar="NAME", help="a variable of yours that tasks may use")
    harbor.add_argument("--command-timeout", type=float, default=180.0, metavar="SECONDS", help="of one command (%(default)s)")
    parser.epilog = (parser.epilog or "") + "\nsuites:\n" + "".join(f"  {name:24}{suite.data}\n" for name, suite in SUITES.items())


def suite(arguments: argparse.Namespace) -> int:
    """125 where infrastructure has spoiled every trial."""
    chosen = SUITES[arguments.name]
    place_of(chosen, arguments)
    arguments.rollouts = arguments.rollouts or chosen.rollouts
    arguments.tokens = arguments.tokens or chosen.tokens
    if arguments.command_timeout <= 0:
        raise SettingError("--command-timeout must be above 0")
    if arguments.harness in BASELINES:
        arguments.policy, arguments.harness = arguments.harness, "mini"
    elif not arguments.policy:
        raise SettingError("--policy is missing", hint=f"the address of an endpoint, or --agent {' or '.join(BASELINES)}")
    elif arguments.harness in OWN:
        check_policy(arguments, arguments.model or "")  # before the run's folder keeps the settings
    return run_until_ended(_played(arguments, chosen))


async def _played(arguments: argparse.Namespace, chosen: Suite) -> int:
    result, done = await play(arguments.name, chosen, arguments)
    written = table(result)
    record = {"folder": str(arguments.out), **result.to_json(), "this_process": done.to_json()}
    (arguments.out / TABLE).write_text(written)
    (arguments.out / RESULT).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(record, indent=2, ensure_ascii=False) if arguments.json else written, end="" if not arguments.json else "\n")
    return 125 if done.given_up and not done.finished else 0
