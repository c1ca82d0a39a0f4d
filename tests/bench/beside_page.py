"""PE1, PE5, PE6: what P1r, P5 and P6 measure, while the page is open and streams of events are idle, compared with none of them.

Owns the pairs: a round with the page and the streams and one without, in alternating order, each of the same commands. The page is its
stream of events with the activity of all sandboxes, as ``live.js`` opens it, read by a process of its own, as a browser is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

from holdfast import AsyncSandbox, AsyncSandboxClient, AsyncShell

from tests.bench.figures import Figure, percentile, quartiles

_PAIRS = 20
_PAGE = "/events?since=3600&pulls=true&activity=true&usage_s=5"
_IDLE = 10
"""Streams of events besides the page's."""
_T = 2.093
"""Of Student's distribution with 19 degrees of freedom, for an interval of 95 %."""
_READER = """
import selectors, socket, sys
host, port, key, *paths = sys.argv[1:]
waiting, ready = selectors.DefaultSelector(), 0
for path in paths:
    made = socket.create_connection((host, int(port)), 60)
    made.sendall(f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\nX-API-Key: {key}\\r\\n\\r\\n".encode())
    answer = b""
    while b"\\nid: " not in answer:
        data = made.recv(65536)
        assert data, answer
        answer += data
    made.setblocking(False)
    waiting.register(made, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in waiting.select():
        if not key.fileobj.recv(65536):
            sys.exit("a stream has ended")
"""


async def figures(client: AsyncSandboxClient, sandbox: AsyncSandbox, shell: AsyncShell, url: str, key: str) -> list[Figure]:
    """The three figures. Their ratio is the time with the page to that without."""

    async def run() -> None:
        result = await shell.run("true")
        assert result.exit_code == 0, result

    async def create() -> None:
        made = await client.create_sandbox("host", cpu="2", memory="512Mi")
        result = await made.exec("true")
        assert result.exit_code == 0, result
        await made.delete()

    async with AsyncSandboxClient(url, key, transport="rest") as rest:
        over_rest = rest.get_sandbox(sandbox.id)

        async def execute() -> None:
            result = await over_rest.exec(["bash", "-c", "true"])
            assert result.exit_code == 0, result

        return [
            await _pairs("PE1", "`true` in a living shell, page open, p50", run, 100, url, key),
            await _pairs("PE5", "one-off over REST, page open, p50", execute, 40, url, key),
            await _pairs("PE6", "create, first command, delete, page open, p50", create, 5, url, key),
        ]


async def _pairs(number: str, name: str, one: Callable[[], Awaitable[None]], count: int, url: str, key: str) -> Figure:
    beside: list[float] = []
    alone: list[float] = []
    await _round(one, count)
    for pair in range(_PAIRS):
        for opened in (True, False) if pair % 2 else (False, True):
            async with _page(url, key) if opened else contextlib.nullcontext():
                (beside if opened else alone).append(await _round(one, count))
    return judged(number, name, beside, alone, f"{count} in each round")


def judged(number: str, name: str, beside: list[float], alone: list[float], rounds: str) -> Figure:
    """The figure of pairs of rounds, each the p50 of its samples in seconds; met if the 95 % interval of the ratios includes 1 or less."""
    logs = [math.log(one / other) for one, other in zip(beside, alone, strict=True)]
    mean, width = statistics.fmean(logs), _T * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - width), math.exp(mean + width)
    how = (
        f"{len(logs)} pairs of rounds, {rounds}, with and without the page's stream of events (activity of all sandboxes, a sample of use "
        f"each 5 s) and {_IDLE} idle streams; geometric mean of the ratios, 95 % interval {low:.3f} to {high:.3f}"
    )
    value, floor = percentile(beside, 0.5) * 1e6, percentile(alone, 0.5) * 1e6
    return Figure(number, name, value, "µs", floor, math.exp(mean), "≤ 1× within 95 %", "", low <= 1, how, quartiles(beside, 1e6))


async def _round(one: Callable[[], Awaitable[None]], count: int) -> float:
    samples = []
    for _ in range(count):
        started = time.perf_counter()
        await one()
        samples.append(time.perf_counter() - started)
    return percentile(samples, 0.5)


@contextlib.asynccontextmanager
async def _page(url: str, key: str) -> AsyncIterator[None]:
    """The streams are open, and a process reads them."""
    where = urlsplit(url)
    words = (str(where.hostname), str(where.port), key, _PAGE, *["/events"] * _IDLE)
    reader = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", _READER, *words, stdout=asyncio.subprocess.PIPE)
    assert reader.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await reader.stdout.readline() == b"ready\n"
        yield
        assert reader.returncode is None, "a stream of events has ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            reader.kill()
        await reader.wait()
