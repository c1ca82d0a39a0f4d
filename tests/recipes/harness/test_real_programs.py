"""codex, opencode, claude-code, pi, hermes, Kimi CLI, OpenHands and mini-swe-agent as they are published, in sandboxes without a network,
on a scripted policy.

Each does one small task, some also with a sub-agent, and comes to the limit of its steps. Those that are no single file
are in an image: a snapshot of a sandbox that their files were unpacked in. Their packages take minutes to
fetch: ``make recipes-programs`` runs them, continuous integration does not.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.harness.limits import MINI, Layer, Limit, Limits, RolloutLimits
from holdfast_recipes.harness.mini_swe_agent import run_mini
from holdfast_recipes.harness.program import End, ProgramRun, at, run_program
from holdfast_recipes.harness.programs import PROGRAMS
from holdfast_recipes.policy.scripted import ScriptedTokens, written
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from holdfast_recipes.proxy.server import Proxy

from tests.recipes import packages
from tests.support.stack import Stack

pytestmark = [pytest.mark.recipes_packages, pytest.mark.timeout(900)]

TOKENIZER = ByteTokenizer()
NAMES = sorted(PROGRAMS)
LAYERED = ("hermes", "kimi-cli", "openhands", "pi")
DELEGATING = ("claude-code", "codex", "opencode")
HELP = "HELPER: say hello"
REPOSITORY = (
    "git init -q && git config user.email a@b && git config user.name a && echo broken > a.txt && git add . && git commit -qm start"
)
DIALECTS = dict.fromkeys(PROGRAMS, "chat") | {"codex": "responses", "claude-code": "messages"}


async def layered(client: AsyncSandboxClient, name: str) -> str:
    """The image that has a program, made of the machine's own files and a layer where it is not there yet."""
    image = f"harness-{name}"
    if image not in {each.name.removesuffix(":latest") for each in await client.images.list()}:
        archive, _ = packages.layer(name, PROGRAMS[name].version)
        async with await client.create_sandbox("host", memory="2Gi", disk="8Gi") as made:
            await made.files.upload(archive, "/tmp/layer.tar")
            (await made.exec("tar -xf /tmp/layer.tar -C / && rm /tmp/layer.tar", timeout=300)).check()
            await made.snapshot(image)
    return image


