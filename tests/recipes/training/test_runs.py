"""Model, sampling, SFT and RL: caches agree with the whole pass, runs resume to the bit, groups reach the optimiser with their signs."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.presets import GUI_RL, SWE_RL, Optimiser
from holdfast_recipes.core.schedule import Schedule
from holdfast_recipes.core.scored import Blame, Scored, Status
from holdfast_recipes.miniature import language
from holdfast_recipes.miniature.teacher import Teacher, collect
from holdfast_recipes.miniature.twin import Twin, World, bugs
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.training.batches import Row, batch_at, micro_batches, tensors
from holdfast_recipes.training.loss import token_logprobs
from holdfast_recipes.training.model import Cache, Model, Shape
from holdfast_recipes.training.optimisation import NotFiniteError, Optimisation, load_model
from holdfast_recipes.training.policy import choose, generate, play
from holdfast_recipes.training.rl import Learner, Lockstep, Objective, endless, train
from holdfast_recipes.training.sft import Sft

WORLD = World.make(1, operators=8, numbers=8)
ADAM = Optimiser(3e-3, 3e-4)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def small(seed: int = 0) -> Model:
    return Model(Shape(len(language.WORDS), width=16, layers=2, heads=2, context=96), seed)


def rows(count: int = 24) -> list[Row]:
    runs, _ = collect(Teacher(WORLD), 3, resolved=count, unresolved=0)
    made = []
    for run in runs:
        ids, spans = language.encode(run.steps)
        made.append(Row(tuple(ids), tuple(language.mask(spans, None, len(ids)))))
    return made


def equal_weights(left: Model, right: Model) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left.state_dict().values(), right.state_dict().values(), strict=True))


def test_a_cache_gives_what_the_whole_pass_gives() -> None:
    model, ids = small(), torch.randint(100, (3, 20))
    whole = model(ids)
    cache: Cache = []
    parts = [model(ids[:, :7], cache), model(ids[:, 7:8], cache), model(ids[:, 8:], cache)]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
    with pytest.raises(ValueError, match="context"):
        model(torch.zeros(3, 90, dtype=torch.long), cache)


def test_a_shape_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match="heads"):
        Shape(10, width=30, heads=4)


def test_choosing_follows_the_shares() -> None:
    logits = torch.tensor([[0.0, math.log(3.0), -math.inf]]).expand(4, 3)
    tokens, logprobs = choose(logits, [0.0, 0.2499, 0.2501, 0.9999])
    assert tokens.tolist() == [0, 0, 1, 1]
    assert logprobs.tolist() == pytest.approx([math.log(0.25)] * 2 + [math.log(0.75)] * 2)
    assert choose(logits, [0.0] * 4, 0)[0].tolist() == [1] * 4


def test_log_probabilities_of_play_are_those_of_the_model_and_of_its_seed_alone() -> None:
    model = small()
    tasks = [bug for _, bug in zip(range(12), bugs(WORLD, 5), strict=False)]
    together = play(model, [Twin(bug, WORLD, 6) for bug in tasks], range(12))
    for episode in together:
        again = token_logprobs(model(torch.tensor([episode.ids])), torch.tensor([episode.ids]))[0].detach()
        assert [float(value) * bit for value, bit in zip(again, episode.mask, strict=True)] == pytest.approx(episode.logprobs, abs=1e-4)
        ids, spans = language.encode([step for step in episode.steps if len(step.action) < language.MOST_ACTION_TOKENS])
        if len(ids) == len(episode.ids):
            assert (ids, language.mask(spans, None, len(ids))) == (episode.ids, episode.mask)
    alone = play(model, [Twin(tasks[7], WORLD, 6)], [7])[0]
    assert alone.ids == together[7].ids


def test_generation_stops_is_repeatable_and_obeys_what_is_allowed() -> None:
    model, prompt = small(), [1, 4, 3]
    first = generate(model, prompt, seed=4, most_tokens=30, stop=[3])
    assert first == generate(model, prompt, seed=4, most_tokens=30, stop=[3])
    assert first != generate(model, prompt, seed=5, most_tokens=30, stop=[3])
    assert len(first[0]) == 30 or first[0][-1] == 3
    only, logprobs = generate(model, prompt, seed=4, most_tokens=5, stop=[], allowed=[7])
    assert only == [7] * 5
    assert logprobs == pytest.approx([0.0] * 5, abs=1e-6)
    assert len(generate(model, [1] * 95, seed=1, most_tokens=30, stop=[])[0]) == 1


def test_rows_and_batches() -> None:
    with pytest.raises(ValueError, match="first token"):
        Row((1, 2), (1, 0))
    made = tensors([Row((1, 2, 3, 4), (0, 1, 0, 0)), Row((1, 2, 3), (0, 0, 1))])
    assert made.ids.tolist() == [[1, 2, 0], [1, 2, 3]]  # what follows the last target is cut off
    pool = [Row((1,) * n, (0,) * (n - 1) + (1,)) for n in (9, 2, 5, 3)]
    assert [[len(row.ids) for row in group] for group in micro_batches(pool, 10)] == [[9], [5, 3], [2]]
    epoch = [row for step in range(3) for row in batch_at(pool[:3], 1, step, 7)]
    assert {len(row.ids) for row in epoch} == {9, 2, 5}
    assert batch_at(pool, 3, 5, 7) == batch_at(pool, 3, 5, 7)


def test_micro_batches_add_up_to_the_whole() -> None:
    data = rows(8)
    models = [small(), small()]
    for model, most in zip(models, (10_000, 120), strict=True):
        run = Sft(model, data, ADAM, Schedule(3e-3, 2), batch=8)
        run.optimisation.most_tokens = most
        run.run()
    left, right = (torch.cat([value.flatten() for value in model.state_dict().values()]) for model in models)
    assert torch.allclose(left, right, atol=2e-4)


def test_sft_learns_and_resumes_to_the_bit(tmp_path: Path) -> None:
    data, losses = rows(), []
    straight = small()
    Sft(straight, data, ADAM, Schedule(3e-3, 30), batch=8).run(report=lambda step, numbers: losses.append(numbers["loss"]))
    assert losses[-1] < losses[0] - 1
    path = tmp_path / "run" / "sft.pt"
    Sft(small(), data, ADAM, Schedule(3e-3, 30), batch=8, checkpoint=path).run(11)
    resumed = small(9)
    run = Sft(resumed, data, ADAM, Schedule(3e-3, 30), batch=8, checkpoint=path)
    assert run.steps_left == 19
    run.run()
    assert equal_weights(straight, resumed)
    assert equal_weights(straight, load_model(path))
    assert run.supervised_tokens > 0
    with pytest.raises(ValueError, match="checkpoint"):
        Optimisation(Model(Shape(7, width=16, heads=2)), ADAM, Schedule(3e-3, 30)).load(path)


def test_a_number_that_is_not_finite_moves_no_weight() -> None:
    model, data = small(), rows(4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimisation = Optimisation(model, ADAM, Schedule(3e-3, 3))
    for bad in (lambda part: torch.tensor(math.nan, requires_grad=True), lambda part: model(part.ids).sum() * math.inf):
        with pytest.raises(NotFiniteError):
            optimisation.update(data, bad)
    with pytest.raises(NotFiniteError):
        optimisation.update([Row((1, 2), (0, 1), (0.0, math.nan))], lambda part: model(part.ids).sum())
    assert optimisation.step == 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def bandit(model: Model, prompts: Sequence[int], seeds: Sequence[int]) -> list[Scored]:
    """One token after the start; the prompt's own word is the right one."""
    made = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        ids, logprobs = generate(model, [1], seed=seed, most_tokens=1, stop=[], allowed=range(4, 8))
        made.append(Scored(1.0 if ids[0] == prompt else -1.0, payload=Row((1, *ids), (0, 1), (0.0, logprobs[0]))))
    return made


