"""P18: branches and resets of a sandbox with a repository and a living shell beside creates of its image; what a copy costs by its size.

Owns these measurements. The table takes each size and method in turn, beside ``cp -a`` and ``tar`` of as many files on the same file
system.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_server.embed import running_stack

from tests.bench.figures import Figure, at_most, quartiles

_COUNT = 64
_ROUNDS = 5
_RESETS = 25
_SIZES_MIB = (1, 16, 100)
_REPOSITORY = (
    "mkdir -p /work && cd /work && git init -q . && git config user.email a@b && git config user.name a && "
    "for i in $(seq 300); do mkdir -p d$((i % 20)) && seq $i > d$((i % 20))/f$i; done && git add . && git commit -qm first"
)
_CHANGE = "cp -a /work /other 2>/dev/null || { mkdir /other && seq 9999 > /other/file; }"


async def p18() -> list[Figure]:
    """On a service of its own without spares, so that the creates are cold as branches and resets are."""
    with (
        tempfile.TemporaryDirectory(prefix="hf-bench-branches-") as folder,
        running_stack(Path(folder), {"HOLDFAST_NODE_SPARES": "0"}) as stack,
    ):
        async with AsyncSandboxClient(stack.url, stack.key) as client:
            return [await _branches(client), *await _resets(client)]


async def _branches(client: AsyncSandboxClient) -> Figure:
    branched: list[float] = []
    created: list[float] = []
    async with await client.create_sandbox("host", cpu="2", memory="256Mi") as parent:
        shell = await parent.shell("agent")
        assert (await shell.run(f"{_REPOSITORY}; V=1; f() {{ echo $V; }}")).exit_code == 0
        for _ in range(_ROUNDS):
            created.append(await _cold(client))
            began = time.perf_counter()
            branches = await parent.branch(_COUNT)
            branched.append(time.perf_counter() - began)
            assert (await (await branches[_COUNT - 1].shell("agent")).run("pwd; f")).stdout == "/work\n1\n"
            await asyncio.gather(*(branch.delete() for branch in branches))
    how = (
        f"median of {_ROUNDS} rounds; floor: {_COUNT} cold creates of its image at once, in turn; the parent has a repository of 300 files"
    )
    value, floor = statistics.median(branched), statistics.median(created)
    return at_most("P18", f"{_COUNT} branches, all ready", value, "s", floor, 2, 1.2, how, quartiles(branched))


async def _resets(client: AsyncSandboxClient) -> list[Figure]:
    """P18r: back to the image. P18s: back to a snapshot of the repository. The floor of each is a create of the same image, in turn."""
    found = []
    async with await client.create_sandbox("host", cpu="2", memory="256Mi") as sandbox:
        assert (await (await sandbox.shell("agent")).run(_REPOSITORY)).exit_code == 0
        snapshot = (await sandbox.snapshot()).name
        for number, image, what in (("P18r", "host", "the image"), ("P18s", snapshot, "a snapshot")):
            reset, created = [], []
            for _ in range(_RESETS):
                began = time.perf_counter()
                other = await client.create_sandbox(image, cpu="2", memory="256Mi")
                created.append(time.perf_counter() - began)
                await other.delete()
                assert (await (await sandbox.shell("agent")).run(_CHANGE)).exit_code == 0
                began = time.perf_counter()
                await sandbox.reset(to=image)
                reset.append(time.perf_counter() - began)
            assert (await sandbox.exec("test ! -e /other")).exit_code == 0
            how = f"median of {_RESETS}; floor: a cold create of the same image, in turn; a repository of 300 files is discarded"
            value, floor = statistics.median(reset) * 1e3, statistics.median(created) * 1e3
            found.append(at_most(number, f"reset to {what}", value, "ms", floor, 2, None, how, quartiles(reset, 1e3)))
    await client.images.remove(snapshot)
    return found


async def _cold(client: AsyncSandboxClient) -> float:
    began = time.perf_counter()
    made = await asyncio.gather(*(client.create_sandbox("host", cpu="2", memory="256Mi") for _ in range(_COUNT)))
    took_s = time.perf_counter() - began
    await asyncio.gather(*(one.delete() for one in made))
    return took_s


async def table(client: AsyncSandboxClient, data: Path) -> str:
    """Milliseconds, and bytes on the disk, of each method for each size of what was written."""
    rows = [f"{'written':>9} {'method':<12} {'ms':>8} {'disk, MiB':>10}"]
    for size in _SIZES_MIB:
        async with await client.create_sandbox("host", cpu="2", memory="512Mi") as parent:
            await parent.exec(f"mkdir /work && cd /work && for i in $(seq {size}); do head -c 1M /dev/urandom > f$i; done && sync")
            for method, (took_s, disk) in (await _methods(client, parent, data, size)).items():
                rows.append(f"{size:>5} MiB {method:<12} {took_s * 1e3:>8.1f} {disk / (1 << 20):>10.2f}")
    return "\n".join(rows)


async def _methods(client: AsyncSandboxClient, parent: AsyncSandbox, data: Path, size: int) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    used, began = _used(data), time.perf_counter()
    image = await parent.snapshot()
    found["snapshot"] = time.perf_counter() - began, _used(data) - used
    await client.images.remove(image.name)
    for count in (1, 16):
        used, began = _used(data), time.perf_counter()
        async with parent.branch(count):
            found[f"branch({count})"] = time.perf_counter() - began, _used(data) - used
    with tempfile.TemporaryDirectory(dir=data) as folder:
        source = Path(folder) / "source"
        source.mkdir()
        for number in range(size):
            (source / str(number)).write_bytes(os.urandom(1 << 20))
        for method, words in (("cp -a", ["cp", "-a", "source", "copy"]), ("tar", ["tar", "cf", "copy.tar", "source"])):
            used, began = _used(data), time.perf_counter()
            await asyncio.to_thread(subprocess.run, words, cwd=folder, check=True)
            found[method] = time.perf_counter() - began, _used(data) - used
    return found


def _used(data: Path) -> float:
    """Bytes in use on the file system of the data folder; other programs may change it meanwhile."""
    os.sync()
    return float(shutil.disk_usage(data).used)
