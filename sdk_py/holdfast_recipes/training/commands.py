"""``holdfast recipes sft`` and ``rl``: small models from scratch, on a CPU.

Owns their arguments, and the rows that a data set becomes. ``sft`` trains on a data set of ``curate`` (or on trajectories), on all turns
of resolved runs and on the credited turns of others. ``rl`` learns in the pure twin of a repair task, where nothing but this process is
needed; for sandboxes see ``infra/recipes``. Both go on from their checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.metrics import wilson
from holdfast_recipes.core.presets import Optimiser
from holdfast_recipes.core.records import from_json, from_row
from holdfast_recipes.core.schedule import Schedule, steps_per_epoch
from holdfast_recipes.core.scored import Scored
from holdfast_recipes.core.spans import encode, loss_mask, truncate_left
from holdfast_recipes.core.template import render
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.miniature import language
from holdfast_recipes.miniature.teacher import Teacher, collect
from holdfast_recipes.miniature.twin import Bug, Twin, World, bugs
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.pipeline.errors import DataError
from holdfast_recipes.pipeline.export import credited
from holdfast_recipes.policy.tokenizer import ByteTokenizer

from .batches import Row
from .model import Model, Shape
from .policy import play
from .rl import Learner, Lockstep, Objective, endless, train
from .sft import Sft

_STEPS_PER_EPISODE = 8
UNCREDITED, TOO_LONG = "unresolved without credited turns", "with no turn to learn from that fits"
_HINT = "Give a larger --context for rows that are too long; curate gives unresolved runs their turns (--unresolved credit or all)."


def sft(words: Sequence[str]) -> int:
    """Train on a data set; the words are those after the command."""
    parser = argparse.ArgumentParser(
        prog="holdfast recipes sft", description="Train a small transformer from scratch on a data set, on a CPU."
    )
    parser.add_argument("data", type=Path, help="a data set's folder, a file of it, or a run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint; a run that finds one continues from it")
    parser.add_argument("--epochs", type=int, default=5, help="(%(default)s, as the paper)")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak; a cosine leads to a tenth of it (%(default)s)")
    parser.add_argument("--context", type=int, default=1024, help="tokens (bytes) of a row; older messages are cut (%(default)s)")
    parser.add_argument("--reduce", choices=("token_mean", "sequence_mean", "token_sum"), default="token_mean")
    _shared(parser)
    arguments = parser.parse_args(words)
    torch.set_num_threads(arguments.threads)
    rows, dropped = data_rows(arguments.data, arguments.context)
    why = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "it has none"
    if not rows:
        raise DataError(f"{arguments.data}: no row has a turn to learn from within {arguments.context} tokens ({why})", hint=_HINT)
    if dropped:
        print(f"sft: {sum(dropped.values())} rows are left out: {why}. {_HINT}", file=sys.stderr)
    model = Model(Shape(ByteTokenizer().size, arguments.width, arguments.layers, context=arguments.context), arguments.seed)
    steps = arguments.epochs * steps_per_epoch(len(rows), arguments.batch)
    schedule = Schedule(arguments.rate, steps, arguments.rate / 10)
    run = Sft(
        model,
        rows,
        Optimiser(arguments.rate, arguments.rate / 10),
        schedule,
        batch=arguments.batch,
        seed=arguments.seed,
        reduce=arguments.reduce,
        checkpoint=arguments.out,
    )
    losses: list[float] = []
    run.run(report=lambda step, numbers: losses.append(numbers["loss"]))
    record = {
        "rows": len(rows),
        "dropped": sum(dropped.values()),
        "dropped_for": dict(dropped),
        "steps": run.optimisation.step,
        "parameters": model.parameter_count(),
        "supervised_tokens": run.supervised_tokens,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "checkpoint": str(arguments.out),
    }
    _print(record, arguments.json)
    return 0


def rl(words: Sequence[str]) -> int:
    """SFT on a scripted teacher, then Balanced Adaptive Rollout and the clipped objective, in the twin of a repair task."""
    parser = argparse.ArgumentParser(
        prog="holdfast recipes rl", description="Learn the miniature of a repair task by RL, from scratch, on a CPU."
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder: sft.pt, rl.pt and steps.jsonl, which `report` draws")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=8, help="groups of a batch")
    parser.add_argument("--group", type=int, default=8, help="N")
    parser.add_argument("--most", type=int, default=16, help="N_max")
    parser.add_argument("--stride", type=int, default=4, help="s; must divide N_max")
    parser.add_argument("--share", nargs=2, default=["0.375", "0.625"], metavar=("LOW", "HIGH"), help="of successes in a balanced group")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--teacher-runs", type=int, default=96)
    parser.add_argument("--sft-epochs", type=int, default=100)
    _shared(parser)
    arguments = parser.parse_args(words)
    torch.set_num_threads(arguments.threads)
    world = World.make(arguments.seed, operators=8, numbers=24)
    model = _taught(arguments, world)
    learner = Learner(
        model,
        Optimiser(arguments.rate, arguments.rate, weight_decay=0.0),
        Schedule(arguments.rate, max(1, arguments.updates), arguments.rate, shape="constant"),
        lambda episode, advantage: episode.row(advantage),
        objective=Objective(),
        checkpoint=arguments.out / "rl.pt",
        save_every=1,
    )
    low, high = arguments.share
    tasks = list(islice(bugs(world, 500_000 + arguments.seed), 256))
    batching: Batching[Bug] = Batching(
        endless(tasks, arguments.seed + learner.version),
        batch=arguments.prompts,
        balance=lambda: Balance(arguments.group, arguments.most, arguments.stride, low, high),
    )

    def rollouts(weights: Model, prompts: Sequence[Bug], seeds: Sequence[int]) -> list[Scored]:
        return [episode.scored() for episode in play(weights, [Twin(bug, world, _STEPS_PER_EPISODE) for bug in prompts], seeds)]

    first = _solved(learner.model, world, arguments.seed)
    with (arguments.out / "steps.jsonl").open("a") as file:

        def report(numbers: dict[str, float]) -> None:
            evaluation = _solved(learner.model, world, arguments.seed)
            counts = {
                name: int(numbers.get(name, 0)) for name in ("generated", "usable", "balanced", "relaxed", "top", "dropped_zero_variance")
            }
            record = {"step": learner.version, "version": learner.version, "counts": counts, "reward": numbers["pool_reward"]}
            file.write(json.dumps(record | {"loss": numbers.get("loss"), "evaluation": evaluation}) + "\n")
            file.flush()

        source = Lockstep(batching, rollouts, learner.weights(), arguments.seed + learner.version)
        asyncio.run(train(learner, source, max(0, arguments.updates - learner.version), report=report, overlap=False))
    last = _solved(learner.model, world, arguments.seed)
    record = {"miniature": True, "updates": learner.version, "solved_before": first, "solved_after": last, "out": str(arguments.out)}
    _print(record, arguments.json)
    return 0


def data_rows(path: Path, context: int) -> tuple[list[Row], Counter[str]]:
    """Rows of a data set in bytes, and by reason how many were dropped: no turn fits, or an unresolved run names no turn to learn from."""
    tokenizer, made, dropped = ByteTokenizer(), [], Counter[str]()
    for number, record in files.rows(path):
        try:
            run = from_row(record) if isinstance(record.get("metadata"), str) else from_json(record)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}:{number}: not a row of a data set: {error}", hint="run holdfast recipes validate for details"
            ) from error
        row = _row(run, tokenizer, context)
        if not run.resolved and not run.credited:
            dropped[UNCREDITED] += 1
        elif row is None or not row.targets:
            dropped[TOO_LONG] += 1
        else:
            made.append(row)
    return made, dropped


def _row(run: Trajectory, tokenizer: ByteTokenizer, context: int) -> Row | None:
    ids, spans = encode(render(run.messages, run.tools), tokenizer.encode)
    cut = truncate_left(ids, spans, context)
    if cut is None:
        return None
    ids, spans = cut
    return Row(tuple(ids), tuple(loss_mask(spans, credited(run), len(ids))))


def _taught(arguments: argparse.Namespace, world: World) -> Model:
    arguments.out.mkdir(parents=True, exist_ok=True)
    model = Model(Shape(len(language.WORDS), arguments.width, arguments.layers), arguments.seed)
    wins, _ = collect(
        Teacher(world, frozenset(range(0, 8, 2)), 0.2, most_steps=_STEPS_PER_EPISODE),
        arguments.seed,
        resolved=arguments.teacher_runs,
        unresolved=0,
    )
    rows = []
    for run in wins:
        ids, spans = language.encode(run.steps)
        rows.append(Row(tuple(ids), tuple(language.mask(spans, None, len(ids)))))
    steps = arguments.sft_epochs * steps_per_epoch(len(rows), 32)
    settings = Optimiser(1e-2, 1e-3), Schedule(1e-2, steps, 1e-3, 0.05)
    Sft(model, rows, *settings, batch=32, seed=arguments.seed, checkpoint=arguments.out / "sft.pt").run()
    return model


def _solved(model: Model, world: World, seed: int) -> dict[str, float]:
    tasks = list(islice(bugs(world, 900_000 + seed), 200))
    played = play(model, [Twin(bug, world, _STEPS_PER_EPISODE) for bug in tasks], range(len(tasks)))
    made = wilson(sum(episode.twin.solved for episode in played), len(played))
    return {"estimate": round(made.estimate, 4), "low": round(made.low, 4), "high": round(made.high, 4)}


def _shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of torch; more are slower on a busy machine (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _print(record: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(record) if as_json else "\n".join(f"{name:18} {value}" for name, value in record.items()))
