"""P18: branches and resets of a sandbox with a repository and a living shell beside creates of its image.

Owns these measurements; ``copies`` has what a copy costs by its size.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from holdfast import AsyncSandboxClient
from holdfast_server.embed import running_stack

from tests.bench.figures import Figure, at_most, quartiles

_COUNT = 64
_ROUNDS = 5
_RESETS = 25
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
