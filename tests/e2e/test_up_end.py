"""The end of the runner: by a signal, by a second one, by ``kill -9`` or with its parent. Nothing is left behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from holdfast import SandboxClient
from holdfast_server import embed, subreaper
from holdfast_server.embed import free_port
from holdfast_server.layout import TOP

from tests.bench.memory import in_pid_namespace
from tests.e2e.runner import DEADLINE_S, SLEEPER, Run, up
from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.stack import is_alive, processes_of, read_pid
from tests.support.until import until


def test_processes_are_stopped_in_reverse_order(tmp_path: Path) -> None:
    traps = "".join(f"{name}: sh -c 'trap \"exit 0\" TERM; echo up; sleep 600 & wait'\n" for name in ("one", "two", "three"))
    with up(tmp_path, traps) as run:
        for name in ("one", "two", "three"):
            run.wait_text(f"{name:<5} | up")
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=DEADLINE_S) == 0
        ends = [line.split()[0] for line in run.text().splitlines() if "| ended" in line]
        assert ends == ["three", "two", "one"]


def test_a_process_that_ignores_sigterm_is_killed_and_the_exit_status_is_1(tmp_path: Path) -> None:
    stubborn = "a: sh -c 'trap \"\" TERM; echo up; while :; do sleep 600; done'\n"
    with up(tmp_path, stubborn, "--stop-grace", "0.2") as run:
        run.wait_text("a | up")
        run.process.terminate()
        assert run.process.wait(timeout=DEADLINE_S) == 1
        assert "a | does not end: killed" in run.text()


def test_a_second_signal_ends_the_grace_period(tmp_path: Path) -> None:
    stubborn = "a: sh -c 'trap \"\" TERM; echo up; while :; do sleep 600; done'\n"
    with up(tmp_path, stubborn, "--stop-grace", "600") as run:
        run.wait_text("a | up")
        run.process.terminate()
        run.wait_text("up: stopping")
        until(lambda: _ended_after_another_signal(run.process), deadline_s=DEADLINE_S, what="the runner to end at once")
        assert run.process.returncode == 1


@pytest.mark.parametrize("stopped", ["subreaper", "supervisor"])
def test_a_stopped_runner_goes_on_when_it_is_continued(tmp_path: Path, stopped: str) -> None:
    """As by Ctrl-Z and fg, while it waits for a signal for less time than it is stopped."""
    with up(tmp_path, f"a: {SLEEPER}\nb: sh -c 'exit 3'\n", "--with-parent") as run:
        run.wait_text("a | up")
        a = run.pid("a")
        supervisor = int(Path(f"/proc/{a}/stat").read_bytes().rpartition(b")")[2].split()[1])
        pid = run.process.pid if stopped == "subreaper" else supervisor
        run.wait_text("b | died")
        os.kill(pid, signal.SIGSTOP)
        continues_at = time.monotonic() + 2.0
        until(lambda: time.monotonic() > continues_at, deadline_s=DEADLINE_S, what="two seconds to pass")
        seen = run.text().count("b | died")
        os.kill(pid, signal.SIGCONT)
        until(lambda: run.text().count("b | died") > seen or "stopping" in run.text(), deadline_s=DEADLINE_S, what="b to start again")
        assert "stopping" not in run.text()
        assert run.process.poll() is None
        assert run.pid("a") == a


def _ended_after_another_signal(process: subprocess.Popen[bytes]) -> bool:
    """Send the signal again and return whether the runner has ended; signals right after the first count as the first."""
    process.terminate()
    return process.poll() is not None


def test_daemons_that_left_their_session_end_with_the_stack(tmp_path: Path) -> None:
    with up(tmp_path, "a: sh -c 'setsid sh -c \"echo away; exec sleep 600\" & exec sleep 600'\n") as run:
        run.wait_text("a | away")
        stray = [pid for pid in processes_of(run.data) if os.getsid(pid) == pid]
        assert len(stray) >= 2
    assert not any(is_alive(pid) for pid in stray)


@pytest.mark.parametrize("victim", ["subreaper", "supervisor", "both"])
def test_kill_9_of_the_runner_leaves_nothing(tmp_path: Path, victim: str) -> None:
    with up(tmp_path, f"a: sh -c 'setsid sleep 600 & echo up; exec sleep 600'\nb: {SLEEPER}\n") as run:
        run.wait_text("a | up")
        run.wait_text("b | up")
        status = Path(f"/proc/{run.pid('b')}/stat").read_bytes().rpartition(b")")[2].split()
        supervisor = int(status[1])
        assert supervisor != run.process.pid
        victims = {"subreaper": [run.process.pid], "supervisor": [supervisor], "both": [run.process.pid, supervisor]}[victim]
        members = [run.pid("a"), run.pid("b")]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, members)), deadline_s=DEADLINE_S, what="the members to end")
        if victim == "both":  # no process is left that looks for hidden ones: their end is promised only if one of the two survives
            for pid in processes_of(run.data):
                os.kill(pid, signal.SIGKILL)
        run.wait_nothing_left()


def test_an_interrupt_before_the_first_process_ends_the_runner_quietly(tmp_path: Path) -> None:
    def interrupted() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)  # pending until the server unblocks it

    command = [sys.executable, "-m", "holdfast.cli", "up", "--data", str(tmp_path / "data"), "--port", str(free_port())]
    result = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=DEADLINE_S, preexec_fn=interrupted)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_make_alone_ends_the_stack(tmp_path: Path, number: signal.Signals) -> None:
    """As with `kill -INT` of make, which does not pass the signal on and waits."""
    (tmp_path / "Procfile").write_text(f"a: {SLEEPER}\n")
    command = shlex.join([sys.executable, "-m", "holdfast_server", "--with-parent", "--no-ready", f"--procfile={tmp_path}/Procfile"])
    (tmp_path / "Makefile").write_text(f"up:\n\t@exec {command}\n")
    environment = {**os.environ, "HOLDFAST_DATA": str(tmp_path / "data"), "PORT": str(free_port())}
    output = tmp_path / "output"
    with output.open("wb") as out:
        make = subprocess.Popen(
            ["make", "-f", tmp_path / "Makefile"],
            cwd=TOP,
            env=environment,
            stdout=out,
            stderr=out,
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509
        )
    run = Run(make, tmp_path / "data", output)
    try:
        run.wait_text("a | up")
        make.send_signal(number)
        make.wait(timeout=DEADLINE_S)
    finally:
        make.kill()
        run.wait_nothing_left()
    assert "all processes have ended" in run.text()
    assert "killed" not in run.text()


def test_a_parent_that_is_no_make_may_block_signals(tmp_path: Path) -> None:
    """As every Python process does while it forks."""
    blocked = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import signal, time; signal.pthread_sigmask(0, [{signal.SIGHUP:d}]); print(1, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert blocked.stdout is not None
        assert blocked.stdout.readline() == b"1\n"
        assert not subreaper._is_ending(blocked.pid)
    finally:
        blocked.kill()
        blocked.communicate()


@requires("namespaces", "redis")
@pytest.mark.parametrize("victim", ["subreaper", "supervisor"])
def test_kill_9_of_the_runner_ends_sandboxes_too(tmp_path: Path, victim: str) -> None:
    with embed.running_stack(tmp_path / "data") as own, SandboxClient(own.url, own.key) as client:
        sandbox = client.create_sandbox("host")
        shell = sandbox.shell()
        inside = shell.run("setsid sleep 600 & readlink /proc/self/ns/pid").stdout.strip()
        assert in_pid_namespace(inside)
        gateway = read_pid(own.data / "run" / "gateway.pid")
        supervisor = int(Path(f"/proc/{gateway}/stat").read_bytes().rpartition(b")")[2].split()[1])
        os.kill(own.runner.pid if victim == "subreaper" else supervisor, signal.SIGKILL)
        until(lambda: not in_pid_namespace(inside), deadline_s=DEADLINE_S, what="the sandbox to end")
        until(lambda: not processes_of(own.data), deadline_s=DEADLINE_S, what="the stack to end")
        assert not any(census(own.data).values()), census(own.data)
