"""Values of the states of unresolved runs, by three estimators behind one interface (C4.6; P §3.3.1).

Owns the interface, the paper's estimator (``LlmRetrospective``) and the annotation of many runs; ``estimators`` has the rules and the
Monte Carlo ones. Missing values are filled in here; ``curate`` decides on credit. An estimate that failed is a value with a reason.
A resolved run needs no values: all of its turns get loss.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

from holdfast_recipes.core.credit import ValueOf
from holdfast_recipes.core.trajectory import Trajectory, Turn, turns_of
from holdfast_recipes.core.values import Interpolation, check_annotation, interpolate, parse_annotation
from holdfast_recipes.harness.layers import FaultError, attempt
from holdfast_recipes.harness.limits import MINI, Layer, Limit
from holdfast_recipes.policy.base import ChatPolicy, ContextLengthError, PolicyRefusedError, PolicyUnavailableError
from holdfast_recipes.prompts import values as prompt

from .errors import EndpointError

TRIES = 3
ANSWER_TOKENS = 32_768
Issue = Callable[[Trajectory], str]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Values, or why there are none. ``passing``: the reason is the endpoint's or infrastructure's, so another time may succeed.
    ``tries`` counts answers that were asked for, ``refused`` the reasons of those that could not be used."""

    values: tuple[float, ...] | None = None
    reason: str = ""
    passing: bool = False
    tries: int = 0
    refused: tuple[str, ...] = ()


class ValueEstimator(Protocol):
    """``value_of`` is the state that its values are of: "after" gives one value for each turn, "before" one more, of the final state."""

    @property
    def name(self) -> str: ...
    @property
    def value_of(self) -> ValueOf: ...
    @property
    def prompts(self) -> Mapping[str, str]:
        """Digests of the prompts that shape it, by name."""
        ...

    async def estimate(self, trajectory: Trajectory) -> Estimate:
        """Values of an unresolved run with at least one turn."""
        ...


class LlmRetrospective:
    """A model reads the whole run and its outcome and gives P(resolve) at its steps; by the paper, the model that made the run.

    An answer must parse and keep to the calibration rules; after ``tries`` that do not, the run has no values. Each try has a seed of its
    own. Failures of the endpoint are retried with the limits of the inference layer; a refusal that affects every request (a key, a
    model's name) raises EndpointError.
    """

    name = "llm_retrospective"
    value_of: Literal["after"] = "after"
    prompts: ClassVar[Mapping[str, str]] = {each.name: each.sha256 for each in (prompt.SYSTEM, prompt.USER)}

    def __init__(
        self,
        policy: ChatPolicy,
        *,
        tries: int = TRIES,
        sparse: bool = True,
        interpolation: Interpolation = "linear",
        answer_tokens: int = ANSWER_TOKENS,
        limit: Limit | None = None,
        issue: Issue | None = None,
        seed: int = 0,
    ) -> None:
        if tries < 1:
            raise ValueError(f"at least one try is needed, not {tries}")
        self._policy, self._tries, self._sparse, self._interpolation = policy, tries, sparse, interpolation
        self._answer_tokens, self._limit = answer_tokens, limit or MINI.layers[Layer.INFERENCE]
        self._issue, self._draw = issue or first_user_text, random.Random(seed)  # noqa: S311  pauses, no secret

    async def estimate(self, trajectory: Trajectory) -> Estimate:
        turns = turns_with_results(trajectory)
        messages = prompt.messages(self._issue(trajectory), turns, report_of(trajectory))
        refused: list[str] = []
        for number in range(self._tries):
            try:
                text = await self._ask(messages, number)
            except FaultError as fault:
                return self._failed(fault, number, refused)
            annotation = parse_annotation(answer_of(text), len(turns), sparse=self._sparse)
            if annotation.refusal is not None:
                refused.append(str(annotation.refusal))
                continue
            values = tuple(interpolate(annotation.points, len(turns), self._interpolation))
            if not (broken := check_annotation(values)):
                return Estimate(values, tries=number + 1, refused=tuple(refused))
            refused.append("+".join(broken))
        return Estimate(reason=f"annotation_{refused[-1]}", tries=self._tries, refused=tuple(refused))

    async def _ask(self, messages: Sequence[Mapping[str, str]], number: int) -> str:
        reply = await attempt(
            Layer.INFERENCE,
            self._limit,
            lambda: self._policy.reply(messages, (), seed=number, max_new_tokens=self._answer_tokens),
            draw=self._draw,
            again=lambda error: isinstance(error, PolicyUnavailableError),
        )
        content = reply.message.get("content")
        return content if isinstance(content, str) else ""

    @staticmethod
    def _failed(fault: FaultError, asked: int, refused: Sequence[str]) -> Estimate:
        if isinstance(fault.__cause__, PolicyRefusedError):
            raise EndpointError(
                f"the endpoint refuses to annotate: {fault.__cause__}", hint="check its address, the model's name and the key"
            ) from fault
        if isinstance(fault.__cause__, ContextLengthError):
            return Estimate(reason="annotation_too_long", tries=asked + 1, refused=tuple(refused))
        return Estimate(reason="endpoint_unavailable", passing=True, tries=asked + 1, refused=tuple(refused))


