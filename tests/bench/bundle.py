"""P14: from starting the injected agent to its first answer, bundle included."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from holdfast_wire.bundle import agent_command

from session_agent.bundle.build import build
from tests.bench.figures import Figure, at_most, percentile, quartiles

_WARM_UP = 3
_DEADLINE_S = 20.0
_PAUSE_S = 0.0003


def p14(count: int = 50) -> Figure:
    """Build a bundle, then measure in turn the bare interpreter and the whole agent, each on its own socket."""
    figures: list[float] = []
    under: list[float] = []
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as folder:
        command = agent_command(str(build(Path(folder) / "bundle").folder))
        interpreter = command[: command.index("-I")]
        for number in range(count + _WARM_UP):
            started = time.perf_counter()
            subprocess.run([*interpreter, "-I", "-c", "pass"], env={}, check=True)
            under.append(time.perf_counter() - started)
            figures.append(_start(command, Path(folder) / f"{number}.sock"))
    value, floor = (percentile(samples[_WARM_UP:], 0.5) * 1e3 for samples in (figures, under))
    how = f"p50 of {count}, from starting the container's command to its answer on /healthz; floor: the bundle's `python -I -c pass`"
    return at_most("P14", "agent start, bundle included", value, "ms", floor, 5, None, how, quartiles(figures[_WARM_UP:], 1e3))


def _start(command: list[str], address: Path) -> float:
    environment = {"HOLDFAST_AGENT_LISTEN": f"unix://{address}", "HOLDFAST_AGENT_TOKEN": "bench"}
    started = time.perf_counter()
    agent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        while not _answers(address):
            assert agent.poll() is None, f"the agent ended with {agent.returncode}"
            assert time.perf_counter() - started < _DEADLINE_S, "the agent does not answer"
            time.sleep(_PAUSE_S)  # an error of the figure, but far shorter than what is measured
        return time.perf_counter() - started
    finally:
        agent.kill()
        agent.wait()


def _answers(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(str(address))
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: agent\r\n\r\n")
        return connection.recv(12) == b"HTTP/1.1 200"
    return False
