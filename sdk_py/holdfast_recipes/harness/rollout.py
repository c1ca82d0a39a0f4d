"""One rollout around the loop: a sandbox, the agent's work in it, grading, the reward, and the end of the sandbox (C5, C7).

Owns the layers of creation, shutdown and reward, another run with more memory after ``oom``, and the resulting ``Trajectory``. A task's
``Job`` defines its sandbox and the grading. A rollout that failed is a trajectory with a status, a blame and
a reason; ``play`` raises only when it is cancelled itself, and then its sandbox is deleted first.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from holdfast import SandboxNotFoundError

from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Harness, PolicyName, SandboxNote, Trajectory, Verdict
from holdfast_recipes.policy.base import Message

from .agent import Agent
from .conversation import Conversation
from .layers import FaultError, attempt, completed, fault_of, may_create_again, timed
from .limits import Layer, Limits, Resources, start_jitter_s
from .loop import TURN_TOKENS, Episode, run
from .machine import Machine
from .toolset import Toolset

Box = TypeVar("Box", bound=Machine)

MOST_ESCALATIONS = 2
"""Plays with more memory, after the first."""


@dataclass(frozen=True, slots=True)
class Graded:
    """The grade of a rollout. ``reward`` None: it could not be graded; ``blame`` names the cause. ``reason`` is the reason for that, or
    for a bad grade."""

    reward: float | None
    verdict: Verdict | None = None
    blame: Blame | None = None
    reason: str = ""


class Job(Protocol[Box]):
    """One task, ready to be rolled out in sandboxes of some kind.

    ``create`` makes a sandbox, once for each try. ``open`` puts the start state into it and gives the tools; ``oom_ends`` is for them. What
    they raise decides: HoldfastErrors may be tried again, a FaultError is final. ``collect`` gives what is graded, after the
    loop and before the sandbox ends. ``grade`` judges that in one sandbox of its own, which counts against the capacity, and answers
    with a value.
    """

    task_id: str
    repo: str
    source: str
    messages: Sequence[Message]
    prompts: Mapping[str, str]
    resources: Resources

    async def create(self, resources: Resources) -> Box: ...
    async def open(self, sandbox: Box, *, oom_ends: bool) -> Toolset: ...
    async def collect(self, sandbox: Box, episode: Episode) -> str: ...
    async def grade(self, work: str) -> Graded: ...


@runtime_checkable
class GradedInPlace(Protocol):
    """A job whose ``collect`` runs the tests in the sandbox that the policy worked in, and takes up to ``verify_s``. It also collects where
    the time of the rollout was over: what counts is the state of the machine then."""

    verify_s: float


class Capacity:
    """Limits on the sandboxes of this process, in all and in creation. Shared by all rollouts of a run."""

    def __init__(self, sandboxes: int = 64, boots: int = 16) -> None:
        if sandboxes < 1 or boots < 1:
            raise ValueError(f"at least one sandbox and one boot at a time are needed: {sandboxes}, {boots}")
        self.running = 0
        self._sandboxes, self._boots = asyncio.Semaphore(sandboxes), asyncio.Semaphore(boots)

    @contextlib.asynccontextmanager
    async def sandbox(self) -> AsyncIterator[None]:
        async with self._sandboxes:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1

    @contextlib.asynccontextmanager
    async def boot(self) -> AsyncIterator[None]:
        async with self._boots:
            yield


@dataclass(slots=True)
class Counts:
    """Of a run: faults by layer and reason, escalations, sandboxes left to their lease; and seconds spent in each layer."""

    events: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def timing(self, name: str) -> Any:
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            yield
        finally:
            self.seconds[name] += clock() - started  # type: ignore[assignment]  # a Counter adds floats as well


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that the rollouts of a run share. ``conversation`` makes a new one for each; ``collect_truncated``: work that was cut off
    by the budget of steps or tokens is graded as it stands."""

    conversation: Callable[[], Conversation[Any]]
    limits: Limits
    capacity: Capacity
    counts: Counts = field(default_factory=Counts)
    run: str = ""
    collect_truncated: bool = True
    turn_tokens: int = TURN_TOKENS
    agent: Agent | None = None
    """Works in the place of our loop and its tools."""
    most_escalations: int = MOST_ESCALATIONS


