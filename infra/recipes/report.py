"""From the lines of finished jobs to `recipes.json` and the tables of `results.md`.

Owns the figures: means over tasks and seeds, intervals by paired bootstrap over tasks (the same tasks in each arm of a seed), the spread
over seeds beside them, and whether each registered hypothesis held. Every table says that it is of a miniature.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast_recipes.core.metrics import Interval, bootstrap, nested_bootstrap, paired_bootstrap

from . import plan, repair_report
from .verdicts import verdicts

Lines = Sequence[Mapping[str, Any]]
RESAMPLES = 2_000
SWEEPS = ("eps_exact", "eps_rules", "noise", "sparsity", "steps_more")
"""At the steps of `steps` and with its seeds, so that its "resolved only" is the control of these too: the same tasks and resolved runs."""
REFERENCES = {
    "eps_exact": ("eps_exact", "eps 0.05"),
    "eps_rules": ("eps_rules", "eps 0.05"),
    "noise": ("steps", "+ unresolved, rise segments"),
    "sparsity": ("steps", "+ unresolved, rise segments"),
}
"""What the arms of a sweep vary: its experiment and arm."""


def summary(lines: Lines) -> dict[str, Any]:
    """Everything that the tables show, and the lines that failed. Of a job that ran twice the last line counts, of another registration
    none does."""
    digests = {plan.digest(), plan.digest(plan.EQUAL), plan.digest(plan.REPAIR)}
    latest = {(line["experiment"], line["arm"], line["seed"]): line for line in lines if line["plan"] in digests}
    by_experiment: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in latest.values():
        if "error" not in line and line["experiment"] != "e1":
            by_experiment[line["experiment"]].append(line)
    experiments: dict[str, Any] = {}
    for name, found in by_experiment.items():
        kind = (plan.load() | plan.load(plan.EQUAL))[name]["kind"]
        if kind == "credit":
            experiments[name] = _credit(found, by_experiment["steps"] if name in SWEEPS else found)
            if name in REFERENCES:
                other, arm = REFERENCES[name]
                _beside_reference(experiments[name], _by_arm(found), _by_arm(by_experiment[other]).get(arm, []), arm)
        else:
            experiments[name] = {"estimators": _estimators, "balance": _balance}[kind](found)
    repaired = repair_report.summary(
        [line for line in latest.values() if line["experiment"] == "e1" and "error" not in line], plan.load(plan.REPAIR)["fault_rates"]
    )
    return {
        "miniature": True,
        "plan": sorted({line["plan"] for line in latest.values()}),
        "machine": {
            "python": platform.python_version(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load": _ends([line["load"] for line in latest.values() if "load" in line]),
        },
        "failed": [f"{line['experiment']}/{line['arm']}/{line['seed']}" for line in latest.values() if "error" in line],
        "seconds": round(sum(line["seconds"] for line in latest.values())),
        "experiments": experiments,
        "hypotheses": verdicts(experiments, repaired),
        "e1": repaired | {"plan": plan.digest(plan.REPAIR)},
    }


def _ends(values: Sequence[float]) -> list[float] | None:
    return [min(values), max(values)] if values else None


def _by_arm(lines: Lines) -> dict[str, list[Mapping[str, Any]]]:
    arms: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line["seed"]):
        arms[line["arm"]].append(line)
    return arms


def _spread(values: Sequence[float]) -> float | None:
    return round(statistics.stdev(values), 4) if len(values) > 1 else None


def _interval(made: Interval) -> list[float]:
    return [round(each, 4) for each in (made.estimate, made.low, made.high)]


def _tasks(lines: Lines, how: str, what: str, seeds: Sequence[int]) -> list[float]:
    return [float(value) for line in lines if line["seed"] in seeds for value in line["result"][how][what]]


def _credit(lines: Lines, controls: Lines) -> dict[str, Any]:
    """The arms of an experiment. The control of each is "resolved only" of ``controls``, on the seeds that both have."""
    arms = _by_arm(lines)
    control = _by_arm(controls).get("resolved only", [])
    made: dict[str, Any] = {}
    for name, each in arms.items():
        seeds = [line["seed"] for line in each]
        means = [statistics.fmean(line["result"]["sampled"]["solved"]) for line in each]
        row = {
            "seeds": seeds,
            "solved": _interval(bootstrap(_tasks(each, "sampled", "solved", seeds), resamples=RESAMPLES)),
            "solved_by_seed": [round(mean, 4) for mean in means],
            "spread": _spread(means),
            "solved_greedy": round(statistics.fmean(_tasks(each, "greedy", "solved", seeds)), 4),
            "localised": round(statistics.fmean(_tasks(each, "sampled", "localised", seeds)), 4),
            "localised_by_seed": [round(statistics.fmean(line["result"]["sampled"]["localised"]), 4) for line in each],
            "localised_greedy": round(statistics.fmean(_tasks(each, "greedy", "localised", seeds)), 4),
            "malformed": round(statistics.fmean(_tasks(each, "sampled", "malformed", seeds)), 4),
            "rows": round(statistics.fmean(line["result"]["training"]["rows"] for line in each), 1),
            "steps": round(statistics.fmean(line["result"]["training"]["steps"] for line in each), 1),
            "supervised_tokens": round(statistics.fmean(line["result"]["training"]["supervised_tokens"] for line in each)),
            "loss_on": _loss_on(each),
            "seconds": round(statistics.fmean(line["seconds"] for line in each), 1),
            "over_seeds": _interval(nested_bootstrap([_tasks([line], "sampled", "solved", seeds) for line in each], resamples=RESAMPLES)),
        }
        for what in ("tokens_read", "rollouts"):  # lines of the first registration have neither
            found = [line["result"]["training"].get(what, line["result"].get(what)) for line in each]
            row[what] = round(statistics.fmean(found)) if None not in found else None
        both = sorted({line["seed"] for line in control} & set(seeds))
        if both and name != "resolved only":
            for what in ("solved", "localised"):
                row[f"{what}_over_control"] = _interval(
                    paired_bootstrap(_tasks(each, "sampled", what, both), _tasks(control, "sampled", what, both), resamples=RESAMPLES)
                )
                row[f"{what}_over_control_nested"] = _interval(
                    nested_bootstrap(_differences(each, control, what, both), resamples=RESAMPLES)
                )
            row["greedy_over_control"] = _interval(
                paired_bootstrap(_tasks(each, "greedy", "solved", both), _tasks(control, "greedy", "solved", both), resamples=RESAMPLES)
            )
        made[name] = row
    return made


def _beside_reference(made: dict[str, Any], arms: Mapping[str, Lines], reference: Lines, name: str) -> None:
    """Add the difference of each arm of a sweep to what the sweep varies, over the seeds that both have."""
    for arm, each in arms.items():
        both = sorted({line["seed"] for line in reference} & {line["seed"] for line in each})
        if both and arm != name:
            found = nested_bootstrap(_differences(each, reference, "solved", both), resamples=RESAMPLES)
            made[arm] |= {"reference": name, "solved_over_reference_nested": _interval(found)}


def _differences(lines: Lines, control: Lines, what: str, seeds: Sequence[int]) -> list[list[float]]:
    """By seed, for each task the arm's outcome less the control's."""
    return [
        [
            after - before
            for after, before in zip(_tasks(lines, "sampled", what, [seed]), _tasks(control, "sampled", what, [seed]), strict=True)
        ]
        for seed in seeds
    ]


def _loss_on(lines: Lines) -> dict[str, int]:
    totals: dict[str, float] = defaultdict(float)
    for line in lines:
        for name, count in line["result"]["data"].items():
            totals[name] += count / len(lines)
    return {name: round(count) for name, count in sorted(totals.items())}


def _estimators(lines: Lines) -> dict[str, Any]:
    return {
        name: {"seeds": [line["seed"] for line in each]}
        | {
            what: round(statistics.fmean(values), 4)
            if (values := [v for line in each if not math.isnan(v := line["result"][what])])
            else None
            for what in each[0]["result"]
        }
        for name, each in _by_arm(lines).items()
    }


def _balance(lines: Lines) -> dict[str, Any]:
    arms = _by_arm(lines)
    made: dict[str, Any] = {}
    for name, each in arms.items():
        full = [line for line in each if "refused" not in line["result"]]
        if not full:
            made[name] = {"refused": "too few tasks in the pool", "pools": [line["result"]["pool"] for line in each]}
            continue
        ends = [line["result"]["curve"][-1] for line in full]
        means = [statistics.fmean(end["solved"]) for end in ends]
        totals = [line["result"]["totals"] for line in full]
        groups = [sum(total.get(kind, 0.0) for kind in ("balanced", "relaxed", "top")) for total in totals]
        made[name] = {
            "seeds": [line["seed"] for line in full],
            "initial": round(statistics.fmean(statistics.fmean(line["result"]["curve"][0]["solved"]) for line in full), 4),
            "solved": _interval(bootstrap([float(v) for end in ends for v in end["solved"]], resamples=RESAMPLES)),
            "solved_by_seed": [round(mean, 4) for mean in means],
            "spread": _spread(means),
            "pool_solved": round(statistics.fmean(end["pool_solved"] for end in ends), 4),
            "pool_initial": round(statistics.fmean(line["result"]["curve"][0]["pool_solved"] for line in full), 4),
            "generated": round(statistics.fmean(total["generated"] for total in totals)),
            "updates": full[0]["result"]["updates"],
            "groups": round(statistics.fmean(groups)),
            "balanced_share": _balanced_share(totals),
            "dropped_zero_variance": round(statistics.fmean(total.get("dropped_zero_variance", 0.0) for total in totals), 1),
            "length_bias_negative": _mean_of(totals, "length_bias_negative", full),
            "length_bias_positive": _mean_of(totals, "length_bias_positive", full),
            "curve": [
                {
                    "updates": points[0]["updates"],
                    "generated": round(statistics.fmean(point["generated"] for point in points)),
                    "solved": round(statistics.fmean(statistics.fmean(point["solved"]) for point in points), 4),
                    "pool_solved": round(statistics.fmean(point["pool_solved"] for point in points), 4),
                }
                for points in zip(*(line["result"]["curve"] for line in full), strict=True)
            ],
            "final": {str(line["seed"]): line["result"]["curve"][-1]["solved"] for line in full},
            "gain": _interval(nested_bootstrap([_gain(line["result"]["curve"]) for line in full], resamples=RESAMPLES)),
            "seconds": round(statistics.fmean(line["seconds"] for line in full), 1),
        }
    _over(made, "fixed 8, filtered")
    for row in made.values():
        row.pop("final", None)
    return made


def _over(made: dict[str, Any], plain: str) -> None:
    """The difference to the control, on the same tasks of the same seeds. Arms with label noise have a control with that noise."""
    for name, row in made.items():
        control = next((each for each in made if each.startswith(plain) and each.partition(plain)[2] == _suffix(name)), None)
        if control in (None, name) or "final" not in row or "final" not in made[str(control)]:
            continue
        both = sorted(set(row["final"]) & set(made[str(control)]["final"]))
        mine = [float(value) for seed in both for value in row["final"][seed]]
        its = [float(value) for seed in both for value in made[str(control)]["final"][seed]]
        row["solved_over_fixed"] = _interval(paired_bootstrap(mine, its, resamples=RESAMPLES))
        pairs = [(row["final"][seed], made[str(control)]["final"][seed]) for seed in both]
        by_seed = [[float(after - before) for after, before in zip(*pair, strict=True)] for pair in pairs]
        row["solved_over_fixed_nested"] = _interval(nested_bootstrap(by_seed, resamples=RESAMPLES))


def _gain(curve: Sequence[Mapping[str, Any]]) -> list[float]:
    """For each task of the evaluation the outcome after the last update less that before the first."""
    return [float(after - before) for before, after in zip(curve[0]["solved"], curve[-1]["solved"], strict=True)]


def _suffix(name: str) -> str:
    return "," + name.rpartition(",")[2] if name.endswith("flipped") else ""


def _balanced_share(totals: Sequence[Mapping[str, float]]) -> float:
    """Of the groups that were trained on, those with a share of successes in [3/8, 5/8]."""
    return round(
        sum(total.get("trained_balanced", 0.0) for total in totals) / max(1.0, sum(total.get("trained_groups", 0.0) for total in totals)), 4
    )


def _mean_of(totals: Sequence[Mapping[str, float]], name: str, lines: Lines) -> float:
    return round(statistics.fmean(total.get(name, 0.0) / line["result"]["updates"] for total, line in zip(totals, lines, strict=True)), 3)


def write(lines: Lines, path: Path, earlier: Path | None = None) -> dict[str, Any]:
    """``earlier``: figures of an earlier file, for the experiments of which there are no lines here; their digests stand beside ours."""
    made = summary(lines)
    if earlier is not None:
        before = json.loads(earlier.read_text())
        same = before["e1"].get("plan") == plan.digest(plan.REPAIR)
        if (same and not made["e1"]["arms"]) or before["experiments"].keys() - made["experiments"].keys():
            made["plan"] = sorted({*made["plan"], *before["plan"]})
        made["experiments"] = before["experiments"] | made["experiments"]
        made["e1"] = before["e1"] if same and not made["e1"]["arms"] else made["e1"]
        made["e1_first"] = before.get("e1_first")
        made["hypotheses"] = verdicts(made["experiments"], made["e1"])
    path.write_text(json.dumps(made, indent=1) + "\n")
    return made
