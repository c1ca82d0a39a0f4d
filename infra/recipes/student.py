"""The tiny policy as the experiments use it: its size, the rows it learns from, its evaluation on the twin."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from holdfast_recipes.miniature import language
from holdfast_recipes.miniature.teacher import Episode
from holdfast_recipes.miniature.twin import Bug, Twin
from holdfast_recipes.training.batches import Row
from holdfast_recipes.training.model import Model, Shape
from holdfast_recipes.training.policy import play
from holdfast_recipes.training.sft import Sft

from .plan import optimiser, world


def student(settings: dict[str, Any], seed: int) -> Model:
    return Model(Shape(len(language.WORDS), width=settings["width"], layers=settings["layers"], heads=4), seed)


def row(episode: Episode, turns: Collection[int] | None = None) -> Row:
    """The tokens of a run, with the given turns as targets (all of them for None)."""
    ids, spans = language.encode(episode.steps)
    return Row(tuple(ids), tuple(language.mask(spans, turns, len(ids))))


def supervised(settings: dict[str, Any], rows: Sequence[Row], seed: int) -> tuple[Model, dict[str, float]]:
    """A policy trained from scratch on rows, and what it took."""
    model = student(settings, seed)
    adam, schedule = optimiser(settings, len(rows))
    losses: list[float] = []
    run = Sft(model, rows, adam, schedule, batch=settings["sft_batch"], seed=seed)
    run.run(report=lambda step, numbers: losses.append(numbers["loss"]))
    tail = losses[-20:]
    return model, {
        "steps": float(len(losses)),
        "supervised_tokens": float(run.supervised_tokens),
        "tokens_read": float(round(len(losses) * settings["sft_batch"] * sum(len(each.ids) for each in run.rows) / len(run.rows))),
        "final_loss": sum(tail) / len(tail) if tail else 0.0,
        "rows": float(len(run.rows)),
        "targets_per_row": sum(each.targets for each in run.rows) / len(run.rows),
    }


def evaluated(model: Model, settings: dict[str, Any], seed: int, tasks: Sequence[Bug], temperature: float = 1.0) -> dict[str, list[int]]:
    """For each task whether it was solved, whether an edit reached the right line, and how many malformed lines there were."""
    twins = [Twin(task, world(settings, seed), settings["most_steps"]) for task in tasks]
    episodes = play(model, twins, [seed * 1_000_003 + index for index in range(len(tasks))], temperature)
    return {
        "solved": [int(episode.twin.solved) for episode in episodes],
        "localised": [int(episode.twin.localised) for episode in episodes],
        "malformed": [episode.twin.malformed for episode in episodes],
    }