async def play(job: Job[Any], settings: Settings, *, seed: int | None = None, trajectory_id: str = "") -> Trajectory:
    """One rollout of a job, with its reward. Played again, in a fresh sandbox with more memory, where memory ran out."""
    resources, plays = job.resources, 0
    draw = random.Random(seed)  # noqa: S311  jitter, no secret
    while True:
        plays += 1
        more = settings.limits.escalation.after("oom", resources) if plays <= settings.most_escalations else None
        played = await _Play(job, settings, resources, more is not None, draw).once(seed, trajectory_id)
        if not played.episode.oom or more is None:
            break
        settings.counts.events["escalated"] += 1
        resources = more
    if played.episode.status is Status.ABORTED:
        settings.counts.events[f"aborted_{played.episode.blame}_{played.episode.reason}"] += 1
    graded = await _reward(job, settings, played)
    return _trajectory(job, settings, played, graded, seed, trajectory_id, escalated=plays > 1)


@dataclass(frozen=True, slots=True)
class _Played:
    """``work`` None: there is nothing to grade."""

    episode: Episode
    policy: PolicyName
    harness: Harness
    work: str | None
    sandbox_id: str = ""


class _Play:
    """One sandbox and what is done in it."""

    def __init__(self, job: Job[Any], settings: Settings, resources: Resources, oom_ends: bool, draw: random.Random) -> None:
        self._job, self._settings, self._resources, self._oom_ends, self._draw = job, settings, resources, oom_ends, draw
        self._limits, self._counts = settings.limits, settings.counts
        self._sandbox: Machine | None = None
        self._toolset: Toolset | None = None

    async def once(self, seed: int | None, trajectory_id: str) -> _Played:
        agent = self._settings.agent
        conversation = self._settings.conversation() if agent is None else None
        async with self._settings.capacity.sandbox():
            try:
                with self._counts.timing("creation"):
                    await self._create()
                assert self._toolset is not None
                with self._counts.timing("loop"):
                    episode = await self._episode(conversation, self._toolset, seed, trajectory_id)
                episode, work = await self._collect(episode)
            except FaultError as fault:
                episode, work = _nothing(self._job, fault), None
            finally:
                sandbox_id = self._sandbox.id if self._sandbox else ""
                await self._shut_down()
        name = agent.policy if agent is not None else conversation.policy_name if conversation is not None else ""
        policy = PolicyName(name, str(episode.versions[-1]) if episode.versions else "")
        return _Played(episode, policy, _harness(self._toolset, self._limits, agent), work, sandbox_id)

    async def _episode(self, conversation: Conversation[Any] | None, toolset: Toolset, seed: int | None, trajectory_id: str) -> Episode:
        messages, agent = self._job.messages, self._settings.agent
        if agent is not None:
            place = {name: toolset.config[name] for name in ("workdir", "user") if name in toolset.config}
            return await agent.play(cast(Any, self._sandbox), messages, self._limits, seed=seed, rollout_id=trajectory_id, **place)
        assert conversation is not None
        more = self._settings.turn_tokens
        return await run(conversation, toolset, messages, self._limits, seed=seed, draw=self._draw, turn_tokens=more)

    async def _create(self) -> None:
        """A sandbox in its start state. A try that failed after the sandbox was made deletes it."""

        async def once() -> None:
            self._sandbox = await self._job.create(self._resources)
            try:
                self._toolset = await self._job.open(self._sandbox, oom_ends=self._oom_ends)
            except BaseException:
                await self._shut_down()
                raise

        try:
            await attempt(
                Layer.CREATION,
                self._limits.layers[Layer.CREATION],
                once,
                draw=self._draw,
                again=may_create_again,
                before_s=lambda: start_jitter_s(self._settings.capacity.running, self._draw),
                gate=self._settings.capacity.boot,
            )
        except FaultError as fault:
            self._counts.events[f"creation_{fault.reason}"] += 1
            raise

    async def _collect(self, episode: Episode) -> tuple[Episode, str | None]:
        """The submission of a rollout that ended by itself or by its budget. If the sandbox is lost now, the work is lost too."""
        in_place = isinstance(self._job, GradedInPlace)
        ends = (Status.TRUNCATED, Status.TIMEOUT) if in_place else (Status.TRUNCATED,)
        cut_off = episode.status in ends and self._settings.collect_truncated
        if self._sandbox is None or not (episode.status is Status.COMPLETED or cut_off):
            return episode, None
        limit_s = self._job.verify_s if isinstance(self._job, GradedInPlace) else self._limits.layers[Layer.OBSERVATION].timeout_s
        try:
            return episode, await timed(Layer.OBSERVATION, limit_s, self._job.collect(self._sandbox, episode))
        except Exception as error:  # noqa: BLE001  a value, as everything that happens to a rollout
            fault = fault_of(Layer.OBSERVATION, error)
            return replace(episode, status=Status.ABORTED, blame=fault.blame, reason=fault.reason, oom=fault.oom), None

    async def _shut_down(self) -> None:
        """Within the layer's limit, also when the rollout is being cancelled. What cannot be deleted ends with its lease."""
        toolset, sandbox = self._toolset, self._sandbox
        self._sandbox = None
        if sandbox is not None:
            await completed(self._delete(toolset, sandbox))

    async def _delete(self, toolset: Toolset | None, sandbox: Machine) -> None:
        limit = self._limits.layers[Layer.SHUTDOWN]

        async def once() -> None:
            with contextlib.suppress(SandboxNotFoundError):
                await sandbox.delete()

        with self._counts.timing("shutdown"):
            if toolset is not None:
                with contextlib.suppress(Exception):
                    await timed(Layer.SHUTDOWN, limit.timeout_s, toolset.close())
            try:
                await attempt(Layer.SHUTDOWN, limit, once, draw=self._draw)
            except FaultError:
                self._counts.events["left_to_lease"] += 1


