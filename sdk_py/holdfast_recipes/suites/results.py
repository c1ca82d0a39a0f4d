"""The result of a suite, as one table for people and one record for programs.

Owns their form. Rates, intervals and cost are ``pipeline.evaluate``'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_recipes.pipeline.evaluate import Report, Trial, dumped


@dataclass(frozen=True, slots=True)
class Result:
    """``images`` are those of the tasks, by task; ``digests`` what each of them was while the run lasted; ``left_out`` the tasks that
    cannot be run here, with the reason."""

    suite: str
    title: str
    agent: str
    agent_version: str
    model: str
    seed: int
    rollouts: int
    report: Report
    images: Mapping[str, str]
    digests: Mapping[str, list[str]]
    left_out: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Everything that the table has, in numbers."""
        by_task = {
            task: {
                "solved": solved,
                "trials": trials,
                "image": self.images.get(task, ""),
                "digests": self.digests.get(self.images.get(task, ""), []),
            }
            for task, (solved, trials) in sorted(self.report.by_task.items())
        }
        about = ("suite", "title", "agent", "agent_version", "model", "seed", "rollouts")
        return {name: getattr(self, name) for name in about} | {
            "report": json.loads(dumped(self.report)),
            "by_task": by_task,
            "left_out": dict(self.left_out),
        }


def table(result: Result) -> str:
    """Markdown: one row for the suite, then one for each task with its image."""
    report = result.report
    trials = report.trials
    one = report.rates[0]
    rates = [f"{one.pass_at.estimate:.1%} [{one.pass_at.low:.1%}, {one.pass_at.high:.1%}]" if one.tasks else "no trial"]
    names = ["pass@1"]
    for rate in report.rates[1:]:
        names += [f"pass@{rate.k}", f"pass^{rate.k}"]
        rates += (
            [f"{rate.pass_at.estimate:.1%} [{rate.pass_at.low:.1%}, {rate.pass_at.high:.1%}]", f"{rate.pass_hat:.1%}"]
            if rate.tasks
            else ["no task has so many trials", ""]
        )
    cost = report.cost
    row = {
        "suite": result.title,
        "agent": f"{result.agent} {result.agent_version}".strip(),
        "model": result.model or "none",
        "tasks": str(len(report.by_task)),
        "trials": str(sum(trials.get(kind, 0) for kind in Trial if kind.counts)),
        **dict(zip(names, rates, strict=True)),
        **{f"{kind}": str(trials.get(kind, 0)) for kind in Trial if not kind.counts},
        "left out": str(len(result.left_out)),
        "sandbox-hours": f"{cost.sandbox_hours:.3f}",
        "USD": f"{cost.total_usd:.4f}",
        "USD per solved task": "nothing was solved" if cost.per_solved_usd is None else f"{cost.per_solved_usd:.4f}",
        "seeds": f"{result.rollouts} from {result.seed}",
    }
    lines = [f"# {result.title}", "", *_rows(list(row), [list(row.values())]), ""]
    lines.append(
        f"Intervals are {report.confidence:.0%}, over tasks. Trials that infrastructure or the environment spoiled are in no rate; "
        "each has a column of its own."
    )
    if report.reasons:
        lines += ["", "Reasons: " + ", ".join(f"{name} {count}" for name, count in report.reasons.items())]
    tasks = [
        [task, f"{solved}/{count}", image := result.images.get(task, ""), " then ".join(result.digests.get(image, [])) or "unknown"]
        for task, (solved, count) in sorted(report.by_task.items())
    ]
    lines += ["", *_rows(["task", "solved", "image", "digest"], tasks)]
    if result.left_out:
        lines += ["", "Left out, because they cannot be run here:", ""]
        lines += [f"- {task}: {why}" for task, why in sorted(result.left_out.items())]
    return "\n".join(lines) + "\n"


def _rows(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