def answer_of(text: str) -> str:
    """The answer of a model without the thought before it. The chat template of a thinking model may have opened the thought already,
    so only its end need be there."""
    stripped = text.strip()
    if not stripped.startswith("[") and "</think>" in stripped:
        return stripped.rpartition("</think>")[2].strip()
    return stripped


def first_user_text(trajectory: Trajectory) -> str:
    """The issue as the policy was given it: the first user message."""
    texts = (message.get("content") for message in trajectory.messages if message["role"] == "user")
    return next((text for text in texts if isinstance(text, str)), "")


def turns_with_results(trajectory: Trajectory) -> tuple[Turn, ...]:
    """The recorded turns, or those that the messages contain."""
    return trajectory.turns or turns_of(trajectory.messages, trajectory.tools or None)


def report_of(trajectory: Trajectory) -> prompt.TestReport:
    """The test report in the prompt. If the grader recorded no names, it has counts instead; if the grader ran no tests, as for
    an empty patch, it lists no test as broken."""
    verdict = trajectory.verdict
    if verdict is None:
        return prompt.TestReport(("(the run's tests were not recorded one by one)",), 0)
    (fixed, to_fix), (kept, to_keep) = verdict.fail_to_pass, verdict.pass_to_pass
    ran = bool(fixed or kept or verdict.log_sha256)
    return prompt.TestReport(_named(verdict.failing, to_fix - fixed), fixed, _named(verdict.broken, to_keep - kept if ran else 0))


def _named(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    return names or ((f"({count} tests, whose names were not recorded)",) if count else ())


@dataclass(frozen=True, slots=True)
class Annotated:
    """A run after annotation: with values, or as it was with the reason why it has none."""

    trajectory: Trajectory
    estimate: Estimate | None = None

    @property
    def outcome(self) -> str:
        """The word under which it is counted."""
        if self.estimate is None:
            return "resolved" if self.trajectory.resolved else "ungraded" if self.trajectory.reward is None else "no_turns"
        return "annotated" if self.estimate.values is not None else self.estimate.reason


async def annotate_one(trajectory: Trajectory, estimator: ValueEstimator) -> Annotated:
    """Resolved runs, runs that nothing graded and runs without a turn are left as they are."""
    if trajectory.resolved or trajectory.reward is None or not turns_with_results(trajectory):
        return Annotated(trajectory)
    estimate = await estimator.estimate(trajectory)
    if estimate.values is None:
        return Annotated(trajectory, estimate)
    prompts = {**trajectory.prompts, **estimator.prompts}
    changed = replace(trajectory, values=estimate.values, value_of=estimator.value_of, rises=None, credited=None, prompts=prompts)
    return Annotated(changed, estimate)


async def annotate(trajectories: Iterable[Trajectory], estimator: ValueEstimator, *, concurrency: int = 16) -> AsyncIterator[Annotated]:
    """Each run, annotated, as they are done; at most ``concurrency`` are held at once. An EndpointError ends it."""
    source = iter(trajectories)
    running: set[asyncio.Task[Annotated]] = set()
    done: set[asyncio.Task[Annotated]] = set()
    try:
        while True:
            while len(running) < concurrency and (trajectory := next(source, None)) is not None:
                running.add(asyncio.create_task(annotate_one(trajectory, estimator), name=f"annotate-{trajectory.trajectory_id}"))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda each: each.get_name()):
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *done, return_exceptions=True)
