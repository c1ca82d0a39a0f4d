"""The page of results in Markdown, from the figures of `report`. Owns wording and columns; every table says that it is of a miniature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import plan

_SEEDS = 3
_HEAD = """# Results of the miniature

Made by `make recipes-learn` from what `plan.json`, `plan_equal.json` and `plan_repair.json` registered
(digests {plan});
hypotheses and what each arm is: `plan.md`. Every figure is of a policy of some 60,000 parameters, on a shared CPU, in a task of eight
operators (E1: in a small language over a real library): these tables compare algorithms, and predict nothing for language models.
Intervals are 95 % bootstraps over tasks (paired for differences); the column "seeds" has the standard deviation over seeds; where
it is the larger one, an interval over tasks says little. Of the experiments of `plan_equal.json` (at equal steps, at equal tokens,
sweeps, transfer) every interval is over seeds and, within each, over tasks: read those. Arms with different numbers of seeds are
compared by the column of differences alone, which is over the seeds that both have. Seconds and rates are of a
machine with {cores} cores{load}; those of experiments that an earlier run gave (E1, E5, E6, the
superseded E4) are of its machine (`plan.md`).
{missing}"""


CREDIT = {
    "steps": "E4 (miniature): credit-assignment SFT at equal steps (600 for every arm)",
    "tokens": "E4 (miniature): credit-assignment SFT at equal tokens (376,000 with loss for every arm)",
    "steps_more": "E4 (miniature): more arms at equal steps",
    "tokens_more": "E4 (miniature): more arms at equal tokens",
    "eps_exact": "E4 (miniature): sensitivity to ε, exact values with noise .05, at equal steps",
    "eps_rules": "E4 (miniature): sensitivity to ε, values by rules with noise .05, at equal steps",
    "noise": "E4 (miniature): noise on the values, and the wrong convention, at equal steps",
    "sparsity": "E4 (miniature): annotation of every n-th turn, at equal steps",
    "e4": "E4 (miniature), superseded: equal epochs, so the first arm has half of the steps (96 resolved runs)",
    "e4_more_runs": "E4 (miniature): the same with 288 runs of each kind",
    "e4_sweep": "E4 (miniature): what spoils the values (all: + unresolved, rise segments)",
}
"""Experiments on credit assignment, in the order of the page, with their headings."""
BALANCE = {
    "e6": "E6 (miniature): Balanced Adaptive Rollout, tasks with 0 < p̂ ≤ 1/2",
    "e6_hard": "E6 (miniature): tasks with 0 < p̂ ≤ 1/8",
    "e6_noise": "E6 (miniature): 10 % of rewards flipped",
    "e6_rank": "E6 (miniature): failures chosen at random instead of the shortest",
    "transfer": "Transfer (miniature): held-out pairs of function and operator",
    "flipped": "E6 (miniature), five seeds: 10 % of rewards flipped",
    "rank": "E6 (miniature), five seeds: failures chosen at random instead of the shortest",
}


def page(made: Mapping[str, Any]) -> str:
    """The whole page."""
    experiments = made["experiments"]
    parts = [_HEAD.format(plan=", ".join(made["plan"]), missing=_missing(made), **_machine(made["machine"]))]
    parts.append("## What was registered, and what came\n\n" + _hypotheses(made["hypotheses"]))
    if made["e1"]["arms"]:
        parts.append(f"## E1 (miniature): toolz in real sandboxes\n\n{_repair(made['e1'])}")
    if made.get("e1_first"):
        first = made["e1_first"]
        parts.append(f"## E1 (miniature): the first registration\n\n{_FIRST.format(plan=first['plan'])}\n\n{_repaired(first)}")
        parts.append(_hypotheses(first["hypotheses"]))
    for name, title in CREDIT.items():
        if name in experiments:
            parts.append(f"## {title}\n\n{_credit(experiments[name])}")
    if "e5" in experiments:
        parts.append(f"## E5 (miniature): estimates of values against the exact ones\n\n{_estimators(experiments['e5'])}")
    for name, title in BALANCE.items():
        if name in experiments:
            parts.append(f"## {title}\n\n{_balance(experiments[name])}")
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    load = machine.get("load")
    return {"cores": machine["cores"], "load": f" and a load of {load[0]:g} to {load[1]:g}" if load else " and other work (`plan.md`)"}


def _missing(made: Mapping[str, Any]) -> str:
    short = [
        f"{name}: {arm} ({len(row['seeds'])})"
        for name, arms in made["experiments"].items()
        for arm, row in arms.items()
        if "seeds" in row and len(row["seeds"]) < seeds_of(name)
    ]
    unrun = [
        f"{name}: {arm}"
        for name, arms in made["experiments"].items()
        for arm in (plan.load() | plan.load(plan.EQUAL))[name]["arms"]
        if arm not in arms
    ]
    absent_arms = f"\nArms that are registered and not run yet: {'; '.join(unrun)}.\n" if unrun else ""
    absent = [name for name in plan.load() | plan.load(plan.EQUAL) if name != "common" and name not in made["experiments"]]
    absent += [] if made["e1"]["arms"] else ["e1"]
    short += [f"e1: {name} ({len(arm['seeds'])})" for name, arm in made["e1"]["arms"].items() if len(arm["seeds"]) < _SEEDS]
    text = f"\nWith fewer than the registered seeds (how many): {'; '.join(short)}.\n" if short else ""
    return text + absent_arms + (f"\nRegistered and not run yet: {', '.join(absent)}.\n" if absent else "")


def seeds_of(experiment: str) -> int:
    """The number of registered seeds."""
    where = plan.load(plan.EQUAL) if experiment in plan.load(plan.EQUAL) else plan.load()
    return len(where["common"]["seeds"])


def _hypotheses(found: Sequence[Mapping[str, Any]]) -> str:
    words = {True: "held", False: "did not hold", None: "not decided: runs are missing"}
    rows = [[each["name"], each["text"], words[each["held"]] + _seeds(each), _figures(each["figures"])] for each in found]
    return _table(["", "hypothesis (miniature)", "came out", "figures"], rows)


def _seeds(verdict: Mapping[str, Any]) -> str:
    registered = len(plan.load(plan.EQUAL)["common"]["seeds"]) if verdict.get("equal") else _SEEDS
    return "" if verdict["held"] is None or verdict["seeds"] >= registered else f" (on {verdict['seeds']} of {registered} seeds)"


def _figures(figures: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} {_number(value)}" for name, value in figures.items() if value is not None)


def _number(value: Any) -> str:
    if isinstance(value, list) and len(value) == 3:
        return f"{value[0]:.3f} [{value[1]:.3f}, {value[2]:.3f}]"
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    return f"{value:,.0f}" if abs(value) >= 100 or isinstance(value, int) else f"{value:.3f}"


def _credit(arms: Mapping[str, Any]) -> str:
    rows = []
    reference = next((row["reference"] for row in arms.values() if "reference" in row), None)
    for name, row in arms.items():
        over = row.get("solved_over_control_nested") or row.get("solved_over_control")
        spread = "" if row["spread"] is None else f" ± {row['spread']:.3f}"
        rows.append(
            [
                name,
                _number(row.get("over_seeds") or row["solved"]),
                f"{len(row['seeds'])}{spread}",
                _number(over) if over else "",
                *([_number(row["solved_over_reference_nested"]) if "reference" in row else ""] if reference else []),
                f"{row['localised']:.3f}",
                f"{row['solved_greedy']:.3f}",
                f"{row['localised_greedy']:.3f}",
                f"{row['steps']:.0f}",
                f"{row['supervised_tokens'] / 1000:.0f}k",
                f"{row['tokens_read'] / 1000:.0f}k" if row.get("tokens_read") else "",
                str(row.get("rollouts") or ""),
                str(row.get("seconds") or ""),
            ]
        )
    head = [
        "arm (miniature)",
        "solved",
        "seeds",
        "over resolved only",
        *([f"over {reference}"] if reference else []),
        "localised",
        "solved, greedy",
        "localised, greedy",
        "steps",
        "tokens with loss",
        "tokens read",
        "teacher's runs",
        "seconds",
    ]
    return _table(head, rows)


def _estimators(arms: Mapping[str, Any]) -> str:
    columns = ["spearman", "spearman_within", "inverted_u", "credited_share", "credit_overlap"]
    rows = [[name, *("" if row[column] is None else f"{row[column]:.3f}" for column in columns)] for name, row in arms.items()]
    head = [
        "estimator (miniature)",
        "Spearman, all states",
        "mean within a run",
        "inverted-U curves",
        "turns credited",
        "overlap with exact credit",
    ]
    return _table(head, rows)


def _balance(arms: Mapping[str, Any]) -> str:
    rows = []
    for name, row in arms.items():
        if "refused" in row:
            rows.append([name, row["refused"], *[""] * 8])
            continue
        spread = "" if row["spread"] is None else f" ± {row['spread']:.3f}"
        over = row.get("solved_over_fixed_nested") or row.get("solved_over_fixed")
        rows.append(
            [
                name,
                f"{row['initial']:.3f}",
                _number(row["solved"]),
                f"{len(row['seeds'])}{spread}",
                _number(over) if over else "",
                f"{row['pool_initial']:.3f} → {row['pool_solved']:.3f}",
                f"{row['balanced_share']:.2f}",
                f"{row['generated']:,}",
                f"{row['length_bias_negative']:+.2f}",
                f"{row['length_bias_positive']:+.2f}",
            ]
        )
    head = ["arm (miniature)", "solved before", "solved after", "seeds", "over fixed 8", "pool", "balanced groups", "rollouts generated"]
    table = _table([*head, "length bias of failures", "of successes"], rows)
    curves = [
        [name, *(f"{point['solved']:.3f} / {point['generated'] / 1000:.1f}k" for point in row["curve"])]
        for name, row in arms.items()
        if "curve" in row
    ]
    if not curves:
        return table
    updates = [f"after {point['updates']}" for point in next(row["curve"] for row in arms.values() if "curve" in row)]
    return table + "\n\nSolved / rollouts generated, by updates (miniature):\n\n" + _table(["arm", *updates], curves)


_FIRST = """Seeds 21 to 23, 18 updates at a rate of 0.0005 (`plan_repair_first.json`, digest {plan}). Why there is a second
registration is in `plan.md`."""

_SPAN = 4
"""Updates in a column of the learning table."""
_LEARNING = """Share of all graded rollouts of training that solved their task, mean over seeds (miniature). Rollouts of groups that were
dropped, because all or none of them solved it, are among them:"""

_SECONDS = """Where the seconds of a training step went. Rollouts run while the learner works, many at a time, in one process with the
policy, and the three seeds ran side by side, beside the experiments on the twin (rollouts/s is of one seed). Shares are of the seconds
that rollouts took, which is of a step's wall time, since some run at all times. "Round trips" is what passed between the request of a
command and its answer, less the command itself. Holdfast's share is that, creating and deleting. What no column has is mostly waiting for
a core: between the calls of a rollout the process works for others."""


def _repair(made: Mapping[str, Any]) -> str:
    arms = made["arms"]
    parts = [_repaired(made)]
    length = max((len(arm["learning"]) for arm in arms.values()), default=0)
    if length:
        spans = [(first, min(first + _SPAN, length)) for first in range(0, length, _SPAN)]
        rows = [[name, *(_learned(arm["learning"][first:end]) for first, end in spans)] for name, arm in arms.items()]
        parts += [_LEARNING, _table(["run", *(f"updates {first + 1} to {end}" for first, end in spans)], rows)]
    head = ["run", "rollouts/s", "s a step", "of these Holdfast, s", "learner, s a step", "Holdfast", "create", "delete", "round trips"]
    rows = [
        [
            name,
            f"{arm['rollouts_per_second']:.2f}",
            f"{arm['seconds_of_a_step']:.1f}",
            f"{arm['holdfast_seconds_of_a_step']:.1f}",
            f"{arm['learner_seconds_of_a_step']:.2f}",
            *(f"{share:.0%}" for share in arm["shares_of_a_rollout"].values()),
        ]
        for name, arm in arms.items()
    ]
    parts += [_SECONDS, _table([*head, "commands", "policy"], rows)]
    return "\n\n".join(parts)


def _learned(points: Sequence[Mapping[str, float]]) -> str:
    return f"{sum(point['solved'] for point in points) / len(points):.2f}" if points else ""


def _repaired(made: Mapping[str, Any]) -> str:
    """What was solved, what was lost, and the differences."""
    sft, arms = made["sft"], made["arms"]
    counts = sft["tasks"]
    rows = [["SFT", f"{len(sft['seeds'])}", _by_seed(sft), f"{sft['solved'].get('held', 0):.3f}", *[""] * 5]]
    for name, arm in arms.items():
        injected = ", ".join(f"{count} {what}" for what, count in arm["injected"].items()) or "none"
        rows.append(
            [
                f"RL, {name}",
                f"{len(arm['seeds'])}",
                _by_seed(arm),
                f"{arm['solved']['held']:.3f}",
                f"{arm['updates']} ({arm['optimiser_steps']})",
                f"{arm['refused']}",
                f"{arm['generated']:,.0f}",
                f"{arm['infrastructure']:.0f}",
                injected,
            ]
        )
    head = ["run (miniature)", "seeds", "solved, train (by seed)", "held out", "updates (optimiser steps)", "refused", "rollouts"]
    parts = [
        f"{counts.get('train', 0)} tasks of train functions, {counts.get('held', 0)} of held-out ones; the teacher solved "
        + ", ".join(f"{solved} of {runs}" for solved, runs in sft["teacher"])
        + " runs.",
        _table([*head, "lost to infrastructure", "injected"], rows),
        _table(
            ["difference (miniature), paired over tasks", "95 % interval", "by seed"],
            [
                [name, _number(each["interval"]), ", ".join(f"{gain:+.3f}" for gain in each.get("by_seed", ()))]
                for name, each in made["differences"].items()
                if each
            ],
        ),
    ]
    return "\n\n".join(parts)


def _by_seed(arm: Mapping[str, Any]) -> str:
    solved = arm["solved"].get("train", 0.0)
    return f"{solved:.3f} ({', '.join(f'{each:.2f}' for each in arm['solved_by_seed'])})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
