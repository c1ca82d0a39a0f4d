"""The command line against a real stack, from creating a sandbox to removing it."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.requires import requires

pytestmark = requires("namespaces", "redis")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def holdfast(stack: Any) -> Run:
    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.cli", *words]
        return subprocess.run(command, env=stack.environment(), capture_output=True, text=True, timeout=120, **options)

    return run


@pytest.fixture
def sandbox(holdfast: Run) -> Iterator[str]:
    made = holdfast("create", "host", "--memory", "256Mi", "-l", "test=cli", "-e", "GREETING=hello")
    assert made.returncode == 0, made.stderr
    yield made.stdout.strip()
    holdfast("rm", "-f", made.stdout.strip())


def test_create_list_and_rm(holdfast: Run) -> None:
    made = holdfast("create", "host", "--memory", "256Mi", "--id", "sb-cli", "-l", "a=b", "--json")
    assert json.loads(made.stdout)["sandbox_id"] == "sb-cli"
    listed = holdfast("list", "-l", "a=b")
    assert "sb-cli" in listed.stdout
    assert "a=b" in listed.stdout
    assert holdfast("list", "-q", "-l", "a=b").stdout == "sb-cli\n"
    assert [row["sandbox_id"] for row in json.loads(holdfast("list", "--json", "-l", "a=b").stdout)] == ["sb-cli"]
    assert holdfast("rm", "sb-cli").returncode == 0
    assert holdfast("list", "-q", "-l", "a=b").stdout == ""
    assert holdfast("list", "-l", "a=b", "-f", "colour=red").returncode == 2  # also where no sandbox is listed
    gone = holdfast("rm", "sb-never")
    assert (gone.returncode, gone.stderr) == (125, "holdfast: there is no sandbox 'sb-never'\n  list your sandboxes with `holdfast list`\n")
    as_json = holdfast("rm", "sb-never", "--json")
    assert json.loads(as_json.stdout) == {"removed": [], "missing": ["sb-never"]}
    assert json.loads(as_json.stderr)["error"]["code"] == "sandbox_not_found"
    assert holdfast("rm", "-f", "sb-never").returncode == 0
    after = holdfast("exec", "sb-cli", "--", "true")
    assert after.returncode == 125
    assert after.stderr.startswith("holdfast: ")


def test_json_may_precede_the_command(holdfast: Run, sandbox: str) -> None:
    assert json.loads(holdfast("--json", "list", "-l", "test=cli").stdout)[0]["sandbox_id"] == sandbox


def test_input_is_passed_on_only_with_the_option(holdfast: Run, sandbox: str) -> None:
    lost = holdfast("exec", sandbox, "--", "cat", input="unread")
    assert (lost.returncode, lost.stdout, lost.stderr) == (0, "", "")
    assert holdfast("exec", "-i", sandbox, "--", "cat", input="read").stderr == ""


def test_exec(holdfast: Run, sandbox: str) -> None:
    assert holdfast("exec", sandbox, "--", "printf", "%s|", "a b", "$X").stdout == "a b|$X|"
    assert holdfast("exec", sandbox, "-c", "echo $GREETING; exit 5").returncode == 5
    assert holdfast("exec", sandbox, "--", "no-such-thing").returncode == 127
    late = holdfast("exec", sandbox, "--timeout", "2", "-c", "echo early; sleep 60")
    assert (late.returncode, late.stdout) == (124, "early\n")
    assert holdfast("exec", sandbox, "-i", "--", "tr", "a-z", "A-Z", input="shout").stdout == "SHOUT"


def test_cp(holdfast: Run, sandbox: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(2_000_000))
    assert holdfast("cp", str(source), f"{sandbox}:/tmp/x").returncode == 0
    moved = json.loads(holdfast("cp", "--json", f"{sandbox}:/tmp/x", str(tmp_path / "back")).stdout)
    assert moved["size_bytes"] == 2_000_000
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "f").write_text("in a tree")
    assert holdfast("cp", str(tmp_path / "tree"), f"{sandbox}:/tmp/tree").returncode == 0
    assert holdfast("cp", f"{sandbox}:/tmp/tree", str(tmp_path / "copy")).returncode == 0
    assert (tmp_path / "copy" / "sub" / "f").read_text() == "in a tree"
    missing = holdfast("cp", f"{sandbox}:/tmp/none", str(tmp_path / "none"))
    assert missing.returncode == 125
    assert "/tmp/none" in missing.stderr
    assert holdfast("cp", str(tmp_path / "none"), f"{sandbox}:/tmp/none").returncode == 2


def test_images(holdfast: Run, tmp_path: Path) -> None:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "hostname").write_text("tiny")
    done = holdfast("image", "import", str(tmp_path / "root"), "cli-tiny:1")
    assert done.returncode == 0, done.stderr
    names = [row["name"] for row in json.loads(holdfast("image", "list", "--json").stdout)]
    assert "host" in names
    assert any(name.endswith("cli-tiny:1") for name in names)
    assert "cli-tiny:1" in holdfast("image", "list").stdout
    assert holdfast("image", "rm", "cli-tiny:1").returncode == 0
    assert holdfast("image", "rm", "cli-tiny:1").returncode == 125


def test_port(holdfast: Run, sandbox: str, stack: Any) -> None:
    server = [sys.executable, "-m", "holdfast.cli", "exec", sandbox, "-w", "/etc", "--", "python3", "-u", "-m", "http.server", "8123"]
    with subprocess.Popen(server, env=stack.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serving:
        assert serving.stdout is not None
        assert "Serving" in serving.stdout.readline()
        command = [sys.executable, "-m", "holdfast.cli", "port", sandbox, "8123"]
        with subprocess.Popen(command, env=stack.environment(), stdout=subprocess.PIPE, text=True) as port:
            assert port.stdout is not None
            address = port.stdout.readline().strip()
            with urllib.request.urlopen(f"http://{address}/hostname", timeout=10) as answer:
                assert answer.status == 200
            port.terminate()
            assert port.wait(60) == 0
        serving.terminate()


def test_port_in_reverse(holdfast: Run, sandbox: str, stack: Any, tmp_path: Path) -> None:
    """A program in the sandbox, which has no network, reaches a server of this machine."""
    (tmp_path / "greeting").write_text("hello from outside")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for target in (f"0:{server.server_port}", f"0:localhost:{server.server_port}", str(server.server_port)):
            command = [sys.executable, "-m", "holdfast.cli", "port", "--reverse", sandbox, target]
            with subprocess.Popen(command, env=stack.environment(), stdout=subprocess.PIPE, text=True) as port:
                assert port.stdout is not None
                address = port.stdout.readline().strip()
                fetch = f"import urllib.request as u; print(u.urlopen('http://{address}/greeting', timeout=60).read().decode())"
                assert holdfast("exec", sandbox, "python3", "-c", fetch).stdout == "hello from outside\n"
                port.terminate()
                assert port.wait(60) == 0
        server.shutdown()


def test_shell_reads_lines_from_a_pipe(holdfast: Run, sandbox: str) -> None:
    done = holdfast("shell", sandbox, "--cwd", "/tmp", input="echo mar''ker; pwd\nread x\nto read\necho $x >&2\nexit 4\n")
    assert (done.returncode, done.stdout, done.stderr) == (4, "marker\n/tmp\n", "to read\n")
    done = holdfast("shell", sandbox, "--json", input="echo one\nfalse\n")
    assert (done.returncode, json.loads(done.stdout)["stdout"]) == (1, "one\n")


def test_shell_reads_a_last_line_without_a_line_feed(holdfast: Run, sandbox: str) -> None:
    done = holdfast("shell", sandbox, input="echo one\nexit 4")
    assert done.returncode == 4


def test_doctor(holdfast: Run, stack: Any) -> None:
    done = holdfast("doctor", "--json")
    body = json.loads(done.stdout)
    assert body["ok"] is True, done.stdout
    assert {"service", "placement", "namespaces"} <= {check["name"] for check in body["checks"]}


def test_doctor_without_a_service_checks_this_machine(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "SANDBOX"))}
    command = [sys.executable, "-m", "holdfast.cli", "doctor", "--json"]
    environment = {**clean, "HOLDFAST_URL": "http://127.0.0.1:9", "HOLDFAST_API_KEY": "k", "HOLDFAST_DATA": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    body = json.loads(done.stdout)
    assert done.returncode == 125
    assert body["checks"][1]["ok"] is False
    assert "127.0.0.1:9" in body["checks"][1]["detail"]
    assert "namespaces" in {check["name"] for check in body["checks"]}


def test_the_error_about_a_name_in_use_names_the_command_that_frees_it(holdfast: Run, sandbox: str) -> None:
    refused = holdfast("create", "host", "--name", sandbox)
    assert refused.returncode == 125
    assert f"holdfast rm {sandbox} deletes it" in refused.stderr
    assert "sandbox_id" not in refused.stderr
