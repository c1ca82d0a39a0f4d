"""Rollouts of jobs for the pipelines: with their own seconds, events and cost, and continued from a state of an earlier run.

Owns the adapters around ``harness.rollout.play`` and the conversation that repeats recorded turns before it queries the policy. The caller
provides a task's job.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast_recipes.core.calls import CallError, Parsed, ToolCall
from holdfast_recipes.core.template import Kind
from holdfast_recipes.core.trajectory import Message, Tokens, Trajectory
from holdfast_recipes.harness.conversation import Conversation, TokenConversation
from holdfast_recipes.harness.rollout import Counts, Job, Settings, play
from holdfast_recipes.policy.base import Generation, Reply, Tool
from holdfast_recipes.swe.sources import SweTask

from . import collect, rollouts
from .annotate import turns_with_results
from .estimators import Continue
from .evaluate import Trial, trial_of
from .runs import Attempt, RolloutSlot

Jobs = Callable[[SweTask], Job[Any]]
_SAID_BY_BLAME = ("aborted_", "ungraded_")


class Tracked(Counts):
    """Counts of one rollout of the manager, whose ticket has the layer that it is in, and gets the counts by ``hand_over``."""

    def __init__(self, ticket: rollouts.Ticket) -> None:
        super().__init__()
        self._ticket = ticket

    @contextlib.contextmanager
    def timing(self, name: str) -> Iterator[None]:
        self._ticket.layer = name
        with super().timing(name):
            yield

    def hand_over(self) -> None:
        self._ticket.seconds.update(self.seconds)
        self._ticket.events.update({name: count for name, count in self.events.items() if not name.startswith(_SAID_BY_BLAME)})


def collected(
    jobs: Callable[[Any], Job[Any]],
    settings: Settings,
    talk: Callable[[Any], Conversation[Any]] | None = None,
    shaped: Callable[[Any, Settings], Settings] = lambda task, settings: settings,
    played: Callable[[Any, Settings, int, str], Awaitable[Trajectory]] | None = None,
) -> collect.Rollout:
    """Rollouts for a collection. ``talk`` makes the conversation where the policy differs from task to task; ``shaped`` the settings where
    a task has limits of its own; ``played`` plays a task with settings, a seed and an id, in another way than ``harness.rollout.play``."""

    async def rollout(slot: RolloutSlot, seed: int, name: str) -> Attempt:
        counts, spoken = Counts(), []

        def conversation() -> Conversation[Any]:
            spoken.append(talk(slot.task) if talk else settings.conversation())
            return spoken[-1]

        own = replace(shaped(slot.task, settings), counts=counts, conversation=conversation)
        if played is None:
            run = await play(jobs(slot.task), own, seed=seed, trajectory_id=name)
        else:
            run = await played(slot.task, own, seed, name)
        settings.counts.events.update(counts.events)
        settings.counts.seconds.update(counts.seconds)
        cost_usd = sum(each.cost_usd for each in spoken)
        return Attempt(run, sum(counts.seconds.values()), cost_usd, dict(counts.seconds), dict(counts.events))

    return rollout


def managed(jobs: Jobs, settings: Settings) -> rollouts.Rollout[SweTask]:
    """Rollouts for the manager: a ticket receives the layer, seconds and events."""

    async def rollout(task: SweTask, ticket: rollouts.Ticket) -> Trajectory:
        counts = Tracked(ticket)
        try:
            return await play(jobs(task), replace(settings, counts=counts), seed=ticket.seed)
        finally:
            counts.hand_over()

    return rollout


class Replay:
    """A conversation whose first answers are recorded ones; the tools run again, and the policy sees their new results."""

    def __init__(self, inner: Conversation[Any], run: Trajectory, turns: int) -> None:
        self._inner, self._taken = inner, 0
        self._answers = token_answers(run, turns) if isinstance(inner, TokenConversation) else chat_answers(run, turns)

    @property
    def messages(self) -> list[Message]:
        return self._inner.messages

    @messages.setter
    def messages(self, value: list[Message]) -> None:
        self._inner.messages = value

    @property
    def policy_name(self) -> str:
        return self._inner.policy_name

    @property
    def tokens(self) -> int:
        return self._inner.tokens

    @property
    def cost_usd(self) -> float:
        return self._inner.cost_usd

    @property
    def version(self) -> int:
        return self._inner.version

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        self._inner.begin(messages, tools)

    async def ask(self, *, seed: int | None, max_new_tokens: int) -> Any:
        if self._taken < len(self._answers):
            return self._answers[self._taken]
        return await self._inner.ask(seed=seed, max_new_tokens=max_new_tokens)

    def take(self, answer: Any) -> Parsed:
        self._taken += 1
        return self._inner.take(answer)

    def answer(self, entry: ToolCall | CallError, text: str) -> None:
        self._inner.answer(entry, text)

    def record(self) -> Tokens | None:
        return self._inner.record()


def chat_answers(run: Trajectory, turns: int) -> list[Reply]:
    """The first ``turns`` assistant messages of a run."""
    return [Reply(message) for message in run.messages if message["role"] == "assistant"][:turns]


def token_answers(run: Trajectory, turns: int) -> list[Generation]:
    """The ids that were sampled in the first ``turns`` turns. Raises ValueError for a run without ids and spans."""
    if run.tokens is None or not run.tokens.spans:
        raise ValueError(f"{run.trajectory_id}: the tokens of its turns were not recorded")
    answers = []
    for turn in range(turns):
        spans = [span for span in run.tokens.spans if span.turn == turn and span.kind in (Kind.CONTENT, Kind.END)]
        places = [place for span in spans for place in range(span.start, span.end)]
        version = run.tokens.versions[turn] if turn < len(run.tokens.versions) else 0
        ids = tuple(run.tokens.ids[place] for place in places)
        answers.append(Generation(ids, tuple(run.tokens.logprobs[place] for place in places), version=version))
    return answers


def continued(jobs: Jobs, tasks: Mapping[str, SweTask], settings: Settings, diverged: Counter[str] | None = None) -> Continue:
    """For ``estimators.MonteCarlo``: a fresh sandbox, the calls of the turns before the state once more, then the policy.

    A replay whose calls end otherwise than they did (other exit codes) did not reach the state: it counts for nothing, and ``diverged``
    counts it by task.
    """

    async def go_on(run: Trajectory, state: int, number: int) -> bool | None:
        own = replace(settings, counts=Counts(), conversation=lambda: Replay(settings.conversation(), run, state))
        seed = continuation_seed(run, state, number)
        played = await play(jobs(tasks[run.task_id]), own, seed=seed, trajectory_id=f"{run.trajectory_id}@{state}.{number}")
        kind = trial_of(played)
        if kind.counts and not same(turns_with_results(run)[:state], played.turns[:state]):
            if diverged is not None:
                diverged[run.task_id] += 1
            return None
        return kind is Trial.SOLVED if kind.counts else None

    return go_on


def continuation_seed(run: Trajectory, state: int, number: int) -> int:
    """The seed of one continuation, the same however the state is reached."""
    return ((run.seed or 0) * 1_000_003 + state * 1_009 + number + 1) % 2**31


def same(recorded: Sequence[Any], replayed: Sequence[Any]) -> bool:
    """Whether the calls of two runs ended alike. Exit codes that were not recorded fit any."""
    if len(recorded) != len(replayed):
        return False
    for before, now in zip(recorded, replayed, strict=True):
        if len(before.observations) != len(now.observations):
            return False
        for first, second in zip(before.observations, now.observations, strict=True):
            if first.exit_code is not None and first.exit_code != second.exit_code:
                return False
    return True
