"""A stack inside a `with` block: starts the runner as a child process, waits until it is ready, and ends it.

Used by the demo, the benchmarks and the test fixtures, which need the processes of `holdfast up` on a free port. Owns the runner's process;
the runner owns everything else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_server.datadir import read_env
from holdfast_server.errors import UpError
from holdfast_server.layout import TOP
from holdfast_server.supervisor import missing_parts

_READY_DEADLINE_S = 60.0
_END_DEADLINE_S = 60.0
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class EmbeddedStack:
    """A running stack: `url` and `key` are what a client needs, `data` is its folder."""

    url: str
    key: str
    data: Path
    runner: subprocess.Popen[bytes]

    def is_ready(self) -> bool:
        """Whether /readyz answers 200 now. Raises UpError when the runner has ended."""
        if self.runner.poll() is not None:
            message = f"the stack ended with status {self.runner.returncode}:\n{self.logs()}"
            raise UpError(message, hint="see the log lines above", code="internal")
        return missing_parts(self.url) is None

    def logs(self, lines: int = 40) -> str:
        """The end of every log of this stack."""
        paths = [self.data / "runner.out", *sorted((self.data / "logs").glob("*.log"))]
        tails = ((path.stem, path.read_text(errors="replace").splitlines()[-lines:]) for path in paths if path.exists())
        return "\n".join(f"{name}: {line}" for name, tail in tails for line in tail)


def free_port() -> int:
    """A port that was free a moment ago, below those that the kernel gives to outgoing connections and to listeners on port 0."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", 10_000 + secrets.randbelow(20_000)))
            return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_stack(
    data: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = (), *, wait: bool = True
) -> Iterator[EmbeddedStack]:
    """Start a stack in `data` and yield it once it is ready; SIGTERM ends it.

    Of this process's environment, HOLDFAST_* names are left out and `environment` is put over the rest. Raises UpError
    with the runner's output when it does not start, or with the logs when it is not ready within 60 s.
    """
    data.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    settings = {**inherited, **(environment or {}), "HOLDFAST_DATA": str(data), "PORT": str(free_port())}
    log = data / "runner.out"
    (data / "env").unlink(missing_ok=True)  # the file shows that this run is prepared, not an earlier one
    with log.open("wb") as output:
        runner = subprocess.Popen(
            [sys.executable, "-m", "holdfast_server", "--with-parent", *arguments],
            cwd=TOP,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is handled by the caller, which ends the stack afterwards
        )
    try:
        _wait(lambda: (data / "env").exists() or runner.poll() is not None)
        known = read_env(data / "env")
        if "HOLDFAST_API_KEY" not in known:
            raise UpError(f"the stack did not start:\n{log.read_text().strip()}", hint="follow the message above", code="internal")
        stack = EmbeddedStack(known["HOLDFAST_URL"], known["HOLDFAST_API_KEY"], data, runner)
        if wait and not _wait(stack.is_ready):
            message = f"the stack was not ready after {_READY_DEADLINE_S:g} s:\n{stack.logs()}"
            raise UpError(message, hint="see the logs above", code="service_unreachable")
        yield stack
    finally:
        runner.terminate()
        try:
            runner.wait(timeout=_END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            runner.kill()  # the supervisor still ends the other processes
            runner.wait()


def _wait(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + _READY_DEADLINE_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(_PAUSE_S)
    return False
