"""`python -m tests.bench.copies`: what a copy of a sandbox costs by the size of what it has written, beside ``cp -a`` and ``tar`` of it.

Owns this table: time and bytes on the disk of each method, on data folders on ext4 (files are copied) and on XFS (files share blocks). Both
are file systems of their own in files beside each other, so that nothing else changes what is in use. Needs root, mkfs.ext4 and mkfs.xfs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_server.embed import running_stack

from tests.bench import figures
from tests.node.filesystems import mounted

_KINDS = {"ext4": "copies", "xfs": "shares blocks"}
_SIZES_MIB = (1, 10, 100, 1000)
_BRANCHES = (1, 16)
_ROUNDS = 3
_DISK_BYTES = 16 << 30
"""Of each file system; the files behind them are sparse."""
_SAME, _MOST_LOOKS, _LOOK_S = 4, 300, 0.1
_NOISE_BYTES = 64 << 10
"""Logs of the service grow meanwhile."""
_WRITE = "mkdir -p /work && cd /work && for i in $(seq {size}); do head -c 1M /dev/urandom > f$i; done && sync"


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one file system, medians of ``_ROUNDS`` calls: the time in ms, and by how many MiB what is in use grew."""

    file_system: str
    size_mib: int
    method: str
    ms: float
    disk_mib: float


async def measure(kind: str, data: Path, sizes: list[int]) -> list[Row]:
    """The rows of one file system, which is mounted above *data*."""
    rows: list[Row] = []
    with running_stack(data, {"HOLDFAST_NODE_SPARES": "0", "HOLDFAST_DEFAULT_DISK": "8Gi"}) as stack:
        async with AsyncSandboxClient(stack.url, stack.key) as client:
            for size in sizes:
                async with await client.create_sandbox("host", cpu="2", memory="512Mi") as parent:
                    (await parent.exec(_WRITE.format(size=size), timeout=600)).check()
                    for method, step in _methods(client, parent, data, size).items():
                        took, disk = zip(*[await step() for _ in range(_ROUNDS)], strict=True)
                        rows.append(Row(kind, size, method, statistics.median(took) * 1e3, statistics.median(disk) / (1 << 20)))
                        print(_line(rows[-1]), flush=True)
    return rows


Step = Callable[[], Awaitable[tuple[float, float]]]
"""Makes one copy and removes it: seconds, and bytes that it took on the disk."""


def _methods(client: AsyncSandboxClient, parent: AsyncSandbox, data: Path, size: int) -> dict[str, Step]:
    async def snapshot() -> tuple[float, float]:
        used, began = await _settled(data), time.perf_counter()
        image = await parent.snapshot()
        found = time.perf_counter() - began, _used(data) - used
        await client.images.remove(image.name)
        return found

    def branch(count: int) -> Step:
        async def step() -> tuple[float, float]:
            used, began = await _settled(data), time.perf_counter()
            async with await parent.branch(count):
                return time.perf_counter() - began, _used(data) - used

        return step

    def program(*words: str) -> Step:
        """On as many files of the same size, directly in the file system."""

        async def step() -> tuple[float, float]:
            with tempfile.TemporaryDirectory(dir=data.parent) as folder:
                source = Path(folder) / "source"
                source.mkdir()
                for number in range(size):
                    (source / str(number)).write_bytes(os.urandom(1 << 20))
                used, began = await _settled(data), time.perf_counter()
                await asyncio.to_thread(subprocess.run, words, cwd=folder, check=True)
                return time.perf_counter() - began, _used(data) - used

        return step

    found = {"snapshot": snapshot} | {f"branch({count})": branch(count) for count in _BRANCHES}
    return found | {"cp -a": program("cp", "-a", "source", "copy"), "tar": program("tar", "cf", "copy.tar", "source")}


async def _settled(data: Path) -> float:
    """The same once what was deleted before is gone, which file systems and the node do behind their answers."""
    found = [_used(data)]
    while len(found) < _SAME or max(found[-_SAME:]) - min(found[-_SAME:]) > _NOISE_BYTES:
        if len(found) > _MOST_LOOKS:
            raise TimeoutError(f"what is in use in {data} does not settle: {found[-_SAME:]}")
        await asyncio.sleep(_LOOK_S)
        found.append(_used(data))
    return found[-1]


def _used(data: Path) -> float:
    """Bytes in use on the file system of the data folder, when all has been written."""
    subprocess.run(["sync", "-f", str(data)], check=True)
    status = os.statvfs(data)
    return float((status.f_blocks - status.f_bfree) * status.f_frsize)


def _line(row: Row) -> str:
    return f"{row.file_system:<5} {row.size_mib:>5} MiB  {row.method:<11} {row.ms:>8.1f} ms {row.disk_mib:>8.1f} MiB"


def table(rows: list[Row]) -> str:
    """Markdown: one line for each file system and method, the sizes beside each other as `ms / MiB on the disk`."""
    sizes = sorted({row.size_mib for row in rows})
    lines = ["| data folder | method | " + " | ".join(f"{size} MiB" for size in sizes) + " |", "|---|---" + "|---" * len(sizes) + "|"]
    for kind, method in dict.fromkeys((row.file_system, row.method) for row in rows):
        own = {row.size_mib: row for row in rows if (row.file_system, row.method) == (kind, method)}
        cells = (f"{own[size].ms:.0f} / {own[size].disk_mib:.1f}" if size in own else "" for size in sizes)
        lines.append(f"| {kind} ({_KINDS[kind]}) | `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make copies", description="Time and disk of copies of a sandbox, by the size of what it has written."
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_SIZES_MIB), metavar="MIB", help="(%(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=list(_KINDS), default=list(_KINDS), help="file systems (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/copies.json"), help="where to write (%(default)s)")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hf-bench-copies-") as folder:
        for kind in options.kinds:
            with mounted(Path(folder) / kind, kind, _DISK_BYTES) as place:
                rows += asyncio.run(measure(kind, place / "data", options.sizes))
    print(f"\n{figures.machine()['cores']} cores, load average {os.getloadavg()[0]:.0f}; ms / MiB on the disk\n\n{table(rows)}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
