"""A living shell in cases where it could differ from a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from holdfast import Sandbox, Shell


@pytest.fixture(params=["bash", "sh"])
def shell(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Shell]:
    with sandbox.shell(shell=request.param) as shell:
        yield shell


def test_the_output_of_an_exit_trap_belongs_to_the_command_that_ends_the_shell(shell: Shell) -> None:
    result = shell.run("trap 'echo tidied up' EXIT; echo work; exit 5")
    assert (result.exit_code, result.stdout, result.shell_restarted) == (5, "work\ntidied up\n", True)
    assert shell.run("echo on").stdout == "on\n"
    shell.run("trap 'echo later' EXIT")
    assert shell.run("true").stdout == ""
    assert shell.run("exit 6").stdout == "later\n"


def test_a_result_names_what_a_rebuilt_shell_has_lost(shell: Shell) -> None:
    shell.run("cd /usr; X=5; bad() { case $1 in (esac) :;; esac; }; PWD=/nonsense")
    result = shell.run("exit 3")
    lost = ("functions",) if shell.kind == "sh" else ("function bad",)
    assert (result.shell_restarted, result.lost, result.cwd) == (True, lost, "/usr")
    after = shell.run("echo $X")
    assert (after.stdout, after.shell_restarted, after.lost) == ("5\n", False, ())


def test_prompts_are_not_part_of_the_output(shell: Shell) -> None:
    shell.run("PROMPT_COMMAND='echo prompted'; PS1=prompt")
    assert shell.run("echo a").stdout == "a\n"
    assert shell.run("echo b; exit 3").stdout == "b\n"


def test_history_contains_no_commands_of_the_driver(sandbox: Sandbox) -> None:
    with sandbox.shell(shell="bash") as shell:
        assert shell.run("history; fc -l 2>&1").stdout == ""
        shell.run("exit 1")
        assert shell.run("history").stdout == ""


def test_an_unterminated_substitution_does_not_affect_later_commands(sandbox: Sandbox) -> None:
    """Bash 5.2 sometimes crashes after one, even in the middle of the next command."""
    for number in range(6):
        with sandbox.shell() as shell:
            shell.run(f"X={number}")
            for broken in ('echo "$(ls', "echo $(cat <<E\nabc\n)", "diff <(ls"):
                assert "unexpected EOF" in shell.run(broken).stderr
                for _ in range(2):
                    result = shell.run("echo $X")
                    assert (result.exit_code, result.stdout) == (0, f"{number}\n")
