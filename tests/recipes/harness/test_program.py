"""A program in a sandbox as a harness: exit, patch, samples, and which side caused its end; each response in exactly one loss."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.harness.limits import MINI, Layer, Limit, Limits, RolloutLimits
from holdfast_recipes.harness.program import End, PatientPolicy, Program, ProgramRun, run_program
from holdfast_recipes.harness.programs import PROGRAMS
from holdfast_recipes.policy.base import ContextLengthError, Generation, PolicyRefusedError, PolicyUnavailableError
from holdfast_recipes.policy.scripted import ScriptedTokens, written
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from holdfast_recipes.proxy.server import Proxy

from tests.support.requires import requires, static_busybox
from tests.support.stack import Stack

TOKENIZER = ByteTokenizer()
AGENT = (Path(__file__).parent / "small_agent.py").read_text()
REPOSITORY = """
git init -q && git config user.email a@b && git config user.name a
echo broken > a.txt && echo 'out/' > .gitignore && git add . && git commit -qm start
"""


def agent(dialect: str = "chat", **env: str) -> Program:
    return Program("small", ("python3", "${home}/agent.py", dialect, "${url}", "${key}", "${prompt}"), env, {"agent.py": AGENT})


def shell(script: str) -> Program:
    return Program("shell", ("sh", "-c", script), {"URL": "${url}", "KEY": "${key}"})


def scripted(answer: Callable[[str], str]) -> ScriptedTokens:
    return ScriptedTokens(lambda prompt, seed: answer(prompt), TOKENIZER, TOKENIZER.special("<|im_end|>"))


def task_of(prompt: str) -> str:
    """The task of the history that a prompt holds."""
    return prompt.split("<|im_start|>user\n")[1].split("<|im_end|>", maxsplit=1)[0]


def limits_of(seconds: float | None = 100, steps: int | None = 50, tokens: int | None = None) -> Limits:
    layers = {**MINI.layers, Layer.INFERENCE: Limit(30, 2, (0,))}
    return Limits(layers, RolloutLimits(steps=steps, wall_s=seconds, tokens=tokens))


FIX = written("bash", thought="look", command="echo fixed > a.txt; mkdir -p out; echo x > out/x; printf 'caf\\303\\251' > 'new é.txt'")


@pytest.fixture
async def sandbox(stack: Stack) -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandboxClient(stack.url, stack.key) as client, await client.create_sandbox("host") as sandbox:
        await sandbox.files.mkdir("/testbed")
        (await sandbox.exec(REPOSITORY, cwd="/testbed")).check()
        yield sandbox


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy(TOKENIZER) as proxy:
        yield proxy


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
async def test_a_run_with_its_patch_and_samples(sandbox: AsyncSandbox, proxy: Proxy, dialect: str) -> None:
    policy = scripted(lambda prompt: "done" if "<tool_response>" in prompt else FIX)
    run = await run_program(agent(dialect), sandbox, proxy, policy, "fix $a.txt", limits=limits_of(), rollout_id="r", seed=3)
    assert (run.end.status, run.end.blame, run.end.reason, run.exit_code) == (Status.COMPLETED, None, "", 0), run
    assert run.output == "said: done\n"
    assert run.patch is not None
    assert "+fixed" in run.patch
    assert "b/new é.txt" in run.patch
    assert "out/x" not in run.patch  # ignored files are no work
    assert (await sandbox.exec("git status --porcelain", cwd="/testbed")).stdout.startswith(" M a.txt")  # the index is as it was
    assert [call.dialect for call in run.calls] == [dialect] * 2
    (sample,) = run.samples
    assert sum(sample.loss_mask) == sum(len(call.output_ids) for call in run.calls)
    assert "fix $a.txt" in TOKENIZER.decode(run.calls[0].prompt_ids)
    assert [pair["rollout_id"] for pair in run.pairs] == ["r", "r"]
    clean = await sandbox.exec("git stash -qu && git apply - && cat a.txt", cwd="/testbed", input=run.patch)
    assert clean.stdout == "fixed\n", clean.stderr


async def test_sub_agents_and_compaction_are_branches(sandbox: AsyncSandbox, proxy: Proxy) -> None:
    """Pairs recorded = calls made; each response in exactly one loss."""

    def answer(prompt: str) -> str:
        task, turns = task_of(prompt), prompt.count("<|im_start|>assistant") - 1
        if task == "helper":
            return "helped" if turns else written("bash", command="echo in the helper")
        if task.startswith("So far"):
            return "done" if turns else written("bash", command="echo after compaction")
        plan = [written("bash", command="echo one"), written("agent", command="helper"), written("bash", command="echo two")]
        return plan[turns]

    run = await run_program(agent("messages", COMPACT="6"), sandbox, proxy, scripted(answer), "main task", limits=limits_of())
    assert run.end.status is Status.COMPLETED, run
    assert len(run.pairs) == len(run.calls) == 7
    main, helper, compacted = run.samples
    assert (main.calls, helper.calls, compacted.calls) == ((0, 1, 4), (2, 3), (5, 6))
    assert [sample.weight for sample in run.samples] == pytest.approx([1 / 3] * 3)
    assert sum(sum(sample.loss_mask) for sample in run.samples) == sum(len(call.output_ids) for call in run.calls)


async def test_a_commit_of_the_program_is_part_of_its_patch(sandbox: AsyncSandbox, proxy: Proxy) -> None:
    work = written("bash", command="echo fixed > a.txt; git commit -qam work; rm -rf .git/hooks")
    policy = scripted(lambda prompt: "done" if "<tool_response>" in prompt else work)
    run = await run_program(agent(), sandbox, proxy, policy, "x", limits=limits_of())
    assert run.patch is not None
    assert "+fixed" in run.patch


ENDS: list[tuple[str, Program, Limits, tuple[Status, Blame | None, str]]] = [
    ("exit", shell("exit 7"), limits_of(), (Status.ABORTED, Blame.ENVIRONMENT, "no_call")),
    ("quiet", shell("true"), limits_of(), (Status.ABORTED, Blame.ENVIRONMENT, "no_call")),
    ("missing", Program("none", ("/no/such/program",)), limits_of(), (Status.ABORTED, Blame.ENVIRONMENT, "program_not_found")),
    ("clock", shell("sleep 100"), limits_of(2), (Status.TIMEOUT, Blame.POLICY, "wall_clock")),
    ("steps", agent(), limits_of(steps=3), (Status.TRUNCATED, None, "steps")),
    ("stubborn", shell("python3 ~/agent.py; while :; do sleep 1; done"), limits_of(steps=1), (Status.TRUNCATED, None, "steps")),
    ("tokens", agent(), limits_of(tokens=2200), (Status.TRUNCATED, None, "tokens")),
]


@pytest.mark.parametrize(("name", "program", "limits", "expected"), ENDS, ids=[end[0] for end in ENDS])
async def test_ends(
    sandbox: AsyncSandbox, proxy: Proxy, name: str, program: Program, limits: Limits, expected: tuple[Status, Blame | None, str]
) -> None:
    if name == "stubborn":
        command = "python3 ~/agent.py chat $URL $KEY x; while :; do sleep 1; done"
        program = Program("stubborn", ("sh", "-c", command), shell("").env, {"agent.py": AGENT})
    policy = scripted(lambda prompt: written("bash", command="echo again"))
    run = await run_program(program, sandbox, proxy, policy, "task", limits=limits)
    assert (run.end.status, run.end.blame, run.end.reason) == expected, run
    assert sum(sum(sample.loss_mask) for sample in run.samples) == sum(len(call.output_ids) for call in run.calls)


@requires("busybox")
async def test_an_image_without_python_or_git(stack: Stack, proxy: Proxy, tmp_path: Path) -> None:
    busybox = static_busybox()
    assert busybox is not None
    for folder in ("bin", "testbed", "tmp", "var"):
        (tmp_path / folder).mkdir()
    shutil.copy(busybox, tmp_path / "bin/busybox")
    for name in ("sh", "wget"):
        (tmp_path / "bin" / name).symlink_to("busybox")
    body = '{"model": "policy", "messages": [{"role": "user", "content": "hi"}]}'
    program = shell(f"wget -q -O - --header 'x-api-key: '$KEY --post-data '{body}' $URL/v1/chat/completions")
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        await client.images.import_(tmp_path, "without-python")
        async with await client.create_sandbox("without-python") as bare:
            run = await run_program(program, bare, proxy, scripted(lambda prompt: "an answer"), "x", limits=limits_of())
    assert (run.end, run.exit_code, run.patch) == (End(Status.COMPLETED), 0, None), run
    assert "an answer" in run.output
    assert [call.finish for call in run.calls] == ["stop"]


async def test_a_program_that_fails_after_its_work(sandbox: AsyncSandbox, proxy: Proxy) -> None:
    program = Program("fails", ("sh", "-c", "python3 ~/agent.py chat $URL $KEY x; exit 9"), shell("").env, {"agent.py": AGENT})
    run = await run_program(program, sandbox, proxy, scripted(lambda prompt: "done"), "x", limits=limits_of())
    assert (run.end.status, run.end.blame, run.end.reason, run.exit_code) == (Status.COMPLETED, Blame.WORKLOAD, "exit_9", 9)


class Failing:
    name = "failing"

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.left, self.requests = error, times, 0

    async def generate(self, prompt_ids: Any, *, seed: int | None, max_new_tokens: int, stop: Any) -> Generation:
        self.requests += 1
        if self.left:
            self.left -= 1
            raise self.error
        ids = (*TOKENIZER.encode("done"), TOKENIZER.special("<|im_end|>"))
        return Generation(ids, (0.0,) * len(ids))


@pytest.mark.parametrize(
    ("error", "times", "requests", "expected"),
    [
        (PolicyUnavailableError("x"), 1, 2, (Status.COMPLETED, None, "")),
        (PolicyUnavailableError("x"), 9, 2, (Status.ABORTED, Blame.INFRASTRUCTURE, "policy_unavailable")),
        (PolicyRefusedError("x"), 9, 1, (Status.ABORTED, Blame.INFRASTRUCTURE, "policy_refused")),
        (ContextLengthError("x"), 9, 1, (Status.TRUNCATED, None, "tokens")),
    ],
)
async def test_a_policy_that_does_not_answer(
    sandbox: AsyncSandbox, proxy: Proxy, error: Exception, times: int, requests: int, expected: tuple[Status, Blame | None, str]
) -> None:
    policy = Failing(error, times)
    run = await run_program(agent(), sandbox, proxy, policy, "x", limits=limits_of())
    assert (run.end.status, run.end.blame, run.end.reason) == expected, run
    assert policy.requests == requests


async def test_a_policy_that_hangs_is_unavailable() -> None:
    class Hanging(Failing):
        async def generate(self, *words: Any, **more: Any) -> Generation:
            self.requests += 1
            await asyncio.Event().wait()
            raise AssertionError

    policy = Hanging(ValueError(), 0)
    limits = replace(limits_of(), layers={**MINI.layers, Layer.INFERENCE: Limit(0.01, 3, (0,))})
    with pytest.raises(PolicyUnavailableError, match="inference_timeout"):
        await PatientPolicy(policy, limits).generate((1,), seed=None, max_new_tokens=1, stop=())
    assert policy.requests == 3


async def test_a_deleted_sandbox_is_an_infrastructure_failure(sandbox: AsyncSandbox, proxy: Proxy) -> None:
    async def delete() -> None:
        await started.wait()
        await sandbox.client.get_sandbox(sandbox.id).delete()

    started = asyncio.Event()

    def answer(prompt: str) -> str:
        started.set()
        return written("bash", command="sleep 50")

    other = asyncio.ensure_future(delete())
    run: ProgramRun = await run_program(agent(), sandbox, proxy, scripted(answer), "x", limits=limits_of())
    await other
    assert (run.end.status, run.end.blame) == (Status.ABORTED, Blame.INFRASTRUCTURE), run
    assert len(run.calls) == 1


async def test_cancelling_a_run_ends_its_program(sandbox: AsyncSandbox, proxy: Proxy) -> None:
    started = asyncio.Event()

    def answer(prompt: str) -> str:
        started.set()
        return written("bash", command="sleep 54321")

    running = asyncio.ensure_future(run_program(agent(), sandbox, proxy, scripted(answer), "x", limits=limits_of()))
    await started.wait()
    while not (await sandbox.exec("pgrep -f 'sleep 5432[1]'")).ok:
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    left = await sandbox.exec("pgrep -af 'agent.py|sleep 5432[1]' | grep -v pgrep")
    assert left.stdout == ""


def test_the_programs_fill_their_places() -> None:
    for name, program in PROGRAMS.items():
        assert program.name == name
        everything = " ".join([*program.argv, *program.env.values(), *program.files.values()])
        assert all(place in everything for place in ("${url}", "${key}", "${prompt}"))
