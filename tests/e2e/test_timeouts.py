"""A time-out kills the process tree of its command and nothing else, checked inside the sandbox through the whole chain.

Daemons that left their session end with the command that started them; jobs of earlier commands, the shell and the agent continue. The
output written until the time-out is returned.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from holdfast import CommandResult, Sandbox, SandboxClient, Shell

from tests.support.requires import requires
from tests.support.until import until

pytestmark = [requires("namespaces", "redis", "bash")]

TIMEOUTS = 200
OOM_KILLS = 50
SHORT_S = 0.05

HOG = 'python3 -c \'import os; open("/proc/self/oom_score_adj", "w").write("1000"); x = bytearray(os.sysconf("SC_PAGE_SIZE") << 20)\''


@pytest.fixture
def shell(sandbox: Sandbox) -> Iterator[Shell]:
    with sandbox.shell(shell="bash") as shell:
        shell.run("true")  # a new shell's start counts towards the limit of its first command
        yield shell


def living(sandbox: Sandbox, needle: str) -> list[str]:
    """Processes of the sandbox whose command line holds ``needle``; zombies have none."""
    script = (
        "import os, sys\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: line = open(f'/proc/{pid}/cmdline').read()\n"
        "    except OSError: continue\n"
        "    if sys.argv[1] in line and int(pid) != os.getpid(): print(pid)\n"
    )
    return sandbox.exec(["python3", "-c", script, needle]).check().stdout.split()


def has_timed_out(result: CommandResult) -> None:
    assert result.timed_out, result
    assert result.exit_code == 124
    assert result.cause is not None
    assert (result.cause.fault, result.cause.reason) == ("workload", "timeout")


def unique_sleep() -> str:
    """A sleep with a unique argument."""
    return f"sleep 6{secrets.randbelow(10**8):08d}"


TREES = {
    "child": "{sleep}; true",
    "background child": "{sleep} & wait",
    "setsid": "setsid {sleep} & wait; {sleep}",
    "double fork": "(setsid sh -c '{sleep} & exit' &) ; {sleep}",
    "daemon without its environment": "env -i setsid -f /usr/bin/env -i sh -c '{sleep} & disown 2>/dev/null; exit'; {sleep}",
    "deaf to every signal": "trap '' TERM INT HUP QUIT; (trap '' TERM INT HUP QUIT; setsid {sleep}) & wait; {sleep}",
    "stopped": "{sleep} & kill -STOP $!; wait",
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("by", ["shell", "exec"])
def test_the_whole_process_tree_is_killed_even_if_it_hides(sandbox: Sandbox, shell: Shell, tree: str, by: str) -> None:
    sleep = unique_sleep()
    script = "echo before; " + TREES[tree].format(sleep=sleep)
    result = shell.run(script, timeout=2.0) if by == "shell" else sandbox.exec(script, timeout=2.0)
    has_timed_out(result)
    assert result.stdout == "before\n"
    assert living(sandbox, sleep.split()[1]) == []
    assert shell.run("echo on").stdout == "on\n"


def test_the_check_above_can_see_a_survivor(sandbox: Sandbox, shell: Shell) -> None:
    sleep = unique_sleep()
    shell.run(f"setsid {sleep} & B=$!")
    until(lambda: len(living(sandbox, sleep.split()[1])) == 1, deadline_s=60, what="the survivor to execute its program")
    shell.run("kill $B")


def test_jobs_of_earlier_commands_continue(sandbox: Sandbox, shell: Shell) -> None:
    job, daemon = unique_sleep(), unique_sleep()
    with sandbox.start(unique_sleep()) as bystander:
        shell.run(f"{job} & J=$!; setsid {daemon} & D=$!")
        for _ in range(5):
            has_timed_out(shell.run(f"{unique_sleep()} & sleep 60", timeout=SHORT_S))
            has_timed_out(sandbox.exec("setsid sleep 60 & sleep 60", timeout=SHORT_S))
        assert shell.run("kill -0 $J && kill -0 $D && echo both").stdout == "both\n"
        assert len(living(sandbox, job.split()[1])) == len(living(sandbox, daemon.split()[1])) == 1
        bystander.signal("TERM")
        assert bystander.wait().signal == "TERM", "it ran until the signal"
        shell.run("kill $J $D")


@pytest.mark.parametrize(
    "script",
    [
        "sleep 60; touch {marker}",
        "sleep 60 || touch {marker}",
        "for i in 1 2 3 4 5; do sleep 60; done; touch {marker}",
        "(sleep 60; touch {marker}); touch {marker}",
        "sh -c 'sleep 60; touch {marker}'; touch {marker}",
        "f() {{ sleep 60; touch {marker}; }}; f",
        "sleep 60 | cat; touch {marker}",
    ],
)
@pytest.mark.parametrize("kind", ["bash", "sh"])
def test_nothing_after_the_time_out_runs(sandbox: Sandbox, script: str, kind: str) -> None:
    """The running command is ended; later commands of the same script must not start."""
    marker = f"/tmp/after-{secrets.token_hex(8)}"
    with sandbox.shell(shell=kind) as shell:
        shell.run("true")  # a new shell's start counts towards the limit of its first command
        result = shell.run("echo begun; " + script.format(marker=marker), timeout=2.0)
        has_timed_out(result)
        assert result.stdout == "begun\n"
        assert not sandbox.files.exists(marker)
        assert shell.run("echo on").stdout == "on\n"


def test_output_until_the_time_out_is_returned(sandbox: Sandbox, shell: Shell) -> None:
    script = "head -c 3000000 /dev/zero; printf 'to err' >&2; sleep 60"
    for result in (shell.run(script, timeout=3.0), sandbox.exec(script, timeout=3.0)):
        has_timed_out(result)
        assert result.stdout_bytes == bytes(3_000_000)
        assert result.stderr == "to err"
        assert not result.truncated


def test_two_hundred_time_outs_leave_the_agent_and_the_shell_as_they_were(sandbox: Sandbox, shell: Shell) -> None:
    before = identity(sandbox)
    shell.run("K=kept")
    pid = shell.run("echo $$").stdout
    for number in range(TIMEOUTS):
        script = "setsid sleep 60 & sleep 60" if number % 2 else "while :; do :; done"
        has_timed_out(shell.run(script, timeout=0.01) if number % 4 else sandbox.exec(script, timeout=0.01))
    assert identity(sandbox) == before
    assert shell.run("echo $K $$").stdout == f"kept {pid}"
    assert living(sandbox, "sleep") == []


def identity(sandbox: Sandbox) -> tuple[str, str]:
    """The start time of the first process and the sandbox's incarnation: equal values mean the same first process."""
    began = sandbox.exec(["cut", "-d", " ", "-f", "22", "/proc/1/stat"]).check().stdout
    return began, sandbox.refresh().incarnation or ""