@pytest.fixture
async def sandbox(stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[AsyncSandbox]:
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        image = await layered(client, name) if name in LAYERED else "host"
        created = await client.create_sandbox(image, memory="2Gi", disk="8Gi" if name in LAYERED else None)
        async with created as sandbox:
            yield await prepared(sandbox)


async def prepared(sandbox: AsyncSandbox) -> AsyncSandbox:
    """A repository in a sandbox that reaches no network."""
    await sandbox.files.mkdir("/testbed")
    (await sandbox.exec(REPOSITORY, cwd="/testbed")).check()
    assert not (await sandbox.exec("python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'")).ok
    return sandbox


def shell(name: str, command: str) -> str:
    if name == "codex":
        return written("exec_command", thought="I act.", cmd=command)
    if name == "opencode":
        return written("bash", thought="I act.", command=command, description="act")
    if name in LAYERED:
        tool = {"pi": "bash", "kimi-cli": "Shell"}.get(name, "terminal")
        return written(tool, thought="I act.", command=command)
    return written("Bash", thought="I act.", command=command, description="act")


def fixing(name: str, history: str, turn: int) -> str:
    return "All done." if turn else shell(name, "echo fixed > a.txt")


def delegating(name: str, history: str, turn: int) -> str:
    """Start a sub-agent, wait for it where that is a call of its own, then fix."""
    if "Fix a.txt" not in history:
        return "hello from the helper"
    if turn == 0:
        return {
            "codex": written("multi_agent_v1.spawn_agent", message=HELP),
            "opencode": written("task", description="help", prompt=HELP, subagent_type="general"),
            "claude-code": written("Agent", description="help", prompt=HELP),
        }[name]
    if turn == 1 and name == "codex":
        found = re.search(r'"agent_id":"([^"]+)"', history)
        assert found is not None, history[-500:]
        return written("multi_agent_v1.wait_agent", targets=[found.group(1)], timeout_ms=20_000)
    return "All done." if "echo fixed" in history else shell(name, "echo fixed > a.txt")


def filling(name: str, history: str, turn: int) -> str:
    """More output than the context has room for; after the history was put into one message, the fix."""
    if "A title" not in history:
        return shell(name, "seq 3000")
    return "All done." if "echo fixed" in history else shell(name, "echo fixed > a.txt")


def endless(name: str, history: str, turn: int) -> str:
    return shell(name, "echo again")


async def run_real(
    sandbox: AsyncSandbox,
    name: str,
    answer: Callable[[str, str, int], str],
    capsys: pytest.CaptureFixture[str],
    steps: int = 40,
    config: str = "",
) -> ProgramRun:
    def script(prompt: str, seed: int | None) -> str:
        if "<tools>" not in prompt:  # a title, or a summary of what was done so far
            return "A title"
        history = prompt[prompt.index("<|im_end|>") :]
        return answer(name, history, history.count("<|im_start|>assistant") - 1)

    program = PROGRAMS[name]
    program = replace(program, files={path: config + text for path, text in program.files.items()})
    if name in LAYERED:
        place = packages.layer(name, program.version)[1]
    else:
        place = f"/opt/{name}"
        await sandbox.files.upload(packages.npm_program(name, program.version), place)
        await sandbox.files.chmod(place, 0o755)
    limits = Limits(MINI.layers, RolloutLimits(steps=steps, wall_s=150, tokens=None))
    policy = ScriptedTokens(script, TOKENIZER, TOKENIZER.special("<|im_end|>"))
    async with Proxy(TOKENIZER) as proxy:
        run = await run_program(at(program, place), sandbox, proxy, policy, "Fix a.txt", limits=limits)
    report(capsys, f"{name} {program.version} {answer.__name__}", run)
    assert {call.dialect for call in run.calls} == {DIALECTS[name]}, run
    return run


def report(capsys: pytest.CaptureFixture[str], what: str, run: ProgramRun) -> None:
    """One line for each run, also where output is captured: what the packages did is a result."""
    branches = ", ".join(f"{len(sample.calls)} calls/{sum(sample.loss_mask)} of {len(sample.ids)} tokens" for sample in run.samples)
    with capsys.disabled():
        ended = f"{run.end.status}{f' ({run.end.reason})' if run.end.reason else ''}"
        print(f"\n  {what}: {ended} in {run.seconds:.1f} s, {len(run.calls)} calls, {len(run.samples)} samples: {branches}", end="")
    # each response has loss in exactly one sample
    assert sorted(place for sample in run.samples for place in sample.calls if run.calls[place].loss) == [
        place for place, call in enumerate(run.calls) if call.loss
    ]
    assert sum(sum(sample.loss_mask) for sample in run.samples) == sum(len(call.output_ids) for call in run.calls if call.loss)


@pytest.mark.parametrize("name", NAMES)
async def test_a_small_task(sandbox: AsyncSandbox, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = await run_real(sandbox, name, fixing, capsys)
    assert (run.end, run.exit_code) == (End(Status.COMPLETED), 0), run
    assert run.patch is not None
    assert run.patch.endswith("-broken\n+fixed\n")
    assert run.patch.count("diff --git") == 1
    assert [call.finish for call in run.calls if "Fix a.txt" in TOKENIZER.decode(call.prompt_ids)][-2:] == ["tool_calls", "stop"]
    main = max(run.samples, key=lambda sample: len(sample.ids))
    assert len(main.calls) == 2  # the second prompt extends the first and its answer, id by id


@pytest.mark.parametrize("name", DELEGATING)
async def test_a_sub_agent_is_a_branch(sandbox: AsyncSandbox, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = await run_real(sandbox, name, delegating, capsys)
    assert (run.end, run.exit_code) == (End(Status.COMPLETED), 0), run
    helpers = [sample for sample in run.samples if TOKENIZER.decode(sample.ids).rstrip().endswith("hello from the helper<|im_end|>")]
    assert len(helpers) == 1
    assert len(run.samples) == (3 if name == "opencode" else 2)  # opencode asks for a title
    assert {call.finish for call in run.calls} == {"tool_calls", "stop"}


async def test_a_compaction_is_a_branch(sandbox: AsyncSandbox, capsys: pytest.CaptureFixture[str]) -> None:
    """codex with room for its own prompt and little more."""
    run = await run_real(sandbox, "codex", filling, capsys, config="model_auto_compact_token_limit = 42000\n")
    assert run.end == End(Status.COMPLETED), run
    before, summary, after = run.samples
    assert [*before.calls, *summary.calls, *after.calls] == list(range(len(run.calls)))
    assert (len(summary.calls), len(after.calls)) == (1, 2)
    assert "A title" in TOKENIZER.decode(run.calls[after.calls[0]].prompt_ids)


@pytest.mark.parametrize("name", NAMES)
async def test_the_limit_of_steps_ends_it(sandbox: AsyncSandbox, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = await run_real(sandbox, name, endless, capsys, steps=3)
    assert (run.end.status, run.end.reason) == (Status.TRUNCATED, "steps"), run
    assert len(run.calls) == 3
    assert run.seconds < 60


# mini-swe-agent ----------------------------------------------------------------------------------------------------------


def mini_script(prompt: str, seed: int | None) -> str:
    """Look, break the format once, see more than is shown whole, wait too long, write the patch, hand it in."""
    plan = [
        "<think>\nhm\n</think>\n\nI look.\n" + written("bash", command="cat a.txt"),
        written("bash", command="seq 1 20000") + "\n" + written("bash", command="cd /tmp; pwd"),
        written("bash", command="pwd; sleep 100"),
        written("bash", command="echo fixed > a.txt; git diff -- a.txt > patch.txt"),
        written("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"),
    ]
    turn = prompt.count("<|im_start|>assistant") - 1
    return "no call here" if turn == 2 and "Tool call error" not in prompt else plan[turn]


async def run_real_mini(sandbox: AsyncSandbox, script: Callable[[str, int | None], str], rollout: RolloutLimits) -> ProgramRun:
    policy = ScriptedTokens(script, TOKENIZER, TOKENIZER.special("<|im_end|>"))
    async with Proxy(TOKENIZER) as proxy:
        layers = {**MINI.layers, Layer.OBSERVATION: Limit(5)}
        return await run_mini(packages.mini_python(), sandbox, proxy, policy, "Fix a.txt", limits=Limits(layers, rollout))


async def test_mini_swe_agent(sandbox: AsyncSandbox, capsys: pytest.CaptureFixture[str]) -> None:
    run = await run_real_mini(sandbox, mini_script, RolloutLimits(tokens=None))
    report(capsys, "mini-swe-agent 2.4.6 task", run)
    assert (run.end, run.exit_code) == (End(Status.COMPLETED, None, "submitted"), 0), run
    assert run.patch is not None
    assert run.patch.endswith("-broken\n+fixed\n")
    assert len(run.calls) == 6
    last = TOKENIZER.decode(run.calls[-1].prompt_ids)
    assert "characters elided" in last
    assert "<output>\n/tmp\n</output>" in last  # a subshell for each call,
    assert "<output>\n/testbed\n</output>" in last  # so the next one is back
    assert "timed out after 5 seconds" in last
    # after the format error: in the form of a tool's answer, so that the template keeps the thoughts of earlier turns
    retried = TOKENIZER.decode(run.calls[3].prompt_ids)
    assert "<tool_response>\nTool call error" in retried
    assert "hm\n</think>" in retried
    # the package drops a turn without a call from its history: what follows is a branch
    assert [sample.calls for sample in run.samples] == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.parametrize(
    ("rollout", "end", "calls"),
    [
        (RolloutLimits(steps=2, tokens=None), End(Status.TRUNCATED, None, "steps"), 2),
        (RolloutLimits(tokens=5600), End(Status.TRUNCATED, None, "tokens"), 2),
        (RolloutLimits(tokens=None, format_errors=2), End(Status.COMPLETED, Blame.POLICY, "format"), 2),
    ],
    ids=["steps", "tokens", "format"],
)
async def test_ends_of_mini_swe_agent(
    sandbox: AsyncSandbox, capsys: pytest.CaptureFixture[str], rollout: RolloutLimits, end: End, calls: int
) -> None:
    def script(prompt: str, seed: int | None) -> str:
        return "never a call" if end.reason == "format" else written("bash", command="echo again")

    run = await run_real_mini(sandbox, script, rollout)
    report(capsys, f"mini-swe-agent 2.4.6 {end.reason}", run)
    assert run.end == end, run
    assert len(run.calls) == calls
    assert run.patch is None


async def test_mini_swe_agent_that_is_not_installed(sandbox: AsyncSandbox) -> None:
    policy = ScriptedTokens(["x"], TOKENIZER, TOKENIZER.special("<|im_end|>"))
    async with Proxy(TOKENIZER) as proxy:
        run = await run_mini("/no/such/python", sandbox, proxy, policy, "x")
        assert run.end == End(Status.ABORTED, Blame.ENVIRONMENT, "program_not_found")
        run = await run_mini("/usr/bin/false", sandbox, proxy, policy, "x")
        assert run.end == End(Status.ABORTED, Blame.ENVIRONMENT, "program_failed")
