"""The process runner on small Procfiles, for its tests.

Owns starting it, reading its output and waiting for its end; ``tests/support/stack.py`` runs it on the real Procfile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_server.embed import free_port
from holdfast_server.layout import TOP

from tests.support.stack import processes_of, read_pid
from tests.support.until import until

DEADLINE_S = 60.0


SLEEPER = "sh -c 'echo up; exec sleep 600'"


@dataclass(slots=True)
class Run:
    process: subprocess.Popen[bytes]
    data: Path
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_text(self, needle: str, count: int = 1) -> None:
        until(lambda: self.text().count(needle) >= count, deadline_s=DEADLINE_S, what=lambda: f"{needle!r} in:\n{self.text()}")

    def pid(self, name: str) -> int:
        path = self.data / "run" / f"{name}.pid"
        until(lambda: read_pid(path), deadline_s=DEADLINE_S, what=f"{name} to start")
        return read_pid(path) or self.pid(name)

    def wait_nothing_left(self) -> None:
        until(lambda: not processes_of(self.data), deadline_s=DEADLINE_S, what=lambda: f"{processes_of(self.data)} to end")


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
        process.wait(timeout=DEADLINE_S)
        run.wait_nothing_left()


def refused(tmp_path: Path, procfile: str = f"a: {SLEEPER}\n", **environment: str) -> str:
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
        timeout=DEADLINE_S,
    )
    assert result.returncode == 2, result.stdout + result.stderr
    return result.stderr
