"""The control text for a run in bash and in sh."""

from __future__ import annotations

import subprocess

import pytest

from session_agent.agent.shell.driver import BashDialect, ShDialect


def test_only_bash_tags_the_processes_of_a_run_itself() -> None:
    bash, sh = BashDialect("/bin/bash"), ShDialect("/bin/sh")
    for status in (0, 7):
        with_tag, without = (bash.text(1, b"true", stdin=None, last_status=status, tag=tag) for tag in (5, None))
        assert with_tag == b"\\builtin ulimit -SR 5\n" + without
        with_tag, without = (sh.text(1, b"true", stdin=None, last_status=status, tag=tag) for tag in (5, None))
        assert with_tag == without


@pytest.mark.parametrize("number", [5, 100_005])
def test_bash_accepts_the_tag(number: int) -> None:
    shown = subprocess.run(["bash", "-c", f"\\builtin ulimit -SR {number} && ulimit -SR"], capture_output=True, text=True, check=False)
    assert (shown.stdout, shown.stderr) == (f"{number}\n", "")
