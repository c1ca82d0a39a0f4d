"""What the process runner prints, the settings it reads, and the errors with which it refuses to start."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_server.__main__ import check_redis_url, read_settings
from holdfast_server.datadir import read_env
from holdfast_server.embed import free_port
from holdfast_server.layout import TOP
from holdfast_server.procfile import read_procfile

from tests.e2e.runner import DEADLINE_S, SLEEPER, refused, up


def test_output_lines_have_the_name_of_their_process(tmp_path: Path) -> None:
    with up(tmp_path, f"web: {SLEEPER}\nworker: {SLEEPER}\n") as run:
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
        with up(tmp_path, f"a: {SLEEPER}\n") as run:
            run.wait_text("a | up")
            seen.append((read_env(run.data / "env")["HOLDFAST_API_KEY"], (run.data / "secret").read_text()))
    assert seen[0] == seen[1]


def test_settings_that_cannot_be_used_end_the_start(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {SLEEPER}\nb: sh -c 'echo B is wrong; exit 78'\n", ready=True) as run:
        assert run.process.wait(DEADLINE_S) == 2
        assert "b | B is wrong" in run.text()
        assert "up: stopping: b cannot use its settings" in run.text()
        assert "starts again" not in run.text()


def test_a_port_in_use_is_reported_before_a_process_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        message = refused(tmp_path, PORT=str(port))
    assert f"port {port} is in use" in message
    assert "--port" in message


def test_the_error_about_a_missing_redis_names_the_package(tmp_path: Path) -> None:
    # find_redis_server returns None, as on a machine without a Redis.
    code = "import sys; from holdfast_server import __main__ as m; m.find_redis_server = lambda: None; sys.exit(m.main())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TOP,
        env={**os.environ, "HOLDFAST_DATA": str(tmp_path / "data"), "PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
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
        ({"PORT": "eighty"}, f"a: {SLEEPER}\n", "not a port number"),
        ({"PORT": "70000"}, f"a: {SLEEPER}\n", "not a port number"),
        ({"PORT": "9" * 5000}, f"a: {SLEEPER}\n", "not a port number"),
        ({"HOLDFAST_REDIS_URL": "127.0.0.1:6379"}, f"a: {SLEEPER}\n", "HOLDFAST_REDIS_URL is not the URL of a Redis"),
        ({"HOLDFAST_REDIS_SERVER": "/nowhere/redis-server"}, f"redis: {SLEEPER}\n", "HOLDFAST_REDIS_SERVER=/nowhere/redis-server is not"),
        ({"HOLDFAST_DATA": "/proc/holdfast"}, f"a: {SLEEPER}\n", "cannot create the data folder"),
        ({}, "what is this\n", "not a `name: command` line"),
        ({}, f"a: {SLEEPER}\na: {SLEEPER}\n", "is defined twice"),
        ({}, "# nothing\n", "names no process"),
    ],
)
def test_errors_about_bad_settings(tmp_path: Path, environment: dict[str, str], procfile: str, words: str) -> None:
    assert words in refused(tmp_path, procfile, **environment)


def test_a_file_that_is_no_procfile_is_reported_as_json(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    command = [sys.executable, "-m", "holdfast.cli", "up", "--json", "--data", str(tmp_path / "data"), "--procfile"]
    for name, words in (("binary", "is not a Procfile"), (".", "Is a directory"), ("nothing", "No such file or directory")):
        result = subprocess.run([*command, str(tmp_path / name)], cwd=TOP, capture_output=True, text=True, timeout=DEADLINE_S)
        assert result.returncode == 2
        error = json.loads(result.stderr)["error"]
        assert words in error["message"]
        assert "--procfile" in error["hint"]


def test_an_empty_setting_counts_as_unset(tmp_path: Path) -> None:
    assert read_settings([], {"PORT": "", "HOLDFAST_DATA": ""}) == read_settings([], {})


@pytest.mark.parametrize(("url", "named"), [("", False), ("unix:///run/redis.sock", True), ("redis+cluster://h:1", True), (None, False)])
def test_an_empty_redis_url_counts_as_unset(url: str | None, named: bool) -> None:
    environment = {} if url is None else {"HOLDFAST_REDIS_URL": url}
    assert check_redis_url(environment) is named
    assert ("HOLDFAST_REDIS_URL" in environment) is named


def test_the_printed_shell_line_works(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {SLEEPER}\n", name="it's $HOME") as run:
        run.wait_text("a | up")
        line = run.text().partition("in another terminal:")[2].splitlines()[0]
        typed = subprocess.run(["sh", "-c", f'{line}; echo "$HOLDFAST_API_KEY"'], capture_output=True, text=True, check=True)
        assert typed.stdout.strip() == read_env(run.data / "env")["HOLDFAST_API_KEY"]


def test_the_kernel_ends_other_processes_before_the_services(tmp_path: Path) -> None:
    """Only a process with CAP_SYS_RESOURCE can lower its score; the node raises that of sandboxes where it was not lowered."""
    rows = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    may = bool(int(rows["CapEff"], 16) >> 24 & 1)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    with up(tmp_path, f"a: {SLEEPER}\n") as run:
        run.wait_text("a | up")
        pid = int((run.data / "run" / "a.pid").read_text())
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == (min(own, -800) if may else own)
