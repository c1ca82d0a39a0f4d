"""opencode #47350: the shell tool never returned when a command left a background process that held its stdio.

It waited for the end of the pipes, not of the command; 81 minutes in one report, because the time-out killed the process group and the
holder had left it by `setsid`. The holder need not write anything. Here: every shape from that thread and from #22012; each returns at
once, in a shell and as a command.
"""

from __future__ import annotations

import time

import pytest
from holdfast import Sandbox

from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash")]

LIMIT_S = 15.0
"""Far below the 300 s of the holders and the 30 s of the time-out: the result does not wait for either."""
HOLDERS = {
    "silent": "sleep 300 &",
    "stderr alone": "sleep 300 </dev/null >/dev/null &",
    "nothing held": "sleep 300 </dev/null >/dev/null 2>&1 &",
    "left its group": "setsid sleep 300 &",
    "disowned": "sleep 300 & disown 2>/dev/null",
    "nohup": "nohup sleep 300 &",
    "writes on and on": "(while :; do echo noise; sleep 0.01; done) &",
    "writes on and on, elsewhere": "setsid sh -c 'while :; do echo noise >&2; sleep 0.01; done' &",
    "double fork": "(setsid sh -c 'sleep 300 & exit' &)",
    "bash -c": "bash -c 'sleep 300 &'",
    "coprocess": "bash -c 'coproc sleep 300'",
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_command_returns_when_it_has_ended(sandbox: Sandbox, holder: str) -> None:
    script = f"{HOLDERS[holder]}\necho foreground done; (exit 3)"
    began = time.monotonic()
    result = sandbox.exec(script, timeout=30)
    assert time.monotonic() - began < LIMIT_S
    assert (result.exit_code, result.timed_out) == (3, False)
    assert "foreground done\n" in result.stdout
    with sandbox.shell() as shell:
        began = time.monotonic()
        result = shell.run(script, timeout=30)
        assert time.monotonic() - began < LIMIT_S
        assert (result.exit_code, result.timed_out) == (3, False)
        assert "foreground done\n" in result.stdout
        began = time.monotonic()
        after = shell.run("echo after", timeout=30)
        assert time.monotonic() - began < LIMIT_S
        assert after.stdout == "after\n", "the noise of an earlier job is not this command's output"


@pytest.mark.parametrize("outlive", ["kill", "adopt"])
def test_outlive_decides_what_happens_to_the_holder(sandbox: Sandbox, outlive: str) -> None:
    result = sandbox.exec("sleep 298.25 & echo $!", outlive=outlive, timeout=30)  # type: ignore[arg-type]
    pid = result.stdout.strip()
    # not `kill -0`, which succeeds for a zombie, nor `cmdline`, which is empty while a process executes its program
    lives = sandbox.exec(f"test -d /proc/{pid} && ! grep -q '^State:.[ZX]' /proc/{pid}/status").exit_code == 0
    assert lives is (outlive == "adopt")
    sandbox.exec(["kill", pid])


def test_outlive_can_also_wait_for_the_holder(sandbox: Sandbox) -> None:
    result = sandbox.exec("(sleep 0.2; echo late) & echo soon", outlive="wait", timeout=30)
    assert result.stdout == "soon\nlate\n"
