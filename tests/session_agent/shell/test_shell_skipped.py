"""Traps, functions and disabled builtins that keep a bash from its own commands: a command that did not run has no result of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.process_channel import client

PATH = os.environ["PATH"]
AT_START = '[[ $BASH_COMMAND == *"builtin eval"* || $BASH_COMMAND == *"builtin source"*"fd/"[0-9]* ]]'
"""True before the command that starts the text of a run, and before others of the agent's."""
SETTINGS = {
    "by its text": """shopt -s extdebug; trap '[[ $BASH_COMMAND != *"echo third"* ]]' DEBUG""",
    "status 2": """shopt -s extdebug; trap '[[ $BASH_COMMAND != *"echo third"* ]] || (exit 2)' DEBUG""",
    "functrace": """set -T; shopt -s extdebug; trap '[[ $BASH_COMMAND != *"echo third"* ]]' DEBUG""",
    "eval": """shopt -s extdebug; trap '[[ $BASH_COMMAND != *"builtin eval"* ]]' DEBUG""",
    "returning": """set -T; trap '[[ $BASH_COMMAND == *"builtin eval"* ]] && return 0' DEBUG""",
    "every third": "n=0; shopt -s extdebug; trap '(( n++ % 3 ))' DEBUG",
    "every seventh": "n=0; shopt -s extdebug; trap '(( n++ % 7 ))' DEBUG",
    "of errors": "set -E; trap 'return 1' ERR; false",
    "set by a prompt": """PROMPT_COMMAND='shopt -s extdebug; trap "[[ \\$BASH_COMMAND != *eval* ]]" DEBUG'""",
    "a function": """builtin() { [ "$1" = eval ] || command builtin "$@"; }""",
    "a read-only function": """builtin() { [ "$1" = eval ] || command builtin "$@"; }; readonly -f builtin""",
    "disabled": "enable -n eval",
    "POSIX mode": "enable -n eval; set -o posix; eval() { :; }",
    "ending": f"set -T; trap '{AT_START} && exit 0' DEBUG",
    "replacing": f"set -T; trap '{AT_START} && exec true' DEBUG",
    "interrupting": """set -T; trap '[[ $BASH_COMMAND == *"builtin eval"* ]] && kill -INT $$' DEBUG""",
    "disabling": f"set -T; trap '{AT_START} && enable -n builtin' DEBUG",
}


@pytest.mark.parametrize("how", SETTINGS)
async def test_a_command_that_is_skipped_is_no_success(how: str, tmp_path: Path) -> None:
    """It runs, or fails with ``shell_lost``; only the command of the user's that a trap refuses may be left out."""
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run(SETTINGS[how], timeout_s=60)
        for number in range(3):
            mark = tmp_path / str(number)
            outcome = await shell.run(f"echo first; echo {number} >{mark}\necho second\necho third; (exit 4)", timeout_s=60)
            if "error" in outcome.result:
                assert outcome.result["error"]["code"] == "shell_lost", outcome
                break
            assert outcome.stdout or mark.exists(), (how, number, outcome)
            assert outcome.exit_code or how.startswith("every"), (how, number, outcome)


async def test_only_what_a_trap_refuses_is_left_out() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run(SETTINGS["by its text"], timeout_s=60)
        outcome = await shell.run("echo first\necho third; echo fourth; (exit 4)", timeout_s=60)
        assert (outcome.exit_code, outcome.stdout) == (4, b"first\nfourth\n"), outcome
        assert not outcome.result["shell"]["restarted"]
        assert (await shell.run("", timeout_s=60)).exit_code == 0
        assert (await shell.run("return 3", timeout_s=60)).exit_code == 3


async def test_a_trap_on_errors_does_not_see_the_status_that_is_passed_on() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("set -E; trap 'echo failed' ERR; (exit 3)")
        assert (await shell.run("echo $?")).stdout == b"3\n"
