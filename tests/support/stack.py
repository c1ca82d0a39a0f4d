"""A whole real stack for tests: the supervisor of `make up` on a free port with its own data folder.

Owns the supervisor process and the check after its end: no process and no file of the stack is left. The `stack` fixture is shared by
the whole session, so a test that kills parts of it must leave it ready (`wait_ready`); a test that needs other
settings starts its own with `running_stack(...)`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from holdfast_server import embed

from tests.support.requires import missing
from tests.support.until import until

READY_DEADLINE_S = 120.0


class Stack:
    """A running stack: a client needs `url` and `key`; `data` is the stack's folder."""

    def __init__(self, running: embed.EmbeddedStack) -> None:
        self._running = running
        self.url = running.url
        self.key = running.key
        self.data = running.data

    def pid(self, name: str) -> int:
        """The pid of a Procfile entry, e.g. "gateway"; waits while it is being restarted."""
        path = self.data / "run" / f"{name}.pid"
        until(lambda: read_pid(path), deadline_s=READY_DEADLINE_S, what=f"{name} to run")
        return read_pid(path) or self.pid(name)

    def kill_process(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal (SIGKILL) to one process and wait until it has ended. Returns the pid that it had."""
        pid = self.pid(name)
        os.kill(pid, number)
        until(lambda: not is_alive(pid), deadline_s=READY_DEADLINE_S, what=f"{name} ({pid}) to end")
        return pid

    def wait_restarted(self, name: str, old_pid: int, deadline_s: float = READY_DEADLINE_S) -> int:
        """Wait until the runner has started `name` again; returns the new pid."""
        until(lambda: self.pid(name) != old_pid, deadline_s=deadline_s, what=f"a new {name}")
        return self.pid(name)

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Return once /readyz answers 200."""
        until(self._running.is_ready, deadline_s=deadline_s, what=lambda: f"{self.url}/readyz; the logs:\n{self.logs()}")

    def logs(self, lines: int = 40) -> str:
        """The end of every log of this stack."""
        return self._running.logs(lines)

    def environment(self) -> dict[str, str]:
        """HOLDFAST_URL and HOLDFAST_API_KEY of this stack, over this process's environment."""
        return {**os.environ, "HOLDFAST_URL": self.url, "HOLDFAST_API_KEY": self.key}


def _check_logs_without_secrets(stack: Stack, secrets: Sequence[str]) -> None:
    """No log of a stack of this suite has its key or its secrets, whatever was done with it."""
    for log in (stack.data / "logs").glob("*.log*"):
        text = log.read_text(errors="replace")
        for secret in (stack.key, *secrets):
            assert not secret or secret not in text, f"{log.name} has a secret: {text[max(text.index(secret) - 200, 0) :][:400]!r}"


def read_pid(path: Path) -> int | None:
    """The process id in a pid file; None while the file does not exist."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != b"Z"


def processes_of(data: Path) -> list[int]:
    """Every living process whose environment names this data folder: the stack and all processes that it forked."""
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
    """Start a stack, yield it once it is ready, end it with SIGTERM and assert that nothing is left of it.

    On a busy machine it waits longer than usual for the stack, and the stack for Redis; other tests check the answers while Redis is
    unavailable.
    """
    data = Path(tempfile.mkdtemp(prefix="hf-stack-"))
    settings = {"HOLDFAST_IMAGE_FALLBACK": "host", "HOLDFAST_REDIS_TIMEOUT_MS": "5000", **(environment or {})}
    with embed.running_stack(data, settings, arguments, wait=False) as running:
        stack = Stack(running)
        if wait:
            stack.wait_ready()
        secrets = [(stack.data / name).read_text().strip() for name in ("secret", "keys") if (stack.data / name).exists()]
        yield stack
        _check_ended_by_us(running)
        _check_logs_without_secrets(stack, secrets)
    until(lambda: not processes_of(data), deadline_s=60, what=lambda: f"these processes to end: {processes_of(data)}")
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(data) in line]
    assert not mounts, f"mounts left behind: {mounts}"
    tag = hashlib.sha256(str(data).encode()).hexdigest()[:12]
    # os.walk ignores folders that disappear meanwhile: the groups of other stacks come and go.
    groups = [os.path.join(folder, name) for folder, names, _ in os.walk("/sys/fs/cgroup") for name in names if tag in name]
    assert not groups, f"cgroups left behind: {groups}"
    assert running.runner.returncode == 0, f"the runner ended with {running.runner.returncode}:\n{running.logs()}"
    shutil.rmtree(data, ignore_errors=True)


def _check_ended_by_us(running: embed.EmbeddedStack) -> None:
    assert running.runner.poll() is None, f"the runner ended with {running.runner.returncode}:\n{running.logs()}"


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
