"""Processes that die, cannot start or are not ready: the runner restarts them and reports what is unavailable."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from holdfast import HoldfastError, SandboxClient
from holdfast_server import subreaper

from tests.e2e.runner import DEADLINE_S, SLEEPER, up
from tests.support.requires import requires
from tests.support.stack import Stack, is_alive, read_pid, running_stack
from tests.support.until import until

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
    with up(tmp_path, f"a: {SLEEPER}\nb: {SLEEPER}\n") as run:
        run.wait_text("b | up")
        old, bystander = run.pid("a"), run.pid("b")
        os.kill(old, signal.SIGKILL)
        run.wait_text("a | died (SIGKILL), starts again in 0.1 s")
        run.wait_text("a | up", count=2)
        assert run.pid("a") != old
        assert run.pid("b") == bystander


def test_processes_are_restarted_under_a_launcher_that_ignores_sigchld(tmp_path: Path) -> None:
    """An ignored SIGCHLD is inherited, and the kernel then reports no end of a child."""
    with up(tmp_path, f"a: {SLEEPER}\n", ignored=[signal.SIGCHLD]) as run:
        run.wait_text("a | up")
        os.kill(run.pid("a"), signal.SIGKILL)
        run.wait_text("a | up", count=2)
        run.process.terminate()
        assert run.process.wait(timeout=DEADLINE_S) == 0


def test_back_off_grows_while_a_process_keeps_dying(tmp_path: Path) -> None:
    with up(tmp_path, "a: sh -c 'exit 3'\n") as run:
        for delay in ("0.1", "0.2", "0.4"):
            run.wait_text(f"a | died (exit status 3), starts again in {delay} s")


def test_a_failed_start_is_retried(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {SLEEPER}\nb: {SLEEPER}\n") as run:
        a, b = run.pid("a"), run.pid("b")
        supervisor = subreaper.descendants(run.process.pid)[0]
        limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.kill(b, signal.SIGKILL)
        run.wait_text("cannot be started")
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
        run.wait_text("started, process", count=3)
        assert run.pid("a") == a
        assert is_alive(a)


def test_a_process_gets_the_number_of_its_failed_starts(tmp_path: Path) -> None:
    with up(tmp_path, "a: sh -c 'n=$HOLDFAST_FAILED_STARTS; echo refusal $n; [ $n = 2 ] && exec sleep 600; exit 3'\n") as run:
        run.wait_text("a | refusal 2")
        os.kill(run.pid("a"), signal.SIGKILL)
        run.wait_text("a | refusal 0", count=2)


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
        sandbox = client.create_sandbox("host", ready_timeout_s=60)
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
        until(lambda: _is_listed(client, sandbox.id), deadline_s=DEADLINE_S, what="the record to be rebuilt")
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
        with client.create_sandbox("host", ready_timeout_s=60) as sandbox:
            assert sandbox.exec("echo here").stdout == "here\n"