def learner(path: Path | None = None, **objective: object) -> Learner:
    def to_row(payload: Row, advantage: float) -> Row:
        return Row(payload.ids, payload.mask, payload.old, advantage)

    return Learner(
        small(), Optimiser(1e-2, 1e-2, weight_decay=0.0), Schedule(1e-2, 1000, shape="constant"), to_row,
        objective=Objective(**objective), checkpoint=path, save_every=1,  # type: ignore[arg-type]
    )  # fmt: skip


def batching(prompts: Sequence[int], seed: int = 0, **more: object) -> Batching[int]:
    return Batching(endless(prompts, seed), batch=2, balance=lambda: Balance(4, 8, 4, "0.25", "0.75"), **more)  # type: ignore[arg-type]


async def test_policy_gradient_makes_the_rewarded_token_likely() -> None:
    mine = learner()
    source = Lockstep(batching([5]), bandit, mine.weights(), 1)
    seen: list[dict[str, float]] = []
    await train(mine, source, 10, report=seen.append, overlap=False)
    assert mine.version == 10
    assert [numbers["version"] for numbers in seen] == list(range(1, 11))
    chance = mine.model(torch.tensor([[1]]))[0, 0, 4:8].softmax(-1)[1].item()
    assert chance > 0.5
    assert source.totals["generated"] >= 10 * 8


