"""One rollout with its five layers, on a fake job and in virtual time: creation, escalation, shutdown, reward, cancellation (D8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from holdfast import (
    AsyncSandbox,
    ImageNotFoundError,
    ImagePullError,
    OutcomeUnknownError,
    QuotaError,
    SandboxLostError,
    SandboxNotFoundError,
    ServiceUnavailableError,
)
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Trajectory, Verdict
from holdfast_recipes.harness.conversation import ChatConversation
from holdfast_recipes.harness.layers import FaultError
from holdfast_recipes.harness.limits import BROWSER, MINI, Layer, Limits, Resources, RolloutLimits
from holdfast_recipes.harness.loop import Episode
from holdfast_recipes.harness.rollout import Capacity, Counts, Graded, Settings, play
from holdfast_recipes.harness.toolset import Result, Toolset
from holdfast_recipes.policy.base import Message
from holdfast_recipes.policy.scripted import ScriptedChat, call

from tests.recipes.harness import virtual
from tests.recipes.harness.fakes import SUBMIT, Behaviour, FakeToolset, behave

OOM = SandboxLostError("sandbox_gone", "gone", reason="oom", fault="workload")
LOST = SandboxLostError("sandbox_gone", "gone", reason="node-lost")


class FakeSandbox:
    def __init__(self, number: int, delete: Behaviour) -> None:
        self.id = f"sb-{number}"
        self.deleted = 0
        self._delete = delete

    async def delete(self) -> bool:
        self.deleted += 1
        await behave(self._delete)
        return True


class FakeJob:
    """Behaviours of creation, opening, shutdown and grading, one after the other, the last for ever; commands as for the toolset."""

    task_id, repo, source = "task-1", "repo", "fake"
    messages: Sequence[Message] = [{"role": "user", "content": "Repair it."}]
    prompts: Mapping[str, str] = {"p": "0"}
    resources = Resources(2, 8)

    def __init__(
        self,
        commands: Mapping[str, Behaviour] | None = None,
        *,
        create: Sequence[Behaviour] = ("",),
        opening: Behaviour = "",
        delete: Behaviour = "",
        grade: Sequence[Behaviour | Graded] = (Graded(1.0, Verdict((1, 1), (2, 2))),),
        collect: Behaviour = "the patch",
    ) -> None:
        self.commands = {"submit": SUBMIT, **(commands or {})}
        self.given: list[Resources] = []
        self.sandboxes: list[FakeSandbox] = []
        self.toolsets: list[FakeToolset] = []
        self.graded: list[str] = []
        self.oom_ends: list[bool] = []
        self._create, self._opening, self._delete, self._grade, self._collect = list(create), opening, delete, list(grade), collect

    async def create(self, resources: Resources) -> AsyncSandbox:
        self.given.append(resources)
        await behave(self._create.pop(0) if len(self._create) > 1 else self._create[0])
        self.sandboxes.append(FakeSandbox(len(self.sandboxes), self._delete))
        return cast(AsyncSandbox, self.sandboxes[-1])

    async def open(self, sandbox: AsyncSandbox, *, oom_ends: bool) -> Toolset:
        await behave(self._opening)
        self.oom_ends.append(oom_ends)
        self.toolsets.append(FakeToolset(self.commands))
        return self.toolsets[-1]

    async def collect(self, sandbox: AsyncSandbox, episode: Episode) -> str:
        return str(await behave(self._collect))

    async def grade(self, work: str) -> Graded:
        self.graded.append(work)
        graded = self._grade.pop(0) if len(self._grade) > 1 else self._grade[0]
        return graded if isinstance(graded, Graded) else cast(Graded, await behave(graded))


def settings(*commands: str, limits: Limits = MINI, **more: Any) -> Settings:
    script = [call("bash", command=command) for command in commands or ("submit",)]
    return Settings(lambda: ChatConversation(ScriptedChat(script)), limits, Capacity(), **more)


def run_rollout(job: FakeJob, shared: Settings | None = None, seed: int = 1) -> tuple[Trajectory, Counter[str], float]:
    async def scene() -> tuple[Trajectory, Counter[str], float]:
        mine = shared or settings()
        return await play(job, mine, seed=seed), mine.counts.events, virtual.now()

    return virtual.run_virtual(scene())


def test_a_rollout_with_its_reward() -> None:
    job = FakeJob()
    done, events, seconds = run_rollout(job)
    assert (done.status, done.reward, done.reason, done.blame) == (Status.COMPLETED, 1.0, "submitted", None)
    assert (done.task_id, done.policy.name, done.harness.name, done.sandbox.id) == ("task-1", "scripted", "fake", "sb-0")
    assert done.verdict == Verdict((1, 1), (2, 2))
    assert len(done.harness.config_sha256) == 64
    assert job.graded == ["the patch"]
    assert (job.sandboxes[0].deleted, job.toolsets[0].closed) == (1, 1)
    assert not events
    assert seconds < 1
    assert Trajectory.scored(done).positive


@pytest.mark.parametrize(("takes_s", "status"), [(899.0, Status.COMPLETED), (901.0, Status.ABORTED)])
def test_creation_times_out_at_its_limit_and_not_before(takes_s: float, status: Status) -> None:
    job = FakeJob(create=[takes_s])
    done, events, seconds = run_rollout(job)
    assert done.status is status
    if status is Status.ABORTED:
        assert (done.blame, done.reason, done.reward) == (Blame.INFRASTRUCTURE, "creation_timeout", None)
        assert len(job.given) == 3
        assert 2700 + 1 + 2 <= seconds <= 2700 + 3 + 6 + 1  # pauses of 2 and 4 s ± 50 %, and the jitter before each
        assert events["creation_creation_timeout"] == 1
        assert not job.sandboxes


def test_creation_is_tried_again_where_that_can_help() -> None:
    job = FakeJob(create=[ImagePullError("image_pull_failed", "no route"), QuotaError("quota", "full"), ""])
    assert run_rollout(job)[0].status is Status.COMPLETED
    assert len(job.given) == 3
    job = FakeJob(create=[ImageNotFoundError("image_not_found", "no such image")])
    done, _, _ = run_rollout(job)
    assert (done.status, done.blame, len(job.given)) == (Status.ABORTED, Blame.INFRASTRUCTURE, 1)


def test_a_sandbox_whose_start_state_failed_is_deleted() -> None:
    job = FakeJob(opening=LOST)
    done, _, _ = run_rollout(job)
    assert (done.status, done.reason) == (Status.ABORTED, "node-lost")
    assert [sandbox.deleted for sandbox in job.sandboxes] == [1, 1, 1]
    job = FakeJob(opening=FaultError(Layer.CREATION, Blame.ENVIRONMENT, "start_state"))
    done, _, _ = run_rollout(job)
    assert (done.blame, done.reason, [sandbox.deleted for sandbox in job.sandboxes]) == (Blame.ENVIRONMENT, "start_state", [1])


def test_out_of_memory_gives_the_second_sandbox_twice_as_much() -> None:
    fails = [OOM]

    async def once() -> Result:
        if fails:
            raise fails.pop()
        return SUBMIT

    job = FakeJob({"submit": once})
    done, events, _ = run_rollout(job)
    assert job.given == [Resources(2, 8), Resources(3, 16)]
    assert (done.status, done.reward, done.sandbox.escalated) == (Status.COMPLETED, 1.0, True)
    assert [sandbox.deleted for sandbox in job.sandboxes] == [1, 1]
    assert events["escalated"] == 1


def test_memory_has_a_maximum() -> None:
    job = FakeJob({"submit": OOM})
    done, events, _ = run_rollout(job)
    assert [given.memory_gib for given in job.given] == [8, 16, 32]
    assert job.oom_ends == [True, True, False]
    assert (done.status, done.blame, done.reason, done.reward) == (Status.ABORTED, Blame.WORKLOAD, "oom", None)
    assert events["escalated"] == 2
    job = FakeJob({"submit": LOST})
    run_rollout(job)
    assert len(job.given) == 1


def test_an_unknown_outcome_aborts_and_nothing_runs_again() -> None:
    job = FakeJob({"break": OutcomeUnknownError("outcome_unknown", "who knows")})
    done, events, _ = run_rollout(job, settings("break", "submit"))
    assert (done.status, done.blame, done.reward) == (Status.ABORTED, Blame.INFRASTRUCTURE, None)
    assert job.toolsets[0].ran == ["break"]
    assert job.graded == []
    assert events == {"aborted_infrastructure_outcome_unknown": 1}


@pytest.mark.parametrize("delete", [ServiceUnavailableError("unavailable", "later"), 1e6])
def test_a_failed_shutdown_loses_no_reward(delete: Behaviour) -> None:
    job = FakeJob(delete=delete)
    done, events, seconds = run_rollout(job)
    assert done.reward == 1.0
    assert job.sandboxes[0].deleted == 2
    assert events == {"left_to_lease": 1}
    if isinstance(delete, float):
        assert seconds == pytest.approx(2 * 15, abs=0.1)


def test_a_sandbox_that_is_gone_already_needs_no_second_try() -> None:
    job = FakeJob(delete=SandboxNotFoundError("sandbox_not_found", "gone"))
    assert run_rollout(job)[1] == {}
    assert job.sandboxes[0].deleted == 1


def test_grading_gets_a_second_try_if_infrastructure_failed() -> None:
    lost = Graded(None, None, Blame.INFRASTRUCTURE, "node-lost")
    job = FakeJob(grade=[lost, Graded(-1.0)])
    assert run_rollout(job)[0].reward == -1.0
    job = FakeJob(grade=[lost])
    done, events, _ = run_rollout(job)
    assert (done.status, done.reward, done.blame, done.reason) == (Status.COMPLETED, None, Blame.INFRASTRUCTURE, "node-lost")
    assert len(job.graded) == 2
    assert events == {"ungraded_node-lost": 1}


@pytest.mark.parametrize(("takes_s", "reward"), [(599.0, 1.0), (601.0, None)])
def test_the_reward_times_out_at_its_limit_and_not_before(takes_s: float, reward: float | None) -> None:
    async def slow() -> Graded:
        await asyncio.sleep(takes_s)
        return Graded(1.0)

    job = FakeJob(grade=[slow])
    done, _, _ = run_rollout(job)
    assert done.reward == reward
    assert len(job.graded) == (1 if reward else 2)


def test_what_is_cut_off_by_its_budget_is_graded_and_what_ran_out_of_time_is_not() -> None:
    tight = replace(MINI, rollout=RolloutLimits(steps=1))
    job = FakeJob()
    done, _, _ = run_rollout(job, settings("ls", "ls", limits=tight))
    assert (done.status, done.reward) == (Status.TRUNCATED, 1.0)
    job = FakeJob({"slow": 1e4})
    done, _, _ = run_rollout(job, settings("slow", limits=replace(MINI, rollout=RolloutLimits(wall_s=50))))
    assert (done.status, done.reward, job.graded) == (Status.TIMEOUT, None, [])


def test_format_errors_have_the_reward_that_the_limits_give() -> None:
    shared = Settings(lambda: ChatConversation(ScriptedChat(["no call"] * 9)), BROWSER, Capacity())
    job = FakeJob()
    done, _, _ = run_rollout(job, shared)
    assert (done.status, done.reason, done.reward, job.graded) == (Status.COMPLETED, "format", -1.0, [])


def test_a_sandbox_that_is_lost_before_its_work_was_read() -> None:
    done, _, _ = run_rollout(FakeJob(collect=LOST))
    assert (done.status, done.blame, done.reward) == (Status.ABORTED, Blame.INFRASTRUCTURE, None)


def test_one_of_sixteen_is_lost_and_the_others_have_rewards() -> None:
    async def scene() -> tuple[list[Trajectory], Counter[str]]:
        mine = settings("ls", "submit")
        jobs = [FakeJob({"ls": LOST} if index == 5 else {}) for index in range(16)]
        return list(await asyncio.gather(*(play(job, mine, seed=seed) for seed, job in enumerate(jobs)))), mine.counts.events

    trajectories, events = virtual.run_virtual(scene())
    assert [done.reward for done in trajectories].count(1.0) == 15
    assert events == {"aborted_infrastructure_node-lost": 1}


def test_no_more_sandboxes_at_a_time_than_the_capacity() -> None:
    most = 0

    async def scene() -> None:
        capacity = Capacity(sandboxes=3, boots=2)
        mine = replace(settings(), capacity=capacity)

        async def work() -> Result:
            nonlocal most
            most = max(most, capacity.running)
            await asyncio.sleep(10)
            return SUBMIT

        await asyncio.gather(*(play(FakeJob({"submit": work}), mine, seed=seed) for seed in range(12)))

    virtual.run_virtual(scene())
    assert most == 3


def test_a_cancelled_rollout_deletes_its_sandbox() -> None:
    async def scene() -> FakeJob:
        job = FakeJob({"submit": 1e6}, delete=3.0)
        task = asyncio.ensure_future(play(job, settings()))
        await asyncio.sleep(100)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert virtual.now() == pytest.approx(103, abs=0.1)
        return job

    job = virtual.run_virtual(scene())
    assert (job.sandboxes[0].deleted, job.toolsets[0].closed) == (1, 1)


def test_seconds_are_counted_by_layer() -> None:
    counts = Counts()
    job = FakeJob({"submit": 5.0, "done": SUBMIT}, create=[7.0], delete=2.0)
    run_rollout(job, settings("submit", "done", counts=counts))
    assert {name: round(value) for name, value in counts.seconds.items()} == {"creation": 7, "loop": 5, "shutdown": 2, "reward": 0}
