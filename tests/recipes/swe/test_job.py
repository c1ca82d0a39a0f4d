"""A repair task in real sandboxes: start state, capture, grading in a second sandbox, and rollouts with both harnesses (D9)."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandboxClient, ImageNotFoundError, SandboxLostError
from holdfast_recipes.core import diffs
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.harness.conversation import ChatConversation
from holdfast_recipes.harness.limits import EDITOR, MINI, Resources
from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.harness.rollout import Capacity, Settings, play
from holdfast_recipes.policy.scripted import ScriptedChat, call
from holdfast_recipes.prompts.swe import SUBMIT_WORD
from holdfast_recipes.swe import workspace
from holdfast_recipes.swe.bare import BareMachine
from holdfast_recipes.swe.grading import Resolution
from holdfast_recipes.swe.job import SMALL, Style, SweJob, maker
from holdfast_recipes.swe.sources import SweTask

from tests.recipes.swe.conftest import BUG, RIGHT, TESTS, Small, small_task
from tests.support.requires import requires

pytestmark = requires("namespaces", "redis", "git")

GOLD = diffs.reverse(BUG)


def job(client: AsyncSandboxClient, small: Small, **more: Any) -> SweJob:
    return SweJob(small.task, maker(client), archives=small.archives, resources=SMALL, **more)


def edited(path: str, before: str | None, after: str | None) -> str:
    """A patch as git writes it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for side, text in (("a", before), ("b", after)):
            target = Path(folder) / side / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                target.write_text(text)
        command = ["git", "diff", "--no-index", "--no-prefix", "a", "b"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


WRONG = RIGHT.replace("a + b", "a - b")
BROKEN = RIGHT.replace("2 * a", "3 * a")

CASES: dict[str, tuple[str, Resolution, str]] = {
    "the gold patch": (GOLD, Resolution.RESOLVED, ""),
    "an empty patch": ("\n", Resolution.NO, "empty"),
    "another fix": (edited("calc.py", WRONG, RIGHT.replace("a + b", "sum([a, b])")), Resolution.RESOLVED, ""),
    "a patch that edits the tests too": (GOLD + edited("tests/test_calc.py", TESTS, "def test_add(): pass\n"), Resolution.RESOLVED, ""),
    "a patch of the tests alone": (edited("tests/test_calc.py", TESTS, TESTS.replace("== 5", "== -1")), Resolution.NO, "empty"),
    "a patch that takes behaviour away": (edited("calc.py", WRONG, BROKEN), Resolution.NO, ""),
    "a patch of something else": (edited("README", None, "hello\n"), Resolution.NO, ""),
    "no patch at all": ("I have repaired it.", Resolution.NO, "malformed"),
    "a patch that does not apply": (GOLD.replace("return a - b", "return a / b"), Resolution.NO, "malformed"),
    "a patch of a file outside": (GOLD.replace("calc.py", "../calc.py"), Resolution.NO, "malformed"),
    "a fix that deletes a tested function": (edited("calc.py", WRONG, RIGHT.split("\n\n\ndef double")[0] + "\n"), Resolution.NO, ""),
    "a patch with other numbers of lines": (GOLD.replace("@@ -2,6 +2,6 @@", "@@ -40,6 +40,6 @@"), Resolution.RESOLVED, ""),
}


@pytest.mark.parametrize("name", list(CASES))
async def test_grades(client: AsyncSandboxClient, small: Small, name: str) -> None:
    patch, resolution, reason = CASES[name]
    graded, log = await job(client, small).graded(patch)
    assert (graded.resolution, graded.reason.partition(":")[0]) == (resolution, reason)
    assert len(log) == (0 if reason else 64)
    if resolution is Resolution.RESOLVED:
        assert (graded.fixed, graded.kept) == ((1, 1), (1, 1))


async def test_a_patch_that_hangs_is_not_resolved(client: AsyncSandboxClient, small: Small) -> None:
    hangs = edited("calc.py", WRONG, RIGHT + "\nwhile True:\n    pass\n")
    graded, _ = await job(client, small, test_timeout_s=2.0).graded(hangs)
    assert (graded.resolution, graded.reason) == (Resolution.NO, "tests: timeout")


@requires("cgroups")
async def test_a_patch_that_eats_all_memory_gets_more_once_and_is_not_resolved(client: AsyncSandboxClient, small: Small) -> None:
    hungry = edited("calc.py", WRONG, RIGHT + "\nx = bytearray(1 << 31)\nx[::4096] = b'1' * len(x[::4096])\n")
    given: list[Resources] = []
    make = maker(client)

    async def recorded(task: SweTask, resources: Resources) -> Machine:
        given.append(resources)
        return await make(task, resources)

    graded, _ = await SweJob(small.task, recorded, archives=small.archives, resources=SMALL).graded(hungry)
    assert (graded.resolution, graded.reason) == (Resolution.NO, "tests: oom")
    assert [each.memory_gib for each in given] == [0.5, 1.0]


async def test_a_lost_sandbox_is_infrastructure(client: AsyncSandboxClient, small: Small) -> None:
    class Lost:
        id = "lost"

        async def exec(self, *_: object, **__: object) -> Any:
            raise SandboxLostError("sandbox_gone", "gone", reason="node-lost")

        async def delete(self) -> bool:
            return True

    async def make_lost(task: SweTask, resources: Resources) -> Machine:
        return Lost()

    graded = await SweJob(small.task, make_lost, archives=small.archives).grade(GOLD)
    assert (graded.reward, graded.blame, graded.reason) == (None, Blame.INFRASTRUCTURE, "node-lost")

    async def make_refused(task: SweTask, resources: Resources) -> Machine:
        raise ImageNotFoundError("image_not_found", "no such image")

    graded = await SweJob(small.task, make_refused, archives=small.archives).grade(GOLD)
    assert (graded.reward, graded.blame) == (None, Blame.INFRASTRUCTURE)


async def test_a_sandbox_that_is_deleted_while_tests_run_is_infrastructure(client: AsyncSandboxClient, tmp_path: Path) -> None:
    small = small_task(tmp_path, test_commands=("touch /tmp/begun; sleep 600",))
    make = maker(client)

    async def make_and_delete(task: SweTask, resources: Resources) -> Machine:
        sandbox = await make(task, resources)
        await sandbox.exec("(while [ ! -e /tmp/begun ]; do sleep 0.05; done; touch /tmp/seen) >/dev/null 2>&1 &")
        killers.append(asyncio.create_task(kill(sandbox.id)))
        return sandbox

    async def kill(sandbox_id: str) -> None:
        other = client.get_sandbox(sandbox_id)
        while not await other.files.exists("/tmp/seen"):
            await asyncio.sleep(0.05)
        async with AsyncSandboxClient(client.url, key(client)) as another:
            await another.get_sandbox(sandbox_id).delete()

    killers: list[asyncio.Task[None]] = []
    graded = await SweJob(small.task, make_and_delete, archives=small.archives, resources=SMALL).grade(GOLD)
    await asyncio.gather(*killers)
    assert graded.reward is None
    assert graded.blame is Blame.INFRASTRUCTURE


def key(client: AsyncSandboxClient) -> str:
    return client._options.api_key


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start_patch": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}, "start_patch"),
        ({"start_commands": ("exit 3",)}, "start_commands"),
        ({"archives": ("0" * 64,)}, "archive"),
    ],
)
async def test_a_task_that_cannot_start_is_an_environment_failure(
    client: AsyncSandboxClient, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    small = small_task(tmp_path, **changes)
    mine = job(client, small)
    graded = await mine.grade(GOLD)
    assert (graded.reward, graded.blame, graded.reason) == (None, Blame.ENVIRONMENT, f"environment: {reason}")
    settings = Settings(lambda: ChatConversation(ScriptedChat([])), MINI, Capacity())
    done = await play(mine, settings)
    assert (done.status, done.blame, done.reason) == (Status.ABORTED, Blame.ENVIRONMENT, reason)


async def test_tests_that_come_with_the_grader(client: AsyncSandboxClient, tmp_path: Path) -> None:
    more = edited("tests/test_calc.py", TESTS, TESTS + "def test_zero(): assert add(0, 0) == 0\n")
    named = ("tests/test_calc.py::test_add", "tests/test_calc.py::test_zero")
    graded, _ = await job(client, small_task(tmp_path, test_patch=more, fail_to_pass=named)).graded(GOLD)
    assert graded.fixed == (2, 2)
    script = small_task(
        tmp_path,
        test_script="from calc import add\ndef test_it(): assert add(1, 1) == 2\n",
        fail_to_pass=("hidden/test_new.py::test_it",),
        pass_to_pass=(),
        test_commands=("PYTHONPATH=. python3 run_tests.py hidden/test_new.py",),
    )
    assert (await job(client, script).graded(GOLD))[0].resolution is Resolution.RESOLVED


# What the policy changed ------------------------------------------------------------------------------------------


async def test_whatever_the_policy_did_to_its_repository_the_patch_is_the_difference(client: AsyncSandboxClient, small: Small) -> None:
    sandbox = await maker(client)(small.task, SMALL)
    tree = await workspace.start(sandbox, small.task, small.archives)
    assert "a - b" in (await sandbox.exec("cat calc.py", cwd="/testbed")).stdout
    assert (await sandbox.exec("git status --porcelain", cwd="/testbed")).stdout == ""
    assert await workspace.capture(sandbox, small.task, tree) == ""
    script = (
        "sed -i 's/a - b/a + b/' calc.py; git -c user.name=a -c user.email=b commit -qam mine; mkdir new; printf 'x\\0y' > new/data.bin;"
        "echo 'text' > 'new/with blank.txt'; rm tests/__init__.py; git config diff.noprefix true; git config color.ui always; git add new;"
        "mkdir -p __pycache__; touch __pycache__/a.pyc"
    )
    assert (await sandbox.exec(script, cwd="/testbed")).ok
    patch = await workspace.capture(sandbox, small.task, tree)
    assert sorted(diffs.touched(patch)) == ["calc.py", "new/data.bin", "new/with blank.txt", "tests/__init__.py"]
    fresh = await maker(client)(small.task, SMALL)
    await workspace.start(fresh, small.task, small.archives)
    assert await workspace.apply(fresh, small.task, patch) is None
    assert (await fresh.exec("cat new/data.bin", cwd="/testbed")).stdout_bytes == b"x\0y"
    assert (await sandbox.exec("rm -rf .git", cwd="/testbed")).ok
    assert await workspace.capture(sandbox, small.task, tree) == ""
    for each in (sandbox, fresh):
        await each.delete()


async def test_text_that_is_not_utf8_comes_out_whole(client: AsyncSandboxClient, small: Small) -> None:
    sandbox = await maker(client)(small.task, SMALL)
    tree = await workspace.start(sandbox, small.task, small.archives)
    assert (await sandbox.exec("sed -i 's/a - b/a + b/' calc.py; printf '# caf\\351\\n' > names.py", cwd="/testbed")).ok
    patch = await workspace.capture(sandbox, small.task, tree)
    await sandbox.delete()
    assert sorted(diffs.touched(patch)) == ["calc.py", "names.py"]
    fresh = await maker(client)(small.task, SMALL)
    await workspace.start(fresh, small.task, small.archives)
    assert await workspace.apply(fresh, small.task, patch) is None
    assert (await fresh.exec("cat names.py", cwd="/testbed")).stdout_bytes == b"# caf\xe9\n"
    await fresh.delete()
    assert (await job(client, small).graded(patch))[0].resolution is Resolution.RESOLVED


async def test_later_commits_cannot_be_found(client: AsyncSandboxClient, tmp_path: Path) -> None:
    """A published image may hold the project's whole history, the fix included."""
    history = (
        "git init -q . && git config user.name a && git config user.email b && git add -A && git commit -qm old &&"
        " git checkout -q -b later && echo fixed > fix.txt && git add -A && git commit -qm 'the fix' && git tag v2 &&"
        " git update-ref refs/remotes/origin/main HEAD && git checkout -q -"
    )
    small = small_task(tmp_path, start_commands=(history,))
    sandbox = await maker(client)(small.task, SMALL)
    await workspace.start(sandbox, small.task, small.archives)
    seen = await sandbox.exec("git log --all --reflog --format=%s; git tag; git branch -a", cwd="/testbed")
    assert "fix" not in seen.stdout
    assert "later" not in seen.stdout
    assert seen.stdout.splitlines()[:2] == ["Start", "old"]
    await sandbox.delete()


async def test_the_repair_of_a_task_by_both_harnesses(client: AsyncSandboxClient, small: Small) -> None:
    mini = [
        call("bash", command="cat calc.py"),
        call("bash", command="sed -i 's/a - b/a + b/' calc.py && git diff > /tmp/patch.txt"),
        call("bash", command=f"echo {SUBMIT_WORD} && cat /tmp/patch.txt"),
    ]
    editor = [
        call("file_editor", command="str_replace", path="/testbed/calc.py", old_str="a - b", new_str="a + b"),
        call("finish", message="done"),
    ]
    for style, script, limits in ((Style(), mini, MINI), (Style("editor"), editor, EDITOR)):
        settings = Settings(lambda script=script: ChatConversation(ScriptedChat(script)), limits, Capacity())  # type: ignore[misc]
        mine = SweJob(small.task, maker(client, labels={"of": "both"}), archives=small.archives, resources=SMALL, style=style)
        done = await play(mine, settings, seed=1)
        assert (done.reward, done.status, done.reason) == (1.0, Status.COMPLETED, "submitted")
        assert done.verdict is not None
        assert done.verdict.fail_to_pass == (1, 1)
        assert len(done.verdict.log_sha256) == 64
        assert list(done.prompts) == [f"swe_{style.harness}"]
        assert not settings.counts.events
    assert await client.list_sandboxes({"of": "both"}) == []


async def test_one_of_eight_sandboxes_is_deleted_under_its_rollout(client: AsyncSandboxClient, small: Small) -> None:
    """The other seven keep their rewards; the lost one is blamed on infrastructure and counted once."""
    repair = "sed -i 's/a - b/a + b/' calc.py && while [ ! -e /tmp/go ]; do sleep 0.05; done"
    turns = [call("bash", command=repair), call("bash", command=f"echo {SUBMIT_WORD} && git diff")]
    settings = Settings(lambda: ChatConversation(ScriptedChat(turns)), MINI, Capacity(), run="eight")
    made: list[Machine] = []
    make = maker(client)

    async def recorded(task: SweTask, resources: Resources) -> Machine:
        made.append(await make(task, resources))
        return made[-1]

    jobs = [SweJob(small.task, recorded, archives=small.archives, resources=SMALL) for _ in range(8)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(play(job, settings, seed=seed)) for seed, job in enumerate(jobs)]
        while len(made) < 8:
            await asyncio.sleep(0.05)
        rolling = list(made)
        async with AsyncSandboxClient(client.url, key(client)) as other:
            lost = other.get_sandbox(rolling[3].id)
            while "while" not in (await lost.exec("ps axww -o args")).stdout:
                await asyncio.sleep(0.1)
            await lost.delete()
        for index, sandbox in enumerate(rolling):
            if index != 3:
                await sandbox.exec("touch /tmp/go")
    done = [task.result() for task in running]
    assert sorted(each.reward or 0 for each in done) == [0.0] + [1.0] * 7
    spoiled = next(each for each in done if each.reward is None)
    assert (spoiled.status, spoiled.blame) == (Status.ABORTED, Blame.INFRASTRUCTURE)
    assert sum(count for name, count in settings.counts.events.items() if name.startswith("aborted_infrastructure")) == 1


async def test_work_that_the_budget_cut_off_is_graded_as_it_stands(client: AsyncSandboxClient, small: Small) -> None:
    script = [call("bash", command="sed -i 's/a - b/a + b/' calc.py")]
    limits = replace(MINI, rollout=replace(MINI.rollout, steps=1))
    done = await play(job(client, small), Settings(lambda: ChatConversation(ScriptedChat(script)), limits, Capacity()))
    assert (done.status, done.reason, done.reward) == (Status.TRUNCATED, "steps", 1.0)


async def test_the_bare_machine_gives_the_same_grade(small: Small) -> None:
    async def bare(task: SweTask, resources: Resources) -> Machine:
        return BareMachine()

    mine = SweJob(small.task, bare, archives=small.archives)
    assert (await mine.graded(GOLD))[0].resolution is Resolution.RESOLVED
    assert (await mine.graded(CASES["a patch that takes behaviour away"][0]))[0].resolution is Resolution.NO


async def test_a_parser_that_is_not_here(client: AsyncSandboxClient, tmp_path: Path) -> None:
    small = small_task(tmp_path, log_parser="parse_log_maven")
    graded = await job(client, small).grade(GOLD)
    assert (graded.blame, graded.reason) == (Blame.ENVIRONMENT, "environment: unknown_parser")
