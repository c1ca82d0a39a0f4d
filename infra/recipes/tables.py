"""The page of results in Markdown, from the figures of `report`. Owns wording and columns; every table says that it is of a miniature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import plan

_SEEDS = 3
_HEAD = """# Results of the miniature

Made by `make recipes-learn` from what `plan.json` registered (digest {plan}); hypotheses and what each arm is: `plan.md`. Every
figure is of a policy of some 60,000 parameters in a task of eight operators, on a shared CPU: these tables compare algorithms, and
predict nothing for language models. Intervals are 95 % bootstraps over tasks (paired for differences); the column "seeds" has the
standard deviation over seeds; where it is the larger one, an interval over tasks says little. Arms with different numbers of seeds are
compared by the column of differences alone, which is over the seeds that both have.
{missing}"""


def page(made: Mapping[str, Any]) -> str:
    """The whole page."""
    experiments = made["experiments"]
    parts = [_HEAD.format(plan=", ".join(made["plan"]), missing=_missing(made))]
    parts.append("## What was registered, and what came\n\n" + _hypotheses(made["hypotheses"]))
    titles = {
        "e4": "E4 (miniature): credit-assignment SFT, 96 resolved runs",
        "e4_more_runs": "E4 (miniature): the same with 288 runs of each kind",
        "e4_sweep": "E4 (miniature): what spoils the values (all: + unresolved, rise segments)",
    }
    for name, title in titles.items():
        if name in experiments:
            parts.append(f"## {title}\n\n{_credit(experiments[name])}")
    if "e5" in experiments:
        parts.append(f"## E5 (miniature): estimates of values against the exact ones\n\n{_estimators(experiments['e5'])}")
    for name, title in {
        "e6": "E6 (miniature): Balanced Adaptive Rollout, tasks with 0 < p̂ ≤ 1/2",
        "e6_hard": "E6 (miniature): tasks with 0 < p̂ ≤ 1/8",
        "e6_noise": "E6 (miniature): 10 % of rewards flipped",
        "e6_rank": "E6 (miniature): failures chosen at random instead of the shortest",
    }.items():
        if name in experiments:
            parts.append(f"## {title}\n\n{_balance(experiments[name])}")
    if made.get("e1"):
        parts.append(f"## E1 (miniature): toolz in real sandboxes\n\n{_repair(made['e1'])}")
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _missing(made: Mapping[str, Any]) -> str:
    short = [
        f"{name}: {arm} ({len(row['seeds'])})"
        for name, arms in made["experiments"].items()
        for arm, row in arms.items()
        if "seeds" in row and len(row["seeds"]) < _SEEDS
    ]
    absent = [name for name in plan.load() if name != "common" and name not in made["experiments"]]
    absent += [] if made.get("e1") else ["e1"]
    said = f"\nWith fewer than the registered three seeds (how many): {'; '.join(short)}.\n" if short else ""
    return said + (f"\nRegistered and not run yet: {', '.join(absent)}.\n" if absent else "")


def _hypotheses(found: Sequence[Mapping[str, Any]]) -> str:
    words = {True: "held", False: "did not hold", None: "not decided: runs are missing"}
    rows = [
        [each["name"], each["text"], words[each["held"]] + _seeds(each["seeds"], each["held"]), _figures(each["figures"])] for each in found
    ]
    return _table(["", "hypothesis (miniature)", "came out", "figures"], rows)


def _seeds(count: int, held: bool | None) -> str:
    return "" if held is None or count >= _SEEDS else f" (on {count} of {_SEEDS} seeds)"


def _figures(figures: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} {_number(value)}" for name, value in figures.items() if value is not None)


def _number(value: Any) -> str:
    if isinstance(value, list) and len(value) == 3:
        return f"{value[0]:.3f} [{value[1]:.3f}, {value[2]:.3f}]"
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    return f"{value:,.0f}" if isinstance(value, int | float) and abs(value) >= 100 else f"{value:.3f}"


def _credit(arms: Mapping[str, Any]) -> str:
    rows = []
    for name, row in arms.items():
        over = row.get("solved_over_control")
        spread = "" if row["spread"] is None else f" ± {row['spread']:.3f}"
        rows.append(
            [
                name,
                _number(row["solved"]),
                f"{len(row['seeds'])}{spread}",
                _number(over) if over else "",
                f"{row['localised']:.3f}",
                f"{row['solved_greedy']:.3f}",
                f"{row['localised_greedy']:.3f}",
                f"{row['steps']:.0f}",
                f"{row['supervised_tokens'] / 1000:.0f}k",
            ]
        )
    head = [
        "arm (miniature)",
        "solved",
        "seeds",
        "over resolved only",
        "localised",
        "solved, greedy",
        "localised, greedy",
        "steps",
        "tokens with loss",
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
        over = row.get("solved_over_fixed")
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


def _repair(lines: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for line in lines:
        made = line["result"]
        rows.append(
            [
                f"seed {line['seed']}, {line['fault_rate']:.0%} faults",
                str(made["updates"]),
                f"{made['generated']:.0f}",
                f"{made['infrastructure']:.0f}",
                f"{made['teacher']['solved']}/{made['teacher']['runs']}",
                *(
                    f"{made[stage][part]['solved']:.3f} [{made[stage][part]['interval'][0]:.3f}, {made[stage][part]['interval'][1]:.3f}]"
                    for part in ("train", "held")
                    for stage in ("sft", "rl")
                ),
                f"{made['rl_seconds']:.0f}",
            ]
        )
    head = [
        "run (miniature)",
        "updates",
        "rollouts",
        "lost to infrastructure",
        "teacher",
        "SFT, train",
        "RL, train",
        "SFT, held out",
        "RL, held out",
    ]
    return _table([*head, "seconds of RL"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
