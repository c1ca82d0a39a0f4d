"""Decepticon #340: the end of a command in a living shell was detected in its terminal's text.

The thread of #340 itself could not be found again. According to the project's #668 and #512, its shell counts prompt markers of
the form `[NAME:status:directory]` on a tmux screen, so a second prompt, an echo of the input or a marker in the output ends the wrong
command, and slow commands returned only their own text. Here: whatever a command prints, however slowly, and whatever it does to the
prompt, the output and the status are its own.
"""

from __future__ import annotations

import pytest
from holdfast import Sandbox

from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash")]

MARKERS = [
    "[DCPTN:0:/workspace]",
    "__END__0",
    "EXIT_CODE:0",
    "$ ",
    "bash-5.2# ",
    "\\033]133;D;0\\007",
    "\\004",
    "\\000",
]


@pytest.mark.parametrize("kind", ["bash", "sh"])
def test_no_text_ends_a_command(sandbox: Sandbox, kind: str) -> None:
    with sandbox.shell(shell=kind) as shell:
        for marker in MARKERS:
            result = shell.run(f"printf '{marker}\\n'; sleep 0.02; echo after; (exit 6)")
            assert result.exit_code == 6
            assert result.stdout_bytes == marker.encode().decode("unicode_escape").encode() + b"\nafter\n"


@pytest.mark.parametrize("kind", ["bash", "sh"])
def test_printing_how_the_shell_is_driven_ends_nothing(sandbox: Sandbox, kind: str) -> None:
    """The output is all that the shell knows of how it is driven: descriptors, functions, traps, its command line."""
    with sandbox.shell(shell=kind) as shell:
        result = shell.run("set; trap; cat /proc/$$/cmdline | tr '\\0' ' '; echo end; (exit 3)")
        assert result.exit_code == 3
        assert result.stdout.endswith("end\n")
        again = shell.run("cat <<'END'\n" + result.stdout.replace("\0", "") + "\nEND\necho really", timeout=60)
        assert again.exit_code == 0
        assert again.stdout.endswith("really\n")


@pytest.mark.parametrize("kind", ["bash", "sh"])
def test_slow_and_fast_commands_alternate_without_mixing(sandbox: Sandbox, kind: str) -> None:
    with sandbox.shell(shell=kind) as shell:
        shell.run("PS1='[DCPTN:$?:$PWD] '; export HTTP_PROXY=http://x; PROMPT_COMMAND='echo prompt'")
        for number in range(20):
            slow = shell.run(f"sleep 0.02; echo slow {number}; (exit {number})")
            fast = shell.run(f"echo fast {number}")
            assert (slow.stdout, slow.stderr, slow.exit_code) == (f"slow {number}\n", "", number)
            assert (fast.stdout, fast.stderr, fast.exit_code) == (f"fast {number}\n", "", 0)


def test_commands_sent_at_once_keep_their_own_output(sandbox: Sandbox) -> None:
    import threading

    with sandbox.shell() as shell:
        results: dict[int, str] = {}

        def run(number: int) -> None:
            results[number] = shell.run(f"echo begin {number}; sleep 0.01; echo end {number}").stdout

        threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert results == {number: f"begin {number}\nend {number}\n" for number in range(12)}
