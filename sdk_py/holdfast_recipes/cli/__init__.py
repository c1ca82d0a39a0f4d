"""The command line of the recipes: ``holdfast recipes COMMAND``, or ``python -m holdfast_recipes COMMAND``.

Owns the list of commands, and what errors look like; each command's module is imported when it is used. ``main(words)`` returns an exit
code, with the meanings of ``holdfast``'s: 0 done, 1 something that was checked is not right, 2 wrong arguments, settings or files,
125 a service failed or does not answer, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

_PROGRAM = "holdfast recipes"


@dataclass(frozen=True, slots=True)
class _Command:
    """``entry`` is ``module:function``; ``add_<name>`` beside it adds the arguments (``add`` where the module has one command)."""

    help: str
    entry: str
    examples: str = ""


COMMANDS: dict[str, _Command] = {
    "mutate": _Command(
        "make validated repair tasks from the source distributions of libraries",
        "tasks:mutate",
        "holdfast recipes mutate --out tasks\nholdfast recipes mutate inflection toolz --out few --most 40",
    ),
    "equivalence": _Command(
        "play the same scripted agent on this machine and in sandboxes",
        "tasks:equivalence",
        "holdfast recipes equivalence tasks/tasks.jsonl --most 100",
    ),
    "tasks": _Command(
        "screen tasks in sandboxes (leaks, flaky tests), or keep those of trainable difficulty",
        "pools:tasks",
        "holdfast recipes tasks screen tasks.jsonl --out screened --runs 5\n"
        "holdfast recipes tasks band tasks.jsonl --runs-of run --high 0.5 --out pool",
    ),
    "collect": _Command(
        "roll tasks out in sandboxes, resumably",
        "rollouts:collect",
        "holdfast recipes collect tasks.jsonl --out run --policy http://127.0.0.1:8000/v1 --model my-model --rollouts 5\n"
        "holdfast recipes collect tasks.jsonl --out check --policy gold --rollouts 1",
    ),
    "annotate": _Command(
        "estimate the values of unresolved runs",
        "rollouts:annotate",
        "holdfast recipes annotate run --out annotated.jsonl --policy http://127.0.0.1:8000/v1\n"
        "holdfast recipes annotate run --out annotated.jsonl --estimator milestones --tasks tasks.jsonl",
    ),
    "curate": _Command(
        "filter runs, assign credit and write a data set with a card",
        "data:curate",
        "holdfast recipes curate annotated.jsonl --out set --tokenizer student/tokenizer.json --licence apache-2.0\n"
        "holdfast recipes curate run --out set --tokenizer bytes --unresolved drop --form jsonl",
    ),
    "validate": _Command("check a data set or a file of trajectories", "data:validate", "holdfast recipes validate set"),
    "export": _Command(
        "rows for TRL, verl, slime, Axolotl or LLaMA-Factory, with loss on the credited turns",
        "exports:export",
        "holdfast recipes export set --engine trl --tokenizer student/tokenizer.json --out trl.jsonl\n"
        "holdfast recipes export set --engine axolotl --out axolotl.jsonl",
    ),
    "sft": _Command("train on a data set (needs the extra train)", "training:sft", "holdfast recipes sft --help"),
    "rl": _Command("train on rollouts (needs the extra train)", "training:rl", "holdfast recipes rl --help"),
    "eval": _Command(
        "success rates of runs, with intervals and cost",
        "reports:evaluate",
        "holdfast recipes eval run --k 1 3\nholdfast recipes eval after --against before --json",
    ),
    "eval suite": _Command(
        "a published benchmark with one agent and one model, resumably, as one table",
        "suites:suite",
        "holdfast recipes eval suite swe-bench-verified --tasks verified.parquet --out run \\\n"
        "    --agent mini --policy http://127.0.0.1:8000/v1 --model my-model\n"
        "holdfast recipes eval suite terminal-bench-2 --tasks terminal-bench-2 --out check --agent gold --rollouts 1",
    ),
    "agree": _Command(
        "how far two estimators of values agree on the same runs",
        "reports:agree",
        "holdfast recipes agree annotated.jsonl by-rollouts.jsonl",
    ),
    "report": _Command(
        "one HTML page of learning, values, groups and evaluations",
        "reports:report",
        "holdfast recipes report --steps BAR=steps.jsonl --runs set --eval run --out report.html",
    ),
    "cost": _Command(
        "what sandboxes cost here and at hosted services (Table 2 of the Orchard paper)",
        "cost:run",
        "holdfast recipes cost\nholdfast recipes cost --sandboxes 512 --hours 24 --allocatable-cpu 15.5",
    ),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        from holdfast_recipes.pipeline.errors import UsageError

        raise UsageError(message, hint=f"{self.prog} --help shows its options")


def main(words: Sequence[str]) -> int:
    """Run the command that ``words`` name."""
    words = list(words)
    if words[:1] == ["--json"]:  # it may also stand before the command
        words = [*words[1:2], "--json", *words[2:]]
    if words[:2] == ["eval", "suite"]:  # one command of two words; a run in a folder of that name is ./suite
        words = ["eval suite", *words[2:]]
    as_json = "--json" in words
    try:
        return _run(words)
    except SystemExit as ended:  # argparse has printed help, or what is wrong
        return ended.code if isinstance(ended.code, int) else 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115  the reader of our output has gone
        return 141
    except Exception as error:  # noqa: BLE001  what is not known is raised again
        return _reported(error, words[0] if words else "", as_json=as_json)


def _run(words: list[str]) -> int:
    parser = _Parser(prog=_PROGRAM, description="Training and evaluation recipes on Holdfast: from tasks to a policy.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = words[0] if words and words[0] in COMMANDS else None
    for name, command in COMMANDS.items():
        made = commands.add_parser(
            name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog="examples:\n" + "".join(f"  {line}\n" for line in command.examples.splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=name not in ("sft", "rl"),
        )
        if name == chosen:
            module, _, function = command.entry.partition(":")
            home = import_module(f"{__name__}.{module}")
            if function in ("sft", "rl"):  # their words are read by the training package
                return int(getattr(home, function)(words[1:], made))
            getattr(home, "add" if module == "cost" else f"add_{function}")(made)
            made.add_argument("--json", action="store_true", help="print JSON")
            made.set_defaults(perform=getattr(home, function))
    arguments = parser.parse_args(words)
    return int(arguments.perform(arguments))


def _reported(error: Exception, command: str, *, as_json: bool) -> int:
    """Print a known error; raise any other again, which is a defect."""
    import holdfast

    from holdfast_recipes.core.errors import ConfigurationError
    from holdfast_recipes.pipeline.errors import RecipeError

    if isinstance(error, RecipeError):
        code, message, hint, status = error.code, str(error), error.hint, error.exit_code
    elif isinstance(error, holdfast.HoldfastError):
        wrong = isinstance(error, holdfast.InvalidArgumentError | holdfast.ConfigurationError)
        code, message, hint, status = error.code, error.message, error.hint, 2 if wrong else 125
    elif isinstance(error, ConfigurationError):
        code, message, hint, status = "invalid_setting", str(error), "", 2
    elif isinstance(error, OSError):
        place = f": {error.filename}" if error.filename else ""
        code, message, hint, status = "os_error", f"{error.strerror or error}{place}", "look at the path and the room there is", 2
    else:
        raise error
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"{_PROGRAM} {command}".rstrip() + f": {message}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)
    return status