def test_objectives_of_the_presets() -> None:
    assert Objective.of(SWE_RL) == Objective()
    assert Objective.of(GUI_RL) == Objective(0.2, 0.28, "token_mean", epochs=2)


async def test_a_run_whose_prompts_are_all_mastered_ends() -> None:
    mine = learner()

    def always(model: Model, prompts: Sequence[int], seeds: Sequence[int]) -> list[Scored]:
        return [Scored(1.0, payload=Row((1, 5), (0, 1), (0.0, -0.1))) for _ in prompts]

    await train(mine, Lockstep(batching([5]), always, mine.weights(), 1, patience=5), 3, overlap=False)
    assert mine.version == 0


@pytest.mark.parametrize("how", ["token_mean", "token_sum", "sequence_mean"])
def test_every_reduction_raises_the_good_and_lowers_the_bad(how: str) -> None:
    mine = learner(reduce=how)
    pool = [Scored(1.0 if token == 5 else -1.0, payload=Row((1, token), (0, 1), (0.0, math.log(0.25)))) for token in (5, 5, 6, 6)]
    balance = Balance(4, 4, 4, "0.5", "0.5")
    balance.add(pool)
    outcome = balance.outcome()
    assert outcome
    before = mine.model(torch.tensor([[1]]))[0, 0].log_softmax(-1).detach()
    from holdfast_recipes.pipeline.batching import Batch, Group

    numbers = mine.learn(Batch((Group(0, outcome, 0),), batching([5])._counts))
    after = mine.model(torch.tensor([[1]]))[0, 0].log_softmax(-1)
    assert after[5] > before[5]
    assert after[6] < before[6]
    assert math.isfinite(numbers["loss"])


async def test_while_a_batch_is_learned_the_next_one_is_made_with_the_weights_before_it() -> None:
    mine = learner()
    used: list[int] = []
    source = Lockstep(batching([5]), bandit, mine.weights(), 1)

    def record_version(model: Model, prompts: Sequence[int], seeds: Sequence[int]) -> list[Scored]:
        used.append(source.batching.version)
        return bandit(model, prompts, seeds)

    source.play = record_version
    await train(mine, source, 3, overlap=False)
    assert used[0] == 0
    assert max(used) == 1  # the third batch was made before the second update was published


async def test_a_rollout_without_reward_costs_a_place_and_no_step() -> None:
    mine = learner()
    draw = random.Random(0)

    def faulty(model: Model, prompts: Sequence[int], seeds: Sequence[int]) -> list[Scored]:
        made = bandit(model, prompts, seeds)
        lost = Scored(None, Status.ABORTED, 0, Blame.INFRASTRUCTURE)
        return [lost if draw.random() < 0.1 else rollout for rollout in made]

    source = Lockstep(batching([5]), faulty, mine.weights(), 1)
    await train(mine, source, 10, overlap=False)
    assert mine.version == mine.optimisation.step == 10
    assert source.totals["infrastructure"] > 0


async def test_a_batch_with_a_number_that_is_not_finite_is_counted_and_the_run_goes_on() -> None:
    mine = learner()
    broken = iter([True])

    def with_one_nan(model: Model, prompts: Sequence[int], seeds: Sequence[int]) -> list[Scored]:
        made = bandit(model, prompts, seeds)
        if next(broken, False):
            bad = Row((1, 5), (0, 1), (0.0, math.nan))
            made = [Scored(rollout.reward, payload=bad) for rollout in made]
        return made

    await train(mine, Lockstep(batching([5]), with_one_nan, mine.weights(), 1), 4, overlap=False)
    assert (mine.version, mine.refused, mine.optimisation.step) == (4, 1, 3)


async def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "rl.pt"
    first = learner(path)
    await train(first, Lockstep(batching([5]), bandit, first.weights(), 1), 3, overlap=False)
    second = learner(path)
    assert second.version == 3
    assert second.optimisation.step == 3
    assert equal_weights(first.model, second.model)


async def test_overlapping_runs_end_cleanly_when_prompts_end_or_the_source_fails() -> None:
    mine = learner()
    few: Batching[int] = Batching(iter([5, 5, 5]), batch=2, balance=lambda: Balance(4, 4, 4, "0", "1"))
    await train(mine, Lockstep(few, bandit, mine.weights(), 1), 50)
    assert mine.version <= 1

    class Failing(Lockstep[int]):
        async def batch(self) -> None:
            raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="gone"):
        await train(mine, Failing(batching([5]), bandit, mine.weights(), 1), 3)
    assert len(asyncio.all_tasks()) == 1
