"""The process runner: it restarts processes that die, stops them in reverse order, leaves nothing behind and reports errors.

Runs the real runner on small Procfiles; the stack fixture (tests/support/stack.py) runs it on the real Procfile.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from holdfast import HoldfastError, SandboxClient
from holdfast_server import embed, subreaper
from holdfast_server.__main__ import check_redis_url, read_settings
from holdfast_server.datadir import read_env
from holdfast_server.embed import free_port
from holdfast_server.layout import TOP
from holdfast_server.procfile import read_procfile

from tests.bench.memory import in_pid_namespace
from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.stack import Stack, is_alive, processes_of, read_pid, running_stack
from tests.support.until import until

_DEADLINE_S = 60.0
_SLEEPER = "sh -c 'echo up; exec sleep 600'"


@dataclass(slots=True)
class Run:
    process: subprocess.Popen[bytes]
    data: Path
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_text(self, needle: str, count: int = 1) -> None:
        until(lambda: self.text().count(needle) >= count, deadline_s=_DEADLINE_S, what=lambda: f"{needle!r} in:\n{self.text()}")

    def pid(self, name: str) -> int:
        path = self.data / "run" / f"{name}.pid"
        until(lambda: read_pid(path), deadline_s=_DEADLINE_S, what=f"{name} to start")
        return read_pid(path) or self.pid(name)

    def wait_nothing_left(self) -> None:
        until(lambda: not processes_of(self.data), deadline_s=_DEADLINE_S, what=lambda: f"{processes_of(self.data)} to end")


@contextlib.contextmanager
def up(
    tmp_path: Path, procfile: str, *arguments: str, name: str = "data", ready: bool = False, ignored: Sequence[signal.Signals] = ()
) -> Iterator[Run]:
    file = tmp_path / f"Procfile.{name}"
    file.write_text(procfile)
    output = tmp_path / f"{name}.out"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    environment.update(HOLDFAST_DATA=str(tmp_path / name), PORT=str(free_port()))
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast_server", "--procfile", str(file), *([] if ready else ["--no-ready"]), *arguments],
            cwd=TOP,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN) for number in ignored],  # noqa: PLW1509
        )
    run = Run(process, tmp_path / name, output)
    try:
        yield run
    finally:
        process.terminate()
        process.wait(timeout=_DEADLINE_S)
        run.wait_nothing_left()


def refused(tmp_path: Path, procfile: str = f"a: {_SLEEPER}\n", **environment: str) -> str:
    """The error output of a runner that cannot start."""
    file = tmp_path / "Procfile.refused"
    file.write_text(procfile)
    settings = {"HOLDFAST_DATA": str(tmp_path / "refused"), "PORT": str(free_port()), **environment}
    result = subprocess.run(
        [sys.executable, "-m", "holdfast_server", "--procfile", str(file), "--no-ready"],
        cwd=TOP,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert result.returncode == 2, result.stdout + result.stderr
    return result.stderr


def test_output_lines_have_the_name_of_their_process(tmp_path: Path) -> None:
    with up(tmp_path, f"web: {_SLEEPER}\nworker: {_SLEEPER}\n") as run:
        run.wait_text("web    | up")
        run.wait_text("worker | up")
        assert "\033[" not in run.text(), "colours only on a terminal"
        assert (run.data / "logs" / "web.log").read_text() == "up\n"


def test_env_file_and_private_secrets_exist_before_the_first_process(tmp_path: Path) -> None:
    with up(tmp_path, "look: sh -c 'cat \"$HOLDFAST_DATA/env\"; echo seen; exec sleep 600'\n") as run:
        run.wait_text("look | seen")
        env = read_env(run.data / "env")
        assert run.text().count(env["HOLDFAST_API_KEY"]) == 2, "printed by the runner, and by the process"
        assert env["HOLDFAST_API_KEY"].startswith("hf_")
        assert len(env["HOLDFAST_API_KEY"]) == 3 + 32
        for name in ("env", "keys", "secret"):
            assert (run.data / name).stat().st_mode & 0o077 == 0
        assert env["HOLDFAST_API_KEY"] not in (run.data / "keys").read_text(), "keys are stored hashed"


def test_key_and_secret_are_kept_over_a_restart_of_the_stack(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        with up(tmp_path, f"a: {_SLEEPER}\n") as run:
            run.wait_text("a | up")
            seen.append((read_env(run.data / "env")["HOLDFAST_API_KEY"], (run.data / "secret").read_text()))
    assert seen[0] == seen[1]


_UNREADY_GATEWAY = """
import http.server, json, os
class Gateway(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        away = {} if os.path.exists("WHOLE") else {"placement": "the placement store does not answer"}
        self.send_response(503 if away else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"unavailable": away}).encode())
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Gateway).serve_forever()
"""


def test_an_unavailable_part_is_reported_until_it_is_available(tmp_path: Path) -> None:
    program, whole = tmp_path / "gateway.py", tmp_path / "whole"
    program.write_text(_UNREADY_GATEWAY.replace("WHOLE", str(whole)))
    with up(tmp_path, f"gateway: {sys.executable} {program}\n", ready=True) as run:
        run.wait_text("not ready yet:\n    placement: the placement store does not answer")
        whole.touch()
        run.wait_text("up: ready after")
        assert run.text().count("not ready yet") == 1


def test_a_process_that_dies_is_restarted(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {_SLEEPER}\nb: {_SLEEPER}\n") as run:
        run.wait_text("b | up")
        old, bystander = run.pid("a"), run.pid("b")
        os.kill(old, signal.SIGKILL)
        run.wait_text("a | died (SIGKILL), starts again in 0.1 s")
        run.wait_text("a | up", count=2)
        assert run.pid("a") != old
        assert run.pid("b") == bystander


def test_processes_are_restarted_under_a_launcher_that_ignores_sigchld(tmp_path: Path) -> None:
    """An ignored SIGCHLD is inherited, and the kernel then reports no end of a child."""
    with up(tmp_path, f"a: {_SLEEPER}\n", ignored=[signal.SIGCHLD]) as run:
        run.wait_text("a | up")
        os.kill(run.pid("a"), signal.SIGKILL)
        run.wait_text("a | up", count=2)
        run.process.terminate()
        assert run.process.wait(timeout=_DEADLINE_S) == 0


def test_back_off_grows_while_a_process_keeps_dying(tmp_path: Path) -> None:
    with up(tmp_path, "a: sh -c 'exit 3'\n") as run:
        for delay in ("0.1", "0.2", "0.4"):
            run.wait_text(f"a | died (exit status 3), starts again in {delay} s")


def test_a_failed_start_is_retried(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {_SLEEPER}\nb: {_SLEEPER}\n") as run:
        a, b = run.pid("a"), run.pid("b")
        supervisor = subreaper.descendants(run.process.pid)[0]
        limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.kill(b, signal.SIGKILL)
        run.wait_text("cannot be started")
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
        run.wait_text("started, process", count=3)
        assert run.pid("a") == a
        assert is_alive(a)


def test_settings_that_cannot_be_used_end_the_start(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {_SLEEPER}\nb: sh -c 'echo B is wrong; exit 78'\n", ready=True) as run:
        assert run.process.wait(_DEADLINE_S) == 2
        assert "b | B is wrong" in run.text()
        assert "up: stopping: b cannot use its settings" in run.text()
        assert "starts again" not in run.text()


def test_a_process_gets_the_number_of_its_failed_starts(tmp_path: Path) -> None:
    with up(tmp_path, "a: sh -c 'n=$HOLDFAST_FAILED_STARTS; echo refusal $n; [ $n = 2 ] && exec sleep 600; exit 3'\n") as run:
        run.wait_text("a | refusal 2")
        os.kill(run.pid("a"), signal.SIGKILL)
        run.wait_text("a | refusal 0", count=2)


def test_processes_are_stopped_in_reverse_order(tmp_path: Path) -> None:
    traps = "".join(f"{name}: sh -c 'trap \"exit 0\" TERM; echo up; sleep 600 & wait'\n" for name in ("one", "two", "three"))
    with up(tmp_path, traps) as run:
        for name in ("one", "two", "three"):
            run.wait_text(f"{name:<5} | up")
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=_DEADLINE_S) == 0
        ends = [line.split()[0] for line in run.text().splitlines() if "| ended" in line]
        assert ends == ["three", "two", "one"]


def test_a_process_that_ignores_sigterm_is_killed_and_the_exit_status_is_1(tmp_path: Path) -> None:
    stubborn = "a: sh -c 'trap \"\" TERM; echo up; while :; do sleep 600; done'\n"
    with up(tmp_path, stubborn, "--stop-grace", "0.2") as run:
        run.wait_text("a | up")
        run.process.terminate()
        assert run.process.wait(timeout=_DEADLINE_S) == 1
        assert "a | does not end: killed" in run.text()


def test_a_second_signal_ends_the_grace_period(tmp_path: Path) -> None:
    stubborn = "a: sh -c 'trap \"\" TERM; echo up; while :; do sleep 600; done'\n"
    with up(tmp_path, stubborn, "--stop-grace", "600") as run:
        run.wait_text("a | up")
        run.process.terminate()
        run.wait_text("up: stopping")
        until(lambda: _ended_after_another_signal(run.process), deadline_s=_DEADLINE_S, what="the runner to end at once")
        assert run.process.returncode == 1


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
    with up(tmp_path, f"a: sh -c 'setsid sleep 600 & echo up; exec sleep 600'\nb: {_SLEEPER}\n") as run:
        run.wait_text("a | up")
        run.wait_text("b | up")
        status = Path(f"/proc/{run.pid('b')}/stat").read_bytes().rpartition(b")")[2].split()
        supervisor = int(status[1])
        assert supervisor != run.process.pid
        victims = {"subreaper": [run.process.pid], "supervisor": [supervisor], "both": [run.process.pid, supervisor]}[victim]
        members = [run.pid("a"), run.pid("b")]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, members)), deadline_s=_DEADLINE_S, what="the members to end")
        if victim == "both":  # no process is left that looks for hidden ones: their end is promised only if one of the two survives
            for pid in processes_of(run.data):
                os.kill(pid, signal.SIGKILL)
        run.wait_nothing_left()


def test_a_port_in_use_is_reported_before_a_process_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        message = refused(tmp_path, PORT=str(port))
    assert f"port {port} is in use" in message
    assert "--port" in message


def test_second_stack_in_one_folder_is_refused(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {_SLEEPER}\n") as run:
        run.wait_text("a | up")
        message = refused(tmp_path, HOLDFAST_DATA=str(run.data))
        assert f"another stack (process {run.process.pid})" in message
        assert "--data" in message
        with up(tmp_path, f"a: {_SLEEPER}\n", name="other") as second:
            second.wait_text("a | up")


def test_the_error_about_a_missing_redis_names_the_package(tmp_path: Path) -> None:
    # find_redis_server returns None, as on a machine without a Redis.
    code = "import sys; from holdfast_server import __main__ as m; m.find_redis_server = lambda: None; sys.exit(m.main())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TOP,
        env={**os.environ, "HOLDFAST_DATA": str(tmp_path / "data"), "PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert result.returncode == 2
    assert "there is no redis-server" in result.stderr
    assert "install the package redis-server" in result.stderr


def test_python_in_a_procfile_is_this_interpreter(tmp_path: Path) -> None:
    file = tmp_path / "Procfile"
    file.write_text("a: python -m module\nb: pythonic python\nc: /usr/bin/python -m module\n")
    assert [entry.command for entry in read_procfile(file)] == [
        f"{shlex.quote(sys.executable)} -m module",
        "pythonic python",
        "/usr/bin/python -m module",
    ]


@pytest.mark.parametrize(
    ("environment", "procfile", "words"),
    [
        ({"PORT": "eighty"}, f"a: {_SLEEPER}\n", "not a port number"),
        ({"PORT": "70000"}, f"a: {_SLEEPER}\n", "not a port number"),
        ({"PORT": "9" * 5000}, f"a: {_SLEEPER}\n", "not a port number"),
        ({"HOLDFAST_REDIS_URL": "127.0.0.1:6379"}, f"a: {_SLEEPER}\n", "HOLDFAST_REDIS_URL is not the URL of a Redis"),
        ({"HOLDFAST_REDIS_SERVER": "/nowhere/redis-server"}, f"redis: {_SLEEPER}\n", "HOLDFAST_REDIS_SERVER=/nowhere/redis-server is not"),
        ({"HOLDFAST_DATA": "/proc/holdfast"}, f"a: {_SLEEPER}\n", "cannot make the data folder"),
        ({}, "what is this\n", "not a `name: command` line"),
        ({}, f"a: {_SLEEPER}\na: {_SLEEPER}\n", "is defined twice"),
        ({}, "# nothing\n", "names no process"),
    ],
)
def test_errors_about_bad_settings(tmp_path: Path, environment: dict[str, str], procfile: str, words: str) -> None:
    assert words in refused(tmp_path, procfile, **environment)


def test_a_file_that_is_no_procfile_is_reported_as_json(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    command = [sys.executable, "-m", "holdfast.cli", "up", "--json", "--data", str(tmp_path / "data"), "--procfile"]
    for name, words in (("binary", "is not a Procfile"), (".", "Is a directory"), ("nothing", "No such file or directory")):
        result = subprocess.run([*command, str(tmp_path / name)], cwd=TOP, capture_output=True, text=True, timeout=_DEADLINE_S)
        assert result.returncode == 2
        error = json.loads(result.stderr)["error"]
        assert words in error["message"]
        assert "--procfile" in error["hint"]


def test_an_interrupt_before_the_first_process_ends_the_runner_quietly(tmp_path: Path) -> None:
    def interrupted() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)  # pending until the server unblocks it

    command = [sys.executable, "-m", "holdfast.cli", "up", "--data", str(tmp_path / "data"), "--port", str(free_port())]
    result = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=_DEADLINE_S, preexec_fn=interrupted)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_an_empty_setting_counts_as_unset(tmp_path: Path) -> None:
    assert read_settings([], {"PORT": "", "HOLDFAST_DATA": ""}) == read_settings([], {})


@pytest.mark.parametrize(("url", "named"), [("", False), ("unix:///run/redis.sock", True), ("redis+cluster://h:1", True), (None, False)])
def test_an_empty_redis_url_counts_as_unset(url: str | None, named: bool) -> None:
    environment = {} if url is None else {"HOLDFAST_REDIS_URL": url}
    assert check_redis_url(environment) is named
    assert ("HOLDFAST_REDIS_URL" in environment) is named


def test_a_folder_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    """Such as HOLDFAST_DATA=/var/lib."""
    dump = tmp_path / "refused" / "redis" / "dump.rdb"
    dump.parent.mkdir(parents=True)
    dump.write_text("somebody's")
    message = refused(tmp_path)
    assert "is no data folder of a stack" in message
    assert "HOLDFAST_DATA" in message
    assert dump.read_text() == "somebody's"
    assert os.listdir(tmp_path / "refused") == ["redis"]


@pytest.mark.parametrize("name", ["notes.txt", "lock", ".git/HEAD", "images/holiday.jpg", "run/one.pid", "env/bin/python", "logs/a.log"])
def test_a_folder_with_other_files_is_refused_and_unchanged(tmp_path: Path, name: str) -> None:
    """Such as HOLDFAST_DATA=$HOME, or /var/lib/dpkg, which has a `lock` too."""
    existing = tmp_path / "refused" / name
    existing.parent.mkdir(parents=True)
    existing.write_text("of others")
    (tmp_path / "refused" / "other").write_text("of others")
    message = refused(tmp_path)
    assert "is no data folder of a stack, and it is not empty" in message
    assert "HOLDFAST_DATA" in message
    assert sorted(os.listdir(tmp_path / "refused")) == sorted({"other", name.partition("/")[0]})


def test_a_folder_of_an_earlier_stack_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret").write_text("s" * 64 + "\n")
    (tmp_path / "data" / "demo").mkdir()
    for _ in range(2):
        with up(tmp_path, f"a: {_SLEEPER}\n") as run:
            run.wait_text("a | up")
    assert (tmp_path / "data" / "secret").read_text() == "s" * 64 + "\n"
    (tmp_path / "data" / "more").write_text("of the user's")
    with up(tmp_path, f"a: {_SLEEPER}\n") as run:
        run.wait_text("a | up")


def test_the_printed_shell_line_works(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {_SLEEPER}\n", name="it's $HOME") as run:
        run.wait_text("a | up")
        line = run.text().partition("in another terminal:")[2].splitlines()[0]
        typed = subprocess.run(["sh", "-c", f'{line}; echo "$HOLDFAST_API_KEY"'], capture_output=True, text=True, check=True)
        assert typed.stdout.strip() == read_env(run.data / "env")["HOLDFAST_API_KEY"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_make_alone_ends_the_stack(tmp_path: Path, number: signal.Signals) -> None:
    """As with `kill -INT` of make, which does not pass the signal on and waits."""
    (tmp_path / "Procfile").write_text(f"a: {_SLEEPER}\n")
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
        make.wait(timeout=_DEADLINE_S)
    finally:
        make.kill()
        run.wait_nothing_left()
    assert "everything has ended" in run.text()
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


@requires("root")
def test_a_full_data_folder_is_reported_and_survived(tmp_path: Path) -> None:
    """A folder that is full before the start is refused with a hint. If it fills up later, only log lines are lost."""
    disk = tmp_path / "full"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        (disk / "runner.out").write_bytes(bytes(16 << 12))
        message = refused(tmp_path, HOLDFAST_DATA=str(disk))
        assert "No space left on device" in message
        assert "HOLDFAST_DATA" in message
        (disk / "runner.out").unlink()
        flood = "sh -c 'head -c 100000 /dev/zero | tr \\\\0 x; echo; echo through; exec sleep 600'"
        with up(tmp_path, f"a: {flood}\n", name="full") as run:
            run.wait_text("a | through")
            os.kill(run.pid("a"), signal.SIGKILL)
            run.wait_text("a | through", count=2)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@requires("root")
def test_a_folder_without_write_permission_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "refused"
    for name in ("logs", "run", "redis"):
        (data / name).mkdir(parents=True)
    subprocess.run(["chattr", "+i", data], check=True)
    try:
        message = refused(tmp_path)
    finally:
        subprocess.run(["chattr", "-i", data], check=True)
    assert "cannot write in the data folder" in message
    assert "make it yours" in message


def test_long_data_folder_still_gets_sockets(tmp_path: Path) -> None:
    deep = "d" * 120
    with up(tmp_path, "a: sh -c 'echo \"<$HOLDFAST_NODE_SOCKET>\"; exec sleep 600'\n", name=deep) as run:
        run.wait_text("<")
        socket_path = run.text().partition("<")[2].partition(">")[0]
        assert len(socket_path) < 100
        Path(socket_path).parent.rmdir()


@requires("namespaces", "redis")
@pytest.mark.parametrize("name", ["gateway", "controller", "redis"])
def test_any_process_of_the_real_stack_is_restarted(stack: Stack, name: str) -> None:
    old = stack.kill_process(name)
    assert stack.wait_restarted(name, old) != old
    stack.wait_ready()


@requires("namespaces", "redis")
def test_a_damaged_redis_file_is_replaced_and_records_are_rebuilt() -> None:
    """Redis refuses to start with a damaged file every time; all its records can be rebuilt from the runtime."""
    with running_stack() as own, SandboxClient(own.url, own.key) as client:
        sandbox = client.create_sandbox("host", ready_timeout_s=30)
        shell = sandbox.shell()
        shell.run("KEPT=yes")
        pid = read_pid(own.data / "run" / "redis.pid")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for path in (own.data / "redis").rglob("*"):
            if path.is_file():
                path.write_bytes(b"no such format\n" * 100)
        os.kill(pid, signal.SIGKILL)
        assert shell.run("echo $KEPT", timeout=60).stdout == "yes\n"
        until(lambda: _is_listed(client, sandbox.id), deadline_s=_DEADLINE_S, what="the record to be rebuilt")
        assert client.get_sandbox(sandbox.id).exec("echo here", timeout=60).stdout == "here\n"


def _is_listed(client: SandboxClient, sandbox_id: str) -> bool:
    with contextlib.suppress(HoldfastError):
        return sandbox_id in [box.sandbox_id for box in client.list_sandboxes()]
    return False


@requires("namespaces", "redis")
def test_a_killed_node_is_restarted_and_creates_sandboxes() -> None:
    with running_stack() as own, SandboxClient(own.url, own.key) as client:
        old = own.kill_process("node")
        own.wait_restarted("node", old)
        own.wait_ready()
        with client.create_sandbox("host", ready_timeout_s=30) as sandbox:
            assert sandbox.exec("echo here").stdout == "here\n"


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
        until(lambda: not in_pid_namespace(inside), deadline_s=_DEADLINE_S, what="the sandbox to end")
        until(lambda: not processes_of(own.data), deadline_s=_DEADLINE_S, what="the stack to end")
        assert not any(census(own.data).values()), census(own.data)