@requires("cgroups", "root")
def test_fifty_out_of_memory_kills_leave_the_agent_as_it_was(client: SandboxClient) -> None:
    with client.create_sandbox("host", memory="192Mi") as sandbox, sandbox.shell() as shell:
        before = identity(sandbox)
        shell.run("K=kept")
        for number in range(OOM_KILLS):
            result = shell.run(HOG) if number % 2 else sandbox.exec(HOG)
            assert result.exit_code == 137, result
            if not number % 2:
                assert result.signal == "KILL"
        assert identity(sandbox) == before
        assert shell.run("echo $K").stdout == "kept\n"


@requires("cgroups", "root")
def test_an_out_of_memory_kill_is_reported_as_cause(client: SandboxClient) -> None:
    with client.create_sandbox("host", memory="192Mi") as sandbox, sandbox.shell() as shell:
        assert sandbox.exec("kill -KILL $$").cause is None, "not every SIGKILL is an out-of-memory kill"
        for result in (sandbox.exec(HOG), shell.run(HOG)):
            assert result.exit_code == 137
            assert result.cause is not None, "the result has a cause"
            assert (result.cause.fault, result.cause.reason) == ("workload", "oom")


def test_a_command_that_ends_before_its_limit_has_not_timed_out(sandbox: Sandbox, shell: Shell) -> None:
    for result in (shell.run("echo quick", timeout=30), sandbox.exec("echo quick", timeout=30)):
        assert (result.exit_code, result.stdout, result.timed_out, result.cause) == (0, "quick\n", False, None)


def test_a_command_that_exits_with_124_has_not_timed_out(sandbox: Sandbox) -> None:
    result = sandbox.exec("exit 124", timeout=30)
    assert (result.exit_code, result.timed_out, result.cause) == (124, False, None)


def test_a_cancelled_process_ends_with_its_process_tree(sandbox: Sandbox) -> None:
    sleep = unique_sleep()
    with sandbox.start(f"setsid {sleep} & {sleep}"):
        until(lambda: len(living(sandbox, sleep.split()[1])) >= 2, deadline_s=60, what="the processes to start")
    until(lambda: living(sandbox, sleep.split()[1]) == [], deadline_s=60, what="the processes to end")
