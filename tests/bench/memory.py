"""P8 and P9: memory, as the kernel counts it.

Owns the reading of proportional set sizes, where a page that n processes share counts as 1/n for each. A sandbox's
processes are those in its pid namespace. `Growth` is the peak growth of one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from holdfast import AsyncSandboxClient

from tests.bench.figures import Figure, at_most, percentile
from tests.bench.workers import workers

_MIB = 1024 * 1024
_KIB = 1024
_ATTACH_AT_ONCE = 16


def pss_bytes(pid: int) -> int:
    """The proportional set size of a process, swap included."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:"))) * 1024


def rss_bytes(pid: int) -> int:
    """The resident set of a process."""
    return _status_bytes(pid, "VmRSS")


def _status_bytes(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


def in_pid_namespace(link: str) -> list[int]:
    """Processes of a pid namespace, which is named as the kernel shows it: `pid:[4026531836]`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns" / "pid") == link:
                    found.append(int(entry.name))
    return found


class Growth:
    """The peak growth of a process since the creation of this object, by the kernel's high-water mark of its resident set."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # set the mark to the current resident set
        self._before = rss_bytes(pid)

    def peak_bytes(self) -> int:
        return max(0, _status_bytes(self._pid, "VmHWM") - self._before)


async def p8(client: AsyncSandboxClient, count: int = 20) -> Figure:
    """Idle sandboxes with one shell each that has run a command."""
    async with contextlib.AsyncExitStack() as stack:
        links = []
        for _ in range(count):
            sandbox = await stack.enter_async_context(await client.create_sandbox("host", cpu="1", memory="512Mi"))
            shell = await sandbox.shell()
            links.append((await shell.run("readlink /proc/self/ns/pid")).stdout.strip())
        sizes = [sum(map(pss_bytes, in_pid_namespace(link))) for link in links]
    assert len(set(links)) == count, links
    value = percentile(sizes, 0.5) / _MIB
    how = f"median of {count} idle sandboxes with one shell each: proportional set size of every process in the pid namespace"
    return Figure("P8", "memory of an idle sandbox", value, "MiB", None, None, "≤ 12 MiB", "6 MiB", 0 < value <= 12, how)


async def p9(gateway_pid: int, sandbox_ids: list[str], environment: Mapping[str, str], count: int = 500) -> Figure:
    """The growth of the gateway while `count` sessions are attached and idle."""
    async with workers("idle", (50,), sandbox_ids, environment):
        pass  # the first sessions make the gateway load modules: not counted
    before = pss_bytes(gateway_pid)
    async with workers("idle", (count,), sandbox_ids, environment):
        grown = (pss_bytes(gateway_pid) - before) / count / _KIB
    how = f"growth of the gateway's proportional set size with {count} idle sessions, after 50 that came and went"
    return Figure("P9", "gateway memory per idle session", grown, "KiB", None, None, "≤ 80 KiB", "40 KiB", grown <= 80, how)


async def p9e(gateway_pid: int, url: str, key: str, session_kib: float, count: int = 1000) -> Figure:
    """The growth of the gateway while `count` streams of events are open and idle, beside that of a session (``p9``, in the same run)."""
    async with _streams(url, key, 50):
        pass  # as in ``p9``
    before = pss_bytes(gateway_pid)
    async with _streams(url, key, count):
        grown = (pss_bytes(gateway_pid) - before) / count / _KIB
    how = f"growth of the gateway's proportional set size with {count} idle streams of events; floor: that of an idle session"
    return at_most("P9e", "gateway memory per idle stream of events", grown, "KiB", session_kib, 2, None, how)


@contextlib.asynccontextmanager
async def _streams(url: str, key: str, count: int) -> AsyncIterator[None]:
    """So many streams of events, each of which has begun."""
    where = urlsplit(url)
    head = f"GET /events HTTP/1.1\r\nHost: {where.netloc}\r\nX-API-Key: {key}\r\nAccept: text/event-stream\r\n\r\n".encode()
    async with contextlib.AsyncExitStack() as stack:
        gate = asyncio.Semaphore(_ATTACH_AT_ONCE)

        async def open_one() -> None:
            async with gate:
                reader, writer = await asyncio.open_connection(where.hostname, where.port)
                stack.callback(writer.close)
                writer.write(head)
                await reader.readuntil(b"event: position")

        await asyncio.gather(*(open_one() for _ in range(count)))
        yield
