"""Commands that users of docker know, on the real stack: run, logs, import, rm, ps, stop, and shells on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast import SandboxClient

from tests.node.ociimages import oci_layout
from tests.package.roots import debian
from tests.support.requires import requires
from tests.support.stack import running_stack
from tests.support.until import until

needs_stack = requires("namespaces", "redis")


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def holdfast(stack: Any) -> Run:
    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.cli", *words]
        more = {"stdin": subprocess.DEVNULL, "env": stack.environment()} | options
        return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)

    return run


@pytest.fixture
def created(holdfast: Run) -> Iterator[list[str]]:
    names: list[str] = []
    yield names
    holdfast("rm", "-f", *names, "sb-none")


@needs_stack
def test_run(holdfast: Run, created: list[str], stack: Any, tmp_path: Path) -> None:
    created.append("words-run")
    done = holdfast(
        "run", "--name", "words-run", "-m", "512m", "--cpus", "1", "-e", "A=b", "-w", "/tmp", "host", "sh", "-c", "echo $A; pwd; exit 3"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "b\n/tmp\n", "")
    assert holdfast("logs", "words-run").stdout == "b\n/tmp\n"
    record = json.loads(holdfast("inspect", "words-run").stdout)[0]
    assert (record["sandbox_id"], record["memory"], record["status"]) == ("words-run", "512Mi", "ready")
    for words, status, expected in (
        (["true"], 0, ""),
        (["no-such-thing"], 127, "not found"),
        (["/etc"], 126, "/etc"),
        (["echo hi"], 127, "-c 'echo hi'"),
        (["-c", "kill -9 $$"], 137, ""),
    ):
        done = holdfast("run", "--rm", "-l", "words=rm", "host", *words)
        assert (done.returncode, expected in done.stderr) == (status, True), done.stderr
    assert holdfast("run", "--rm", "-i", "-l", "words=rm", "host", "cat", stdin=None, input="in").stdout == "in"
    (tmp_path / "env").write_text("# comment\n\nFILE=1\nHERE\n")
    environment = stack.environment() | {"HERE": "too"}
    done = holdfast("run", "--rm", "--env-file", str(tmp_path / "env"), "host", "sh", "-c", "echo $FILE $HERE", env=environment)
    assert done.stdout == "1 too\n"
    assert holdfast("ps", "-q", "-l", "words=rm").stdout == "", "--rm leaves no sandbox"
    done = holdfast("run", "--rm", "--entrypoint", "sh", "--ulimit", "nofile=99:100", "host", "--", "-c", "ulimit -n; ulimit -Hn")
    assert (done.returncode, done.stdout) == (0, "99\n100\n")
    done = holdfast("run", "--rm", "-w", "/new/place", "-l", "words=rm", "host", "pwd")
    assert (done.returncode, done.stdout) == (0, "/new/place\n"), "-w makes the directory, as in docker"
    done = holdfast("run", "--rm", "--entrypoint", "", "-l", "words=rm", "host", "echo", "none")
    assert (done.returncode, done.stdout) == (0, "none\n"), "an empty entrypoint is none, as in docker"
    for words in ([], ["-t"]):
        done = holdfast("run", "--rm", *words, "--entrypoint", "", "host")
        assert (done.returncode, "COMMAND is missing" in done.stderr) == (2, True), done.stderr
    no_service = stack.environment() | {"HOLDFAST_URL": "http://127.0.0.1:9"}
    assert holdfast("run", "--rm", "host", "true", env=no_service).returncode == 125
    no_command = holdfast("run", "host")
    assert (no_command.returncode, "holdfast run host COMMAND" in no_command.stderr) == (2, True)
    assert holdfast("run", "-w", "/tmp", "host").returncode == 2


@needs_stack
@requires("tun")
def test_a_kind_of_network_that_is_none_is_explained(holdfast: Run) -> None:
    done = holdfast("run", "--rm", "--network", "host", "-l", "words=rm", "alpine", "true")
    assert (done.returncode, "--network takes one of" in done.stderr) == (127, True), done.stderr


@pytest.fixture
def image(stack: Any, tmp_path: Path) -> str:
    layer = subprocess.run(["tar", "-C", debian(tmp_path / "root"), "-c", "."], capture_output=True, check=True).stdout
    config = {"Entrypoint": ["sh", "-c", "echo started $0; exit 4"], "Cmd": ["as said"]}
    with SandboxClient(stack.url, stack.key) as client:
        client.images.import_(oci_layout(tmp_path / "layout", [layer], config), "words-starts")
    return "words-starts"


@needs_stack
@requires("root")
def test_run_starts_the_entrypoint_of_the_image(holdfast: Run, created: list[str], image: str) -> None:
    shell = holdfast("run", "--rm", "-m", "256m", "--entrypoint", "sh", image, "-c", "echo $0 $1", "zero", "one")
    assert (shell.returncode, shell.stdout) == (0, "zero one\n"), shell.stderr
    done = holdfast("run", "--rm", image)
    assert (done.returncode, done.stdout, done.stderr) == (4, "started as said\n", "")
    created.append("words-image")
    assert holdfast("run", "-d", "--name", "words-image", image).stdout == "words-image\n"
    for _ in range(2):
        assert holdfast("logs", "-f", "words-image").stdout == "started as said\n"


@needs_stack
def test_import_from_standard_input(holdfast: Run, tmp_path: Path) -> None:
    root = debian(tmp_path / "root")
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as archive:
        assert holdfast("image", "import", "-", "from-stdin:1", stdin=archive.stdout).stdout == "from-stdin:1\n"
    assert archive.returncode == 0
    assert "from-stdin:1" in holdfast("images", "-q").stdout.split()
    assert holdfast("rmi", "from-stdin:1").returncode == 0


@needs_stack
def test_run_in_the_background(holdfast: Run, created: list[str]) -> None:
    created.append("words-back")
    script = "echo out; echo err >&2; head -c 300000 /dev/zero | tr '\\0' x; echo; until [ -e /tmp/go ]; do sleep 0.05; done; echo last"
    done = holdfast("run", "-d", "--name", "words-back", "host", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "words-back\n", "")
    until(lambda: holdfast("logs", "words-back").stdout.endswith("x\n"), deadline_s=60, what="all of the output")
    for _ in range(2):  # reading does not consume the output
        shown = holdfast("logs", "words-back")
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"out\n{'x' * 300000}\n", "err\n")
    with subprocess.Popen(["true"]):
        pass
    assert "sh" in holdfast("top", "words-back").stdout
    rows = json.loads(holdfast("stats", "--json", "words-back").stdout)
    assert rows[0]["sandbox"] == "words-back"
    assert rows[0]["processes"] >= 1
    assert rows[0]["memory_bytes"] > 0
    assert holdfast("exec", "words-back", "touch", "/tmp/go").returncode == 0
    assert holdfast("logs", "-f", "-n", "1", "words-back").stdout == "last\n"
    assert holdfast("logs", "words-back").stdout.endswith("x\nlast\n"), "also after the command has ended"
    started = holdfast("exec", "-d", "-e", "A=1", "words-back", "sh", "-c", "echo job $A")
    job = started.stdout.strip()
    assert holdfast("logs", "-f", "words-back", job).stdout == "job 1\n"
    assert json.loads(holdfast("logs", "-f", "--json", "words-back", job).stdout)["exit_code"] == 0
    failed = holdfast("exec", "-d", "words-back", "no-such-thing")
    assert (failed.returncode, "not found" in failed.stderr) == (127, True)
    unknown = holdfast("logs", "words-back", "never")
    assert (unknown.returncode, "exec -d" in unknown.stderr) == (125, True)
    created.append("words-empty")
    holdfast("create", "--name", "words-empty", "host")
    assert "no command that `run` started" in holdfast("logs", "words-empty").stderr
    created.append("words-gone")
    script = "until [ -e /tmp/go ]; do sleep 0.05; done"
    assert holdfast("run", "-d", "--rm", "--idle-timeout", "1", "--name", "words-gone", "host", "sh", "-c", script).returncode == 0
    assert holdfast("exec", "words-gone", "sleep", "3").returncode == 0  # three times the idle time-out
    assert holdfast("ps", "-q", "-f", "name=words-gone").stdout == "words-gone\n"
    assert holdfast("exec", "words-gone", "touch", "/tmp/go").returncode == 0
    until(lambda: holdfast("ps", "-q", "-f", "name=words-gone").stdout == "", deadline_s=60, what="the sandbox to be deleted")


@needs_stack
def test_interrupting_logs_does_not_end_the_command(holdfast: Run, created: list[str], stack: Any) -> None:
    created.append("words-follow")
    holdfast("run", "-d", "--name", "words-follow", "host", "sh", "-c", "echo ready; sleep 1000")
    command = [sys.executable, "-m", "holdfast.cli", "logs", "-f", "words-follow"]
    with subprocess.Popen(command, env=stack.environment(), stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"ready\n"
        following.terminate()
        assert following.wait(60) == 143
    assert "sleep 1000" in holdfast("top", "words-follow").stdout


@needs_stack
def test_removing(holdfast: Run, created: list[str]) -> None:
    ids = [holdfast("create", "host", "-l", f"words={group}").stdout.strip() for group in "xxy"]
    created += ids
    first, second, third = ids
    existing = holdfast("list", "-q").stdout.split()  # also sandboxes that other tests left on this stack
    prefix = next(first[:size] for size in range(4, 20) if sum(i.startswith(first[:size]) for i in existing) == 1)
    assert holdfast("exec", prefix, "hostname").stdout == f"{first}\n"
    assert holdfast("exec", prefix.removeprefix("sb-"), "hostname").stdout == f"{first}\n"
    assert json.loads(holdfast("inspect", prefix).stdout)[0]["sandbox_id"] == first
    too_short = holdfast("exec", "sb-", "true")
    assert (too_short.returncode, too_short.stderr.splitlines()[0]) == (125, "holdfast: there is no sandbox 'sb-'")
    assert holdfast("rm", prefix).stdout == f"{first}\n"
    assert holdfast("rm", prefix).returncode == 125
    assert holdfast("rm", "-l", "words=x").stdout == f"{second}\n"
    assert holdfast("ps", "-q", "--filter", "label=words=y").stdout == f"{third}\n"
    assert holdfast("stop", third[:-1]).stdout == f"{third}\n"
    assert holdfast("rm").returncode == 2
    assert holdfast("rm", "--all", "sb").returncode == 2


@needs_stack
def test_all_and_a_missing_image(tmp_path: Path) -> None:
    with running_stack(
        environment={"HOLDFAST_IMAGE_FALLBACK": ""}
    ) as stack:  # a stack of its own: other tests have sandboxes in the shared one

        def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "holdfast.cli", *words]
            return subprocess.run(command, env=stack.environment(), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

        ids = sorted(holdfast("create", "host").stdout.strip() for _ in range(3))
        assert sorted(holdfast("rm", "--all").stdout.split()) == ids
        assert holdfast("ps", "-q").stdout == ""
        assert holdfast("rm", "--all").returncode == 0
        missing = holdfast("run", "--rm", "no-such-image:1", "true")
        assert missing.returncode == 125
        assert "no-such-image:1" in missing.stderr.splitlines()[0]
        assert "holdfast image pull" in missing.stderr.splitlines()[1]
        assert "HOLDFAST_" not in missing.stderr


def on_terminal(stack: Any, keys: bytes, *words: str, early: bytes = b"") -> bytes:
    """Return what a terminal shows; ``keys`` are typed at the first prompt, ``early`` before the program runs."""
    master, slave = pty.openpty()
    os.write(master, early)
    command = [sys.executable, "-m", "holdfast.cli", *words]
    with subprocess.Popen(command, env=stack.environment(), stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as running:
        os.close(slave)
        seen = b""
        try:
            while data := os.read(master, 4096):
                if b"# " in data and keys:
                    os.write(master, keys)
                    keys = b""
                seen += data
        except OSError:  # how Linux reports the end of a terminal
            pass
        running.wait(60)
    os.close(master)
    return seen


@needs_stack
def test_shell_and_exec_bash_are_alike(stack: Any) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="256Mi") as sandbox:
        keys = b"shopt -q login_shell; echo login=$? $PWD $HOME $PATH $-; exit\r"
        ways = (["shell", sandbox.id], ["exec", "-it", sandbox.id, "bash"])
        shown = [on_terminal(stack, keys, *words).split(b"exit\r\n")[:-1] for words in ways]
        assert shown[0] == shown[1]
        assert b"login=1" in b"".join(shown[0])
        assert f"root@{sandbox.id}:".encode() in b"".join(shown[0])
        piped = "shopt -q login_shell; echo $?"
        for options, expected in ([], "1\n"), (["--login"], "0\n"):
            command = [sys.executable, "-m", "holdfast.cli", "shell", *options, sandbox.id]
            done = subprocess.run(command, env=stack.environment(), input=piped, capture_output=True, text=True, timeout=60)
            assert done.stdout == expected


@needs_stack
def test_keys_typed_before_the_prompt_are_not_lost(stack: Any) -> None:
    words = ["run", "--rm", "-it", "-m", "256m", "host", "bash", "--norc"]
    shown = on_terminal(stack, b"exit\r", *words, early=b"echo typed-$((40 + 2)); exit\n")
    assert b"typed-42" in shown


@needs_stack
def test_background_processes_of_exec_continue(holdfast: Run, stack: Any) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="256Mi") as sandbox:
        for way, mark in ([], "987.1"), (["--json"], "987.2"):
            assert holdfast("exec", *way, sandbox.id, "sh", "-c", f"nohup sleep {mark} >/dev/null 2>&1 & sleep 0.1").returncode == 0
            assert sandbox.exec(["ps", "-eo", "args"]).stdout.splitlines().count(f"sleep {mark}") == 1
