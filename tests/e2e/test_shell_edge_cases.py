"""A living shell where somebody who types at a terminal would be surprised."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from holdfast import Sandbox, Shell


@pytest.fixture(params=["bash", "sh"])
def shell(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Shell]:
    with sandbox.shell(shell=request.param) as shell:
        yield shell


def test_what_a_trap_on_exit_prints_is_output_of_the_command_that_ends_the_shell(shell: Shell) -> None:
    result = shell.run("trap 'echo tidied up' EXIT; echo work; exit 5")
    assert (result.exit_code, result.stdout, result.shell_restarted) == (5, "work\ntidied up\n", True)
    assert shell.run("echo on").stdout == "on\n"
    shell.run("trap 'echo later' EXIT")
    assert shell.run("true").stdout == ""
    assert shell.run("exit 6").stdout == "later\n"


def test_prompts_are_nobodys_output(shell: Shell) -> None:
    shell.run("PROMPT_COMMAND='echo prompted'; PS1=prompt")
    assert shell.run("echo a").stdout == "a\n"
    assert shell.run("echo b; exit 3").stdout == "b\n"


def test_history_holds_nothing_of_the_driver(sandbox: Sandbox) -> None:
    with sandbox.shell(shell="bash") as shell:
        assert shell.run("history; fc -l 2>&1").stdout == ""
        shell.run("exit 1")
        assert shell.run("history").stdout == ""


def test_a_substitution_without_its_end_costs_no_later_run(sandbox: Sandbox) -> None:
    """Bash 5.2 crashes after it, now and then in the middle of the next command."""
    for number in range(6):
        with sandbox.shell() as shell:
            shell.run(f"X={number}")
            for broken in ('echo "$(ls', "echo $(cat <<E\nabc\n)", "diff <(ls"):
                assert "unexpected EOF" in shell.run(broken).stderr
                for _ in range(2):
                    result = shell.run("echo $X")
                    assert (result.exit_code, result.stdout) == (0, f"{number}\n")
