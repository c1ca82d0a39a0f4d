"""The processes that a container's agent starts cannot read its files in /proc, even as the same user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast_server.embed import free_port

from tests.support.requires import requires
from tests.support.until import until

REPOSITORY = Path(__file__).resolve().parents[3]
NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
LOOK = "cat /proc/$0/environ; head -c1 /proc/$0/mem >&0; readlink /proc/$0/fd/2; readlink /proc/$0/cwd; ls /proc/$0/map_files"
AGENT = """
import ctypes, encodings.ascii, encodings.idna, os, sys
import session_agent.agent.startup.handlers, session_agent.agent.startup.server
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # the interpreter need not be open to that user
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a container's command comes: open
sys.exit(session_agent.agent.startup.server.main())
"""


@requires("root")
def test_a_process_of_the_same_user_cannot_read_the_agents_proc_files() -> None:
    port = free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'schemas'}",
        "HOLDFAST_AGENT_LISTEN": f"tcp://127.0.0.1:{port}",
        "HOLDFAST_AGENT_TOKEN": "ab" * 32,
    }
    agent = subprocess.Popen([sys.executable, "-c", AGENT], env=environment, cwd="/")
    try:
        until(lambda: _listens(port), deadline_s=60, what="the agent to listen")
        until(lambda: os.stat(f"/proc/{agent.pid}/mem").st_uid == 0, deadline_s=60, what="its files in /proc to be closed")
        assert _read_proc(agent.pid) == b""
        other = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={"OPEN": "yes"}, **NOBODY)
        try:
            until(lambda: b"OPEN=yes" in _read_proc(other.pid), deadline_s=60, what="the environment of another process, which is readable")
        finally:
            other.communicate(b"")
        written = [os.readlink(f"/proc/{agent.pid}/fd/{name}") for name in os.listdir(f"/proc/{agent.pid}/fd")]
        assert any(path.endswith("/oom_score_adj") for path in written), "what it writes under /proc was opened before it was closed"
    finally:
        agent.kill()
        agent.wait()


def _read_proc(pid: int) -> bytes:
    result: subprocess.CompletedProcess[bytes] = subprocess.run(
        ["/bin/sh", "-c", LOOK, str(pid)], capture_output=True, check=False, **NOBODY
    )
    return result.stdout


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