async def _reward(job: Job[Any], settings: Settings, played: _Played) -> Graded:
    """All of grading within its layer. Infrastructure gets another try, in fresh sandboxes; then the sample has no reward."""
    episode, format_reward = played.episode, settings.limits.rollout.format_reward
    if episode.reason == "format" and episode.status is Status.COMPLETED and format_reward is not None:
        return Graded(format_reward)
    work = played.work
    if work is None:
        return Graded(None, None, episode.blame, episode.reason)

    async def once() -> Graded:
        graded = await job.grade(work)
        if graded.reward is None and graded.blame is Blame.INFRASTRUCTURE:
            raise _UngradedError(graded)
        return graded

    with settings.counts.timing("reward"):
        try:
            async with settings.capacity.sandbox():
                return await attempt(Layer.REWARD, settings.limits.layers[Layer.REWARD], once, draw=random.Random(0))  # noqa: S311  pauses
        except FaultError as fault:
            known = fault.__cause__.graded if isinstance(fault.__cause__, _UngradedError) else None
            reason = known.reason if known else fault.reason
            settings.counts.events[f"ungraded_{reason}"] += 1
            return Graded(None, known.verdict if known else None, Blame.INFRASTRUCTURE, reason)


class _UngradedError(Exception):
    def __init__(self, graded: Graded) -> None:
        super().__init__(graded.reason)
        self.graded = graded


def _nothing(job: Job[Any], fault: FaultError) -> Episode:
    """The episode of a rollout whose sandbox never was."""
    return Episode(tuple(job.messages), (), (), Status.ABORTED, fault.blame, fault.reason, oom=fault.oom)


def _trajectory(
    job: Job[Any], settings: Settings, played: _Played, graded: Graded, seed: int | None, trajectory_id: str, *, escalated: bool
) -> Trajectory:
    """A rollout that finished but could not be graded keeps its status, with the blame for the grading and no reward."""
    episode = played.episode
    ungraded = graded.reward is None and episode.status in (Status.COMPLETED, Status.TRUNCATED)
    return Trajectory(
        trajectory_id=trajectory_id or f"{job.task_id}-{'x' if seed is None else seed}",
        task_id=job.task_id,
        harness=played.harness,
        policy=played.policy,
        messages=episode.messages,
        tools=episode.tools,
        turns=episode.turns,
        seed=seed,
        status=episode.status,
        blame=graded.blame if ungraded else episode.blame,
        reason=(graded.reason if ungraded or not episode.reason else episode.reason),
        reward=graded.reward,
        verdict=graded.verdict,
        tokens=episode.tokens,
        sandbox=SandboxNote(played.sandbox_id, escalated=escalated),
        repo=job.repo,
        source=job.source,
        run=settings.run,
        prompts=dict(job.prompts),
    )


def _harness(toolset: Toolset | None, limits: Limits, agent: Agent | None = None) -> Harness:
    if agent is not None:
        return Harness(agent.name, agent.version, hashlib.sha256(repr(limits).encode()).hexdigest())
    if toolset is None:
        return Harness("")
    config = {"tools": list(toolset.tools), "strict": toolset.strict, "limits": repr(limits), **toolset.config}
    text = json.dumps(config, sort_keys=True, default=str)
    return Harness(toolset.name, toolset.version, hashlib.sha256(text.encode()).hexdigest())
