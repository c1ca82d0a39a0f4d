"""The command line for users who know docker: commands without `--`, a terminal, signals, copies into directories."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from holdfast import Sandbox, SandboxClient
from holdfast.cli.app import parse

from tests.support.requires import requires
from tests.support.until import until

needs_stack = requires("namespaces", "redis")


@pytest.mark.parametrize(
    ("typed", "options", "command"),
    [
        ("exec sb ls -la /", {"sandbox": "sb"}, "ls -la /"),
        ("exec sb ls -- -x", {"sandbox": "sb"}, "ls -- -x"),
        ("exec sb -- -x", {"sandbox": "sb"}, "-x"),
        ("exec -it sb bash -c x", {"stdin": True, "tty": True, "c": None}, "bash -c x"),
        (
            "exec -e A=1 --cwd /tmp -u root --timeout 5 sb env -i",
            {"env": ["A=1"], "workdir": None, "cwd": "/tmp", "user": "root", "timeout": 5.0},
            "env -i",
        ),
        ("exec sb -w /tmp --json cat -w", {"cwd": "/tmp", "json": True}, "cat -w"),
        ("exec sb -iw /tmp -eA=1 --cwd=/x cat", {"stdin": True, "env": ["A=1"], "cwd": "/x"}, "cat"),
        ("exec sb cat --json", {"json": False}, "cat --json"),
        ("exec sb -c true", {"c": "true"}, None),
        ("exec sb", {"sandbox": "sb"}, None),
        ("run --entrypoint cat image -n file", {"entrypoint": "cat", "image": "image"}, "-n file"),
        ("run image --entrypoint cat -n file", {"entrypoint": "cat"}, "-n file"),
    ],
)
def test_options_end_at_the_command_without_dashes(typed: str, options: dict[str, Any], command: str | None) -> None:
    found = parse(typed.split())
    assert {name: getattr(found, name, None) for name in options} == options
    assert found.argv == (None if command is None else command.split())


def cli(environment: dict[str, str], *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **options)


def test_version_and_help_need_no_service() -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    assert re.fullmatch(r"holdfast \S+\n", cli(bare, "--version").stdout)
    for words in (["version", "--json"], ["--json", "version"], ["--json", "--version"]):
        assert f"holdfast {json.loads(cli(bare, *words).stdout)['version']}\n" == cli(bare, "--version").stdout
    assert "exec SANDBOX" in cli(bare, "help").stdout
    assert "--timeout" in cli(bare, "help", "exec").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--env-file", "binary"], "binary is not a file of variables"),
        (["--env-file", "wrong"], "a line of wrong must be written NAME=VALUE, not '=x'"),
        (["--env-file", "absent"], "a line of absent names the variable 'NOT_SET_HERE'"),
        (["--env-file", "nothing"], "No such file or directory: nothing"),
        (["--env-file", "."], "Is a directory: ."),
        (["-e", "NOT_SET_HERE"], "--env names the variable 'NOT_SET_HERE', which is not set here"),
        (["-e", "=x"], "--env must be written NAME=VALUE, not '=x'"),
        (["-e", ""], "--env must be written NAME=VALUE, not ''"),
    ],
)
def test_errors_name_variables_that_cannot_be_read(tmp_path: Any, words: list[str], expected: str) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "wrong").write_text("A=1\n=x\n")
    (tmp_path / "absent").write_text("NOT_SET_HERE\n")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "NOT_SET"))}
    done = cli(bare, "exec", *words, "sb", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def environment(stack: Any) -> dict[str, str]:
    return dict(stack.environment())


@pytest.fixture(scope="module")
def sandbox(stack: Any) -> Iterator[Sandbox]:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host") as sandbox:
        yield sandbox


@needs_stack
def test_exec_ls_and_cp_as_docker_users_type_them(environment: dict[str, str], sandbox: Sandbox, tmp_path: Any) -> None:
    done = cli(environment, "exec", "-e", "A=b", sandbox.id, "sh", "-c", "echo $A; exit 3")
    assert (done.returncode, done.stdout) == (3, "b\n")
    assert sandbox.id in cli(environment, "ls", "-q").stdout
    (tmp_path / "file").write_text("x")
    assert cli(environment, "cp", str(tmp_path / "file"), f"{sandbox.id}:/tmp").returncode == 0
    assert cli(environment, "cp", "-r", str(tmp_path), f"{sandbox.id}:/tmp/tree").returncode == 0
    assert cli(environment, "exec", sandbox.id, "cat", "/tmp/file", "/tmp/tree/file").stdout == "xx"
    assert "either" in cli(environment, "exec", sandbox.id, "-c", "true", "more").stderr


@needs_stack
def test_a_command_on_a_terminal(environment: dict[str, str], sandbox: Sandbox) -> None:
    master, slave = pty.openpty()
    words = [sys.executable, "-m", "holdfast.cli", "exec", "-it", sandbox.id, "sh", "-c", "test -t 0 && test -t 1 && tty; exit 6"]
    with subprocess.Popen(words, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as process:
        assert process.wait(60) == 6
    assert b"/dev/pts/" in os.read(master, 4096)
    os.close(master)
    os.close(slave)
    done = cli(environment, "exec", "-t", "--json", sandbox.id, "-c", "exit 4", stdin=subprocess.DEVNULL)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (4, 4)
    assert cli(environment, "exec", "-t", "--timeout", "3", sandbox.id, "true").returncode == 2


@needs_stack
@pytest.mark.parametrize("how", ["exec", "json", "shell", "input", "thread"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_client_ends_its_remote_command(
    environment: dict[str, str], sandbox: Sandbox, how: str, number: signal.Signals
) -> None:
    mark = f"{12345 + number}.{len(how)}"
    exec_ = [sandbox.id, "sleep", mark]
    words = {"json": ["exec", "--json", *exec_], "shell": ["shell", sandbox.id], "input": ["exec", "-i", *exec_]}.get(how, ["exec", *exec_])
    keys = subprocess.PIPE if how in ("shell", "input") else subprocess.DEVNULL
    default_signal = f"--default-signal={number.name.removeprefix('SIG')}"  # nohup ignores SIGHUP, also in children
    command = ["env", default_signal, sys.executable, "-m", "holdfast.cli", *words]
    with subprocess.Popen(command, env=environment, stdin=keys, stdout=subprocess.DEVNULL) as process:
        if process.stdin is not None:
            process.stdin.write(f"sleep {mark}\n".encode())
            process.stdin.flush()
        until(lambda: sandbox.exec(["pgrep", "-xf", f"sleep {mark}"]).ok, deadline_s=60, what="the command to run")
        if how == "thread":  # the system may give it to any thread
            others = [int(thread) for thread in os.listdir(f"/proc/{process.pid}/task") if int(thread) != process.pid]
            assert not ctypes.CDLL(None).tgkill(process.pid, others[-1], number)
        else:
            process.send_signal(number)
        assert process.wait(60) == 128 + number
    until(lambda: not sandbox.exec(["pgrep", "-xf", f"sleep {mark}"]).ok, deadline_s=60, what="the command to end")


@needs_stack
def test_the_first_interrupt_is_sent_to_the_command(environment: dict[str, str], sandbox: Sandbox) -> None:
    script = "trap 'echo tidied; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    words = [sys.executable, "-m", "holdfast.cli", "exec", sandbox.id, "-c", script]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b"tidied\n"
        assert process.wait(60) == 9
    script = "trap '' INT; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen([*words[:-1], script], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: interrupted(process), deadline_s=60, what="the client to end")
        assert process.wait(60) == 130


def interrupted(process: subprocess.Popen[bytes]) -> bool:
    """Interrupt it once more and return whether it ends soon; an interrupt during its exit would change its exit status."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(6)
    except subprocess.TimeoutExpired:
        return False
    return True


