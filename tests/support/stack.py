"""A whole real stack for tests: `make up`'s own runner on a free port with a data folder of its own.

Owns the runner process and what must be true after it: nothing of the stack is left. The `stack` fixture is shared by
the whole session, so a test that kills parts of it must leave it ready (`wait_ready`); a test that needs other
settings starts its own with `running_stack(...)`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.scripts.up.datadir import read_env
from tests.support.requires import missing
from tests.support.until import until

TOP = Path(__file__).resolve().parents[2]
READY_DEADLINE_S = 30.0
_END_DEADLINE_S = 30.0


@dataclass(slots=True)
class Stack:
    """A running stack: `url` and `key` are what a client needs; `data` is its folder."""

    url: str
    key: str
    data: Path
    runner: subprocess.Popen[bytes]

    def pid(self, name: str) -> int:
        """The process of a Procfile entry, e.g. "gateway"; waits while it is being started again."""
        path = self.data / "run" / f"{name}.pid"
        until(lambda: path.exists() and path.read_text().strip(), deadline_s=READY_DEADLINE_S, what=f"{name} to run")
        return int(path.read_text())

    def kill_process(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal (SIGKILL) to one process and wait until it has gone. Returns the pid that it had."""
        pid = self.pid(name)
        os.kill(pid, number)
        until(lambda: not is_alive(pid), deadline_s=_END_DEADLINE_S, what=f"{name} ({pid}) to end")
        return pid

    def wait_restarted(self, name: str, old_pid: int, deadline_s: float = READY_DEADLINE_S) -> int:
        """Wait until the runner has started `name` again; returns the new pid."""
        until(lambda: self.pid(name) != old_pid, deadline_s=deadline_s, what=f"a new {name}")
        return self.pid(name)

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Return once /readyz answers 200."""
        until(self._ready, deadline_s=deadline_s, what=lambda: f"{self.url}/readyz; the logs:\n{self.logs()}")

    def logs(self, lines: int = 40) -> str:
        """The end of every log of this stack."""
        texts = []
        for path in sorted((self.data / "logs").glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            texts.append("\n".join(f"{path.stem}: {line}" for line in tail))
        return "\n".join(texts)

    def environment(self) -> dict[str, str]:
        """HOLDFAST_URL and HOLDFAST_API_KEY of this stack, over this process's environment."""
        return {**os.environ, "HOLDFAST_URL": self.url, "HOLDFAST_API_KEY": self.key}

    def _ready(self) -> bool:
        assert self.runner.poll() is None, f"the runner ended with {self.runner.returncode}:\n{self.logs()}"
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != b"Z"


def processes_of(data: Path) -> list[int]:
    """Every living process whose environment names this data folder: the stack and all that it forked."""
    needle = f"HOLDFAST_DATA={data}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            names = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if needle in names and is_alive(int(entry.name)):
            found.append(int(entry.name))
    return found


@contextlib.contextmanager
def running_stack(environment: Mapping[str, str] | None = None, arguments: Sequence[str] = (), *, wait: bool = True) -> Iterator[Stack]:
    """Start a stack, yield it once it is ready, end it with SIGTERM and assert that nothing is left of it."""
    data = Path(tempfile.mkdtemp(prefix="hf-stack-"))
    port = free_port()
    settings = {"HOLDFAST_IMAGE_FALLBACK": "host", **(environment or {}), "HOLDFAST_DATA": str(data), "PORT": str(port)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    log = data / "runner.out"
    with log.open("wb") as output:
        runner = subprocess.Popen(
            [sys.executable, "-m", "infra.scripts.up", "--with-parent", *arguments],
            cwd=TOP,
            env={**inherited, **settings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        until(
            lambda: (data / "env").exists() or runner.poll() is not None,
            deadline_s=READY_DEADLINE_S,
            what="the env file",
        )
        assert runner.poll() is None, log.read_text()
        known = read_env(data / "env")
        stack = Stack(known["HOLDFAST_URL"], known["HOLDFAST_API_KEY"], data, runner)
        if wait:
            stack.wait_ready()
        yield stack
    finally:
        _end(runner, data)
    shutil.rmtree(data, ignore_errors=True)


def _end(runner: subprocess.Popen[bytes], data: Path) -> None:
    runner.terminate()
    try:
        runner.wait(timeout=_END_DEADLINE_S)
    except subprocess.TimeoutExpired:
        runner.kill()
        runner.wait(timeout=_END_DEADLINE_S)
        raise
    until(lambda: not processes_of(data), deadline_s=5, what=lambda: f"these processes to end: {processes_of(data)}")
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(data) in line]
    assert not mounts, f"mounts left behind: {mounts}"


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The session's shared stack, with every image name resolving to the host toolchain."""
    for need in ("namespaces", "redis"):
        reason = missing(need)
        if reason is not None and os.environ.get("CI"):
            pytest.fail(f"the stack needs {need}, which CI must have: {reason}", pytrace=False)
        if reason is not None:
            pytest.skip(f"the stack needs {need}: {reason}")
    with running_stack() as running:
        yield running
