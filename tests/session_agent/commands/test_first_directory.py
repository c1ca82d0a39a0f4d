"""The directory that commands start in, created if the image does not have it."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_wire.proof import agent_token

from session_agent.agent.startup.server import make_directory
from tests.support.front import sdk_on
from tests.support.requires import requires
from tests.support.until import until_async

REPOSITORY = Path(__file__).resolve().parents[3]
AGENT = """
import encodings.ascii, encodings.idna, os, sys
import session_agent.agent.startup.handlers, session_agent.agent.startup.server
session_agent.agent.startup.handlers.LazyHandlers().load()
os.chdir(sys.argv[1]); os.setgroups([]); os.setgid(65534); os.setuid(65534)  # the interpreter need not be open to that user
sys.exit(session_agent.agent.startup.server.main())
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to(tmp_path / "target/deep")
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="gives the directory to root")
@pytest.mark.parametrize(("wanted", "made"), [("a/b/c", "a/b/c"), ("link", "target/deep"), ("link/x", "target/deep/x"), ("a/b/", "a/b")])
def test_it_is_created_with_its_parents_and_at_the_target_of_links(root: Path, wanted: str, made: str) -> None:
    """docker resolves a WORKDIR inside the image and creates the target of a link there."""
    make_directory(f"{root}/{wanted}", 0o750)
    assert stat.S_IMODE(os.lstat(root / made).st_mode) == 0o750
    assert (root / "link").is_symlink()


@pytest.mark.parametrize("wanted", ["file", "file/x", "loop", "loop/x"])
def test_a_file_in_the_way_is_kept(root: Path, wanted: str) -> None:
    make_directory(f"{root}/{wanted}", 0o755)
    assert sorted(os.listdir(root)) == ["file", "link", "loop"]


@requires("root")
async def test_an_agent_may_be_started_in_a_directory_that_its_user_cannot_enter(tmp_path: Path) -> None:
    """A container runtime enters WORKDIR before it changes the user; the sandbox's creator may name another directory."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    token = agent_token("a deployment's secret", "sb-1", "1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'schemas'}",
        "HOLDFAST_AGENT_LISTEN": f"tcp://127.0.0.1:{port}",
        "HOLDFAST_AGENT_TOKEN": token,
        "HOLDFAST_AGENT_WORKDIR": "/tmp",
        "HOLDFAST_AGENT_ULIMITS": json.dumps({"nofile": [100, 200]}),
    }
    agent = subprocess.Popen([sys.executable, "-c", AGENT, closed], env=environment, cwd="/")
    try:
        await until_async(lambda: _listens(port), deadline_s=60, what="the agent to listen")
        async with sdk_on(f"tcp://127.0.0.1:{port}", token) as (sandbox, _):
            result = await sandbox.exec("pwd; ulimit -n; id -u")
            assert (result.exit_code, result.stdout.split()) == (0, ["/tmp", "100", "65534"])
    finally:
        agent.kill()
        agent.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
