"""Comparison with peers: `python -m tests.bench.peers` times one command with each peer and with Holdfast, in alternating stretches.

Owns the list of peers, the pairs that are compared, and the table. The peers from PyPI are installed in a separate environment
(infra/scripts/peers_venv) and run in separate processes (`peer_process`). The peers run the command on the bare machine, without
isolation; Holdfast runs it in a sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import httpx
from holdfast import AsyncSandboxClient
from holdfast_server.embed import EmbeddedStack, free_port, running_stack

from tests.bench import figures

_STRETCH = 10
_ONE_OFF = ["bash", "-c", "true"]
_READY_S = 120.0

Sampler = Callable[[int], Awaitable[list[float]]]


@dataclass(frozen=True, slots=True)
class Peer:
    """`what`: the figure that it is compared with, "shell" or "one-off" or "REST"."""

    name: str
    what: str
    process: str


PEERS = (
    Peer("SWE-ReX, local session", "shell", "rex-session"),
    Peer("SWE-ReX, session through its server", "shell", "rex-session-remote"),
    Peer("SWE-ReX, local execute", "one-off", "rex-execute"),
    Peer("Inspect, local provider", "one-off", "inspect"),
    Peer("SWE-ReX, execute through its server", "REST", "rex-execute-remote"),
    Peer("subprocess.run behind one Starlette route", "REST", ""),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Milliseconds, p50; `ratio` is the peer's time divided by Holdfast's."""

    peer: str
    what: str
    peer_ms: float
    holdfast_ms: float
    ratio: float
    samples: int


class PeerProcess:
    """A peer that is ready."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, python: Path, name: str, home: Path) -> Self:
        """`home` is an empty folder: its shells read no start-up files. Raises RuntimeError when it cannot run its first command."""
        script = Path(__file__).with_name("peer_process.py")
        process = await asyncio.create_subprocess_exec(
            *(str(python), str(script), name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": str(home)},
            limit=1 << 20,
        )
        peer = cls(process)
        if await peer._line() != "ready":
            assert process.stderr is not None
            raise RuntimeError(f"{name} did not start: {(await process.stderr.read()).decode()[-2000:]}")
        return peer

    async def sample(self, count: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n".encode())
        answer: list[float] = json.loads(await self._line())
        return answer

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 20)
            return
        self._process.kill()
        await self._process.wait()

    async def _line(self) -> str:
        """The next line that belongs to the protocol: peers print other lines too."""
        assert self._process.stdout is not None
        while line := await asyncio.wait_for(self._process.stdout.readline(), _READY_S):
            if line.startswith((b"ready", b"[")):
                return line.decode().strip()
        return ""


async def _timed(count: int, command: Callable[[], Awaitable[object]]) -> list[float]:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        await command()
        seconds.append(time.perf_counter() - started)
    return seconds


@contextlib.asynccontextmanager
async def _plain_http() -> AsyncIterator[Sampler]:
    port = free_port()
    with subprocess.Popen([sys.executable, "-m", "tests.bench.plain_http", str(port)], stdin=subprocess.DEVNULL) as server:
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

                async def command() -> None:
                    answer = await client.post("/exec", json={"command": _ONE_OFF})
                    assert answer.json()["exit_code"] == 0, answer.text

                end = time.monotonic() + _READY_S
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        await command()
                        break
                    assert time.monotonic() < end, "the plain service does not answer"
                    await asyncio.sleep(0.05)
                yield lambda count: _timed(count, command)
        finally:
            server.terminate()


@contextlib.asynccontextmanager
async def _ours(stack: EmbeddedStack) -> AsyncIterator[dict[str, Sampler]]:
    async with contextlib.AsyncExitStack() as scope:
        client = await scope.enter_async_context(AsyncSandboxClient(stack.url, stack.key))
        sandbox = await scope.enter_async_context(await client.create_sandbox("host", cpu="2", memory="1Gi"))
        rest = await scope.enter_async_context(httpx.AsyncClient(base_url=stack.url, headers={"X-API-Key": stack.key}, trust_env=False))
        shell = await sandbox.shell()

        async def over_rest() -> None:
            answer = await rest.post(f"/sandboxes/{sandbox.id}/exec", json={"command": _ONE_OFF, "wait": True})
            assert answer.json()["exit_code"] == 0, answer.text

        yield {
            "shell": lambda count: _timed(count, lambda: shell.run("true")),
            "one-off": lambda count: _timed(count, lambda: sandbox.exec(_ONE_OFF)),
            "REST": lambda count: _timed(count, over_rest),
        }


async def compare(stack: EmbeddedStack, python: Path, home: Path, count: int) -> list[Comparison]:
    """Compare every peer with Holdfast, one after the other."""
    taken: list[Comparison] = []
    async with _ours(stack) as ours:
        for peer in PEERS:
            async with contextlib.AsyncExitStack() as scope:
                if peer.process:
                    process = await PeerProcess.start(python, peer.process, home)
                    scope.push_async_callback(process.close)
                    theirs: Sampler = process.sample
                else:
                    theirs = await scope.enter_async_context(_plain_http())
                there: list[float] = []
                here: list[float] = []
                await theirs(_STRETCH), await ours[peer.what](_STRETCH)
                while len(there) < count:
                    there += await theirs(_STRETCH)
                    here += await ours[peer.what](_STRETCH)
            slow, fast = figures.percentile(there, 0.5) * 1e3, figures.percentile(here, 0.5) * 1e3
            taken.append(Comparison(peer.name, peer.what, slow, fast, slow / fast, len(there)))
            print(f"  {_row(taken[-1])}", flush=True)
    return taken


def _row(one: Comparison) -> str:
    times = f"{figures.shown(one.peer_ms):>8} ms  Holdfast {figures.shown(one.holdfast_ms):>8} ms"
    return f"{one.what:8} {one.peer:42} {times}  {one.ratio:6.2f}× Holdfast's"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description="One command at peers and here, in turn.")
    parser.add_argument("--python", type=Path, required=True, help="the interpreter of the peers' environment (infra/scripts/peers_venv)")
    parser.add_argument("--count", type=int, default=100, help="commands of each (default: 100)")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench/peers.json"), help="where to write (default: build/bench/peers.json)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hf-peers-") as folder, running_stack(Path(folder) / "data") as stack:
        home = Path(folder) / "home"
        home.mkdir()
        taken = asyncio.run(compare(stack, options.python.absolute(), home, options.count))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": figures.machine(), "load_1_min": os.getloadavg()[0], "peers": [asdict(one) for one in taken]}
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
