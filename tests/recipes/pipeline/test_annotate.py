"""The three value estimators and the annotation of many runs; the model's estimator uses a scripted endpoint."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.trajectory import Observation, Trajectory, Turn, Verdict
from holdfast_recipes.harness.limits import Limit
from holdfast_recipes.pipeline.annotate import Annotated, Estimate, LlmRetrospective, annotate, annotate_one, answer_of, report_of
from holdfast_recipes.pipeline.errors import EndpointError
from holdfast_recipes.pipeline.estimators import Milestone, Milestones, MonteCarlo, repair_milestones
from holdfast_recipes.policy.openai_chat import OpenAIChat
from holdfast_recipes.prompts import values as prompt

from tests.recipes.pipeline.endpoint import Answer, Endpoint, endpoint
from tests.recipes.pipeline.made import annotation, lost, made

QUICK = Limit(30, 3)


@contextlib.asynccontextmanager
async def retrospective(
    answer: Answer, *statuses: int, refusal: str = "no", **settings: Any
) -> AsyncIterator[tuple[LlmRetrospective, Endpoint]]:
    with endpoint(answer, *statuses, refusal=refusal) as served:
        async with OpenAIChat(served.url, "teacher", "key") as policy:
            yield LlmRetrospective(policy, limit=QUICK, **settings), served


async def test_values_of_a_model_with_the_whole_run_in_its_prompt() -> None:
    async with retrospective(lambda body: annotation([0.4, 0.5, 0.1])) as (estimator, served):
        done = await annotate_one(made(turns=3), estimator)
    assert done.outcome == "annotated"
    assert done.trajectory.values == (0.4, 0.5, 0.1)
    assert done.trajectory.value_of == "after"
    assert done.trajectory.prompts == {each.name: each.sha256 for each in (prompt.SYSTEM, prompt.USER)}
    prompt_text = served.requests[0]["messages"][1]["content"]
    assert "Fix t" in prompt_text
    assert "tests/test_a.py::test_b" in prompt_text
    assert "[STEP 2]\nThinking: thought 2" in prompt_text
    assert "result 2" in prompt_text


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("I cannot", "not_an_array"),
        (annotation([0.4, 0.5, 0.1, 0.1]), "step_out_of_range"),
        (annotation([0.4, 0.5, 1.5]), "probability_out_of_range"),
        (annotation([0.4]), "missing_steps"),
        (annotation([0.4, 0.5, 0.6]), "never_drops+final_not_low"),
        (annotation([0.9, 0.5, 0.1]), "start_out_of_range"),
    ],
)
async def test_three_answers_that_cannot_be_used_drop_the_run(bad: str, reason: str) -> None:
    async with retrospective(lambda body: bad) as (estimator, served):
        done = await annotate_one(made(turns=3), estimator)
    assert (done.outcome, done.trajectory.values) == (f"annotation_{reason}", None)
    assert done.estimate == Estimate(None, f"annotation_{reason}", False, 3, (reason,) * 3)
    assert [body["seed"] for body in served.requests] == [0, 1, 2]


async def test_the_third_answer_counts_and_gaps_are_filled() -> None:
    answers = iter(
        ["?", annotation([0.9, 0.1]), '[{"step": 0, "p_resolve": 0.4}, {"step": 2, "p_resolve": 0.6}, {"step": 3, "p_resolve": 0.1}]']
    )
    async with retrospective(lambda body: f"<think>\n[1]\n</think>\n\n{next(answers)}") as (estimator, _):
        done = await annotate_one(made(turns=4), estimator)
    assert done.trajectory.values == (0.4, 0.5, 0.6, 0.1)
    assert done.estimate is not None
    assert done.estimate.tries == 3
    assert done.estimate.refused == ("not_an_array", "start_out_of_range")


async def test_previous_holds_the_earlier_value() -> None:
    sparse = '[{"step": 0, "p_resolve": 0.4}, {"step": 2, "p_resolve": 0.6}, {"step": 3, "p_resolve": 0.1}]'
    async with retrospective(lambda body: sparse, interpolation="previous") as (estimator, _):
        assert (await annotate_one(made(turns=4), estimator)).trajectory.values == (0.4, 0.4, 0.6, 0.1)
    async with retrospective(lambda body: sparse, sparse=False) as (estimator, _):
        assert (await annotate_one(made(turns=4), estimator)).outcome == "annotation_missing_steps"


async def test_a_request_is_retried_with_the_same_seed_when_the_endpoint_recovers() -> None:
    async with retrospective(lambda body: annotation([0.4, 0.5, 0.1]), 503, 0) as (estimator, served):
        done = await annotate_one(made(turns=3), estimator)
    assert done.outcome == "annotated"
    assert [body["seed"] for body in served.requests] == [0, 0, 0]


async def test_an_unavailable_endpoint_does_not_drop_a_run_for_good() -> None:
    async with retrospective(lambda body: "", *[503] * 3) as (estimator, served):
        done = await annotate_one(made(turns=3), estimator)
    assert done.estimate is not None
    assert (done.outcome, done.estimate.passing, len(served.requests)) == ("endpoint_unavailable", True, 3)


async def test_a_refusal_of_every_request_ends_the_annotation() -> None:
    async with retrospective(lambda body: "", 401) as (estimator, served):
        with pytest.raises(EndpointError, match="401"):
            [each async for each in annotate([made(str(n)) for n in range(5)], estimator, concurrency=1)]
    assert len(served.requests) == 1


async def test_a_run_that_is_too_long_for_the_model_is_dropped() -> None:
    async with retrospective(lambda body: "", 400, refusal="maximum context length is 8192") as (estimator, _):
        done = await annotate_one(made(turns=3), estimator)
    assert done.outcome == "annotation_too_long"


async def test_only_unresolved_graded_runs_with_turns_are_annotated() -> None:
    runs = [made("a", resolved=True), lost(), made("b", 0), made("c", 3)]
    async with retrospective(lambda body: annotation([0.4, 0.5, 0.1])) as (estimator, served):
        done = [each async for each in annotate(runs, estimator)]
    assert sorted(each.outcome for each in done) == ["annotated", "no_turns", "resolved", "ungraded"]
    assert len(served.requests) == 1


async def test_concurrent_annotations_are_bounded() -> None:
    running, most = 0, 0
    free = asyncio.Event()

    class Slow:
        name, value_of = "slow", "after"
        prompts: ClassVar[dict[str, str]] = {}

        async def estimate(self, trajectory: Trajectory) -> Estimate:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 3:
                free.set()
            await free.wait()
            running -= 1
            return Estimate((0.4,), tries=1)

    done: list[Annotated] = [each async for each in annotate([made(str(n)) for n in range(10)], Slow(), concurrency=3)]  # type: ignore[arg-type]
    assert (most, len(done), {each.outcome for each in done}) == (3, 10, {"annotated"})


def test_the_answer_is_what_follows_the_thought() -> None:
    assert answer_of(" <think>\n[1] </think>\n[2] ") == "[2]"
    assert answer_of("the template opened the thought [1]\n</think>\n\n[2]") == "[2]"
    assert answer_of('[{"reasoning": "it wrote </think> twice"}]') == '[{"reasoning": "it wrote </think> twice"}]'
    assert answer_of("<think> never ends [2]") == "<think> never ends [2]"


def test_the_outcome_of_tests_without_names() -> None:
    named = report_of(made())
    assert (named.failing, named.fixed, named.broken) == (("tests/test_a.py::test_b",), 1, ())
    unnamed = report_of(replace(made(), verdict=Verdict((1, 4), (2, 3))))
    assert (unnamed.failing, unnamed.fixed) == (("(3 tests, whose names were not recorded)",), 1)
    assert unnamed.broken == ("(1 tests, whose names were not recorded)",)
    assert report_of(replace(made(), verdict=None)).failing
    not_run = report_of(replace(made(), verdict=Verdict((0, 1), (0, 3), "", ("a",))))
    assert (not_run.failing, not_run.broken) == (("a",), ())


async def test_milestones_count_once_and_stay_in_range() -> None:
    rules = [
        Milestone("first", 0.4, lambda turn: turn.index >= 1),
        Milestone("second", 0.5, lambda turn: turn.index == 2),
        Milestone("mistake", -0.7, lambda turn: turn.index == 3),
    ]
    done = await annotate_one(made(turns=4), Milestones(rules, base=0.3))
    assert done.trajectory.values == pytest.approx((0.3, 0.3, 0.7, 1.0, 0.5))
    assert done.trajectory.value_of == "before"
    with pytest.raises(ValueError, match="not 1"):
        Milestones(rules, base=1.5)


async def test_milestones_of_a_repair() -> None:
    def turn(index: int, command: str, output: str, exit_code: int = 0) -> Turn:
        return Turn(index, "", "", (ToolCall("bash", {"command": command}),), (), (Observation(output, "", exit_code),))

    turns = (
        turn(0, "ls", "README"),
        turn(1, "grep -rn split 2>&1", "src/more.py:3: def split"),
        turn(2, "python -m pytest -q", "1 failed", 1),
        turn(3, "cat src/more.py 2> /dev/null", "..."),
        turn(4, "cat > src/more.py <<'E'\nx\nE", ""),
        turn(5, "pytest", "1 passed"),
    )
    run = replace(made(), turns=turns)
    values = (await Milestones(repair_milestones(["src/more.py"]), 0.3).estimate(run)).values
    assert values == pytest.approx((0.3, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7))


async def test_monte_carlo_is_the_share_of_continuations_and_the_known_end() -> None:
    wins = {0: 1, 1: 2, 2: 0}

    async def all_solve(run: Trajectory, state: int, number: int) -> bool | None:
        return number < wins[state]

    estimate = await MonteCarlo(all_solve, 4).estimate(made(turns=3))
    assert estimate.values == (0.25, 0.5, 0.0, 0.0)
    resolved = await MonteCarlo(all_solve, 4).estimate(made(turns=3, resolved=True))
    assert resolved.values == (0.25, 0.5, 0.0, 1.0)
    wide = await MonteCarlo(all_solve, 4, stride=2).estimate(made(turns=3))
    assert wide.values == pytest.approx((0.25, 0.125, 0.0, 0.0))


async def test_monte_carlo_leaves_out_infrastructure_failures() -> None:
    async def half_solve(run: Trajectory, state: int, number: int) -> bool | None:
        return None if state == 1 or number % 2 else True

    estimate = await MonteCarlo(half_solve, 4).estimate(made(turns=3))
    assert estimate.values == (1.0, 1.0, 1.0, 0.0)
    assert len(estimate.refused) == 8

    async def none_solves(run: Trajectory, state: int, number: int) -> bool | None:
        return None

    failed = await MonteCarlo(none_solves, 2).estimate(made(turns=2))
    assert (failed.values, failed.reason, failed.passing) == (None, "no_continuations", True)
    with pytest.raises(ValueError, match="k=0"):
        MonteCarlo(none_solves, 0)