def shell(environment: dict[str, str], line: str) -> subprocess.CompletedProcess[str]:
    words = line.replace("holdfast", f"{sys.executable} -m holdfast.cli", 1)
    return subprocess.run(["bash", "-c", words], env=environment, capture_output=True, text=True, timeout=120)


@needs_stack
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("holdfast exec -i SB cat <&-", 0),
        ("holdfast exec SB echo hi >&-", 0),
        ("holdfast exec SB echo hi 2>&-", 0),
        ("holdfast list >&- 2>&-", 0),
        ("holdfast list >/dev/full", 2),
        ("PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LC_ALL=C holdfast exec SB echo é", 0),
        ("PYTHONIOENCODING=ascii holdfast exec SB --json echo é", 0),
        ("PYTHONIOENCODING=ascii holdfast exec é true", 2),
        ("holdfast cp '' SB:/tmp/all", 2),
        ("holdfast cp SB:/etc/hostname ''", 2),
        ("holdfast cp SB:/etc/hostname /proc/none", 2),
    ],
)
def test_closed_streams_other_encodings_and_bad_paths_cause_no_traceback(
    environment: dict[str, str], sandbox: Sandbox, line: str, status: int
) -> None:
    done = shell(environment, line.replace("SB", sandbox.id))
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert ".part" not in done.stderr
    if line.endswith("echo é"):
        assert (json.loads(done.stdout)["stdout"] if "--json" in line else done.stdout) == "é\n"


@needs_stack
def test_local_failures_are_reported_as_json_with_json(environment: dict[str, str], sandbox: Sandbox) -> None:
    done = cli(environment, "cp", "--json", "/no/such", f"{sandbox.id}:/tmp/x")
    assert done.returncode == 2
    assert "/no/such" in json.loads(done.stderr)["error"]["message"]
