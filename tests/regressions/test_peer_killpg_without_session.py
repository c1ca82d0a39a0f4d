"""In another released project, `killpg(getpgid(child))` on a child without a session of its own kills the server that started it.

No public issue; found by reading its code (reliability.md, last lines). Here: every command leads a session of its own, and neither our
signals nor those a command sends to its own group, or to everyone, reach the agent, a neighbouring command or the shell.
"""

from __future__ import annotations

import pytest
from holdfast import Sandbox

from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash")]


def test_every_command_leads_a_session(sandbox: Sandbox) -> None:
    script = "import os; print(os.getpid() == os.getsid(0) == os.getpgid(0), os.getsid(1) == os.getsid(0))"
    assert sandbox.exec(["python3", "-c", script]).stdout == "True False\n"
    with sandbox.shell() as shell:
        assert shell.run("python3 -c 'import os; print(os.getsid(0) == os.getsid(1))'").stdout == "False\n"
        assert shell.run(f"test $(cut -d' ' -f6 /proc/$$/stat) = {shell.pid} && echo own").stdout == "own\n"
    with sandbox.terminal(["python3", "-c", script]) as terminal:
        assert terminal.wait().stdout.strip() == "True False"


@pytest.mark.parametrize("signal", ["INT", "TERM", "KILL", "HUP"])
def test_our_signals_reach_only_the_command(sandbox: Sandbox, signal: str) -> None:
    with sandbox.shell() as shell, sandbox.start("sleep 297") as bystander:
        shell.run("sleep 296 & J=$!")
        for _ in range(5):
            with sandbox.start("sleep 300 & sleep 300") as process:
                process.signal(signal)
                assert process.wait(timeout=60).exit_code != 0
        assert shell.run("kill -0 $J && echo lives").stdout == "lives\n"
        bystander.terminate()
        assert bystander.wait().signal == "TERM", "it ran until then"


@pytest.mark.parametrize("script", ["kill 0", "kill -9 0", "kill -INT 0; sleep 5", "trap '' TERM; kill 0; kill -KILL 0"])
def test_a_command_that_kills_its_own_group_kills_only_itself(sandbox: Sandbox, script: str) -> None:
    with sandbox.start("sleep 297") as bystander, sandbox.shell() as shell:
        shell.run("X=1")
        result = sandbox.exec(script, timeout=60)
        assert result.signal is not None
        assert not result.timed_out
        assert shell.run("echo $X").stdout == "1\n"
        bystander.terminate()
        assert bystander.wait().signal == "TERM"


def test_a_command_that_kills_everyone_does_not_kill_the_agent(sandbox: Sandbox) -> None:
    began = sandbox.exec("cut -d' ' -f22 /proc/1/stat").stdout
    result = sandbox.exec("kill -9 -1; kill -9 1; kill -9 $$", timeout=60)
    assert result.exit_code == 137
    assert sandbox.exec("cut -d' ' -f22 /proc/1/stat").stdout == began
    with sandbox.shell() as shell:
        shell.run("X=kept; cd /usr")
        shell.run("kill -9 -1; kill -9 0", timeout=60)
        assert shell.run("echo $X; pwd", timeout=60).stdout == "kept\n/usr\n"
