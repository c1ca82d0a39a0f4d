"""Runs that a process of a living shell could not begin: they begin in the next one, or fail with a typed error."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_wire.frames import Failed

from session_agent.agent.shell.shell import Shell
from session_agent.agent.shell.state.files import StateFiles
from tests.support.process_channel import Client, client
from tests.support.until import until_async

PATH = os.environ["PATH"]
TAKEN = "exec 3</dev/null 4<&3 5<&3 6<&3 7<&3 8<&3 9<&3; for i in {1..200}; do exec {x}</dev/null; done; trap 'exec {x}</dev/null' DEBUG"
"""Bash opens all that it may open."""
BREAKS_OFF = {"bash": "kill -INT $$; :", "sh": "set -u; : $none"}
"""The shell gives up what it executes, and begins again to read its commands."""
DIES_WAITING = """set -T; trap '[[ $BASH_COMMAND == *"read "*"-N1"* ]] && kill -9 $$' DEBUG"""
"""Bash ends whenever it would take a command, in each process that loads this trap again."""


def unread(monkeypatch: pytest.MonkeyPatch, is_read: Callable[[StateFiles], bool]) -> None:
    """The text of a run counts as read by a process only if ``is_read`` of its files."""
    monkeypatch.setattr(StateFiles, "is_read", property(is_read))


def live(sandbox: Client) -> Shell:
    (shell,) = sandbox.context.shells.values()
    assert isinstance(shell, Shell)
    return shell


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_a_run_that_is_broken_off_unread_begins_in_the_next_process(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where the shell cannot open the file: it answers, and the status of the error is no exit code of the run."""
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind, cwd="/usr")
        await shell.run("KEPT=1")
        first = live(sandbox).process.descriptors.files
        unread(monkeypatch, lambda files: files is not first)
        outcome = await shell.run(f"pwd; echo $KEPT; echo ran >>{tmp_path}/ran; {BREAKS_OFF[kind]}", timeout_s=20)
        assert outcome.exit_code not in (0, None)
        assert outcome.stdout.endswith(b"/usr\n1\n"), outcome
        assert outcome.result["shell"]["restarted"]
        assert (tmp_path / "ran").read_text() == "ran\n" * 2, "the test lets the first process read it, and says that it has not"


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_a_run_that_four_processes_do_not_begin_fails(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("KEPT=1")
        with monkeypatch.context() as patch:
            unread(patch, lambda files: False)
            outcome = await shell.run(f"echo ran >>{tmp_path}/ran; {BREAKS_OFF[kind]}", timeout_s=20)
        assert outcome.result["error"]["code"] == "shell_lost", outcome
        assert "has not run: 4 processes" in outcome.result["error"]["message"]
        assert outcome.result["error"]["hint"]
        assert (tmp_path / "ran").read_text() == "ran\n" * 4
        after = await shell.run("echo $KEPT; (exit 4)", timeout_s=20)
        assert (after.exit_code, after.stdout, after.result["shell"]["restarted"]) == (4, b"1\n", True), "the shell goes on"


@pytest.mark.parametrize("kind", ["bash", "sh"])
async def test_a_run_that_a_client_interrupts_does_not_begin_again(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unread(monkeypatch, lambda files: False)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        run = shell.begin(f"echo ran >>{tmp_path}/ran; sleep 60")
        await until_async((tmp_path / "ran").exists, deadline_s=60, what="the run to begin")
        shell.handler.signal("INT")
        assert (await shell.wait(run)).exit_code == 130
        assert (tmp_path / "ran").read_text() == "ran\n"


async def test_a_shell_that_has_opened_all_it_may_runs_the_next_command_in_another_process() -> None:
    """Under a limit that did not change. Each command was reported with exit code 1, and none ran."""
    limits = 200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    async with client(env={"PATH": PATH}, ulimits={"nofile": limits}) as sandbox:
        shell = sandbox.shell(shell="bash", cwd="/usr")
        await shell.run("KEPT=1")
        await shell.run(TAKEN, timeout_s=20)
        first = await shell.run("echo 1; pwd; echo $KEPT; (exit 4)", timeout_s=20)
        assert (first.exit_code, first.stdout, first.result["shell"]["restarted"]) == (4, b"1\n/usr\n1\n", True)
        second = await shell.run("echo 2; (exit 5)", timeout_s=20)
        assert (second.exit_code, second.stdout, second.result["shell"]["restarted"]) == (5, b"2\n", False)


async def test_a_state_that_ends_each_shell_ends_the_shell_for_good() -> None:
    """New processes were started without end, whether there was a command or not."""
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run(DIES_WAITING, timeout_s=20)
        run = shell.begin("echo ran", timeout_s=20)
        outcome = await shell.wait(run)
        assert (outcome.stdout, outcome.started, outcome.result["error"]["code"]) == (b"", False, "shell_lost"), outcome
        failure = await shell.channel.end()
        assert isinstance(failure, Failed)
        assert failure.error["code"] == "shell_lost"
        assert not sandbox.context.shells
