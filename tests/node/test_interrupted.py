"""A node that is killed, or whose disk is full, amid changes of a sandbox: what it was told is whole or absent, and nothing is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.filesystems import mounted
from tests.node.harness import Node, NodeClient, RefusedError, run
from tests.node.harness import node as running_node
from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.until import until, until_async

pytestmark = requires("namespaces", "root")

MOMENTS_S = (0.01, 0.06)
MORE_MOMENTS_S = (0.0, 0.004, 0.03, 0.1, 0.25)
WRITE = "mkdir /data && head -c 40M /dev/urandom > /data/f && sha256sum /data/f > /data/sum && sync"
CHECK = "sha256sum -c /data/sum"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", HOLDFAST_NODE_SPARES="0") as running:
        yield running


async def _sh(box: dict[str, Any], script: str) -> str:
    result = await run(box["endpoint"], "sh", "-c", script)
    assert result["code"] == 0, result
    return str(result["out"])


async def _kill(node: Node) -> None:
    assert node.process
    node.close_clients()
    node.process.kill()
    await asyncio.to_thread(node.process.wait)


async def _listed(client: NodeClient) -> list[str]:
    return [one["sandbox_id"] for one in (await client.call("list"))["sandboxes"]]


async def _continues(client: NodeClient, sandbox_id: str = "parent") -> None:
    """It is on disk with all of its files, and goes once more."""
    (row,) = (await client.call("list"))["sandboxes"]
    assert row["paused"] == "disk"
    await client.call("resume", sandbox_id=sandbox_id)
    assert await _sh(row, CHECK) == "/data/f: OK\n"
    await client.call("delete", sandbox_id=sandbox_id)


async def _begin(client: NodeClient, change: str) -> None:
    """Send the requests of a change of the sandbox ``parent`` without waiting for their answers."""
    if change == "reset":
        await client.send("delete", sandbox_id="parent")
        request = {"incarnation": "1" * 16, "token": "ab" * 32, "cpu": 1, "memory": 256 << 20, "env": {}, "labels": {}, "owner": "test"}
        await client.send("create", sandbox_id="parent", image="host", **request)
    else:
        await client.send(change, sandbox_id="parent", **({"name": "kept"} if change == "snapshot" else {}))


@pytest.mark.parametrize("moments_s", [MOMENTS_S, pytest.param(MORE_MOMENTS_S, marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", ["hold", "snapshot", "suspend", "resume", "reset", "pause"])
async def test_killed_amid_a_change(node: Node, change: str, moments_s: tuple[float, ...]) -> None:
    for moment_s in moments_s:
        client, changer = await node.client(), await node.client()
        await _sh(await client.create("parent"), WRITE)
        if change == "resume":
            await client.call("suspend", sandbox_id="parent")
        await _begin(changer, change)
        await asyncio.sleep(moment_s)
        await _kill(node)
        node.start()
        client = await node.client()
        found, images = await _listed(client), [one["name"] for one in (await client.call("images"))["images"]]
        if change in ("suspend", "resume") and found:
            assert images == ["host"]
            await _continues(client)
        elif change == "snapshot" and len(images) > 1:
            assert images == ["host", "kept"]
            assert await _sh(await client.create("child", image="kept"), CHECK) == "/data/f: OK\n"
            await client.call("image_remove", name="kept")
            await client.call("delete", sandbox_id="child")
        else:
            assert (found, images) == ([], ["host"])
        _nothing_is_left(node.data)


def _nothing_is_left(data: Path) -> None:
    stored = {name: os.listdir(data / "images" / name) for name in ("layers", "index", "tmp")}
    assert stored == {"layers": [], "index": [], "tmp": []}
    assert not (data / "suspended").exists() or os.listdir(data / "suspended") == []
    until(lambda: not any(census(data).values()), deadline_s=60, what=lambda: f"nothing left behind: {census(data)}")


async def test_a_resume_loses_nothing_before_the_sandbox_runs(node: Node) -> None:
    """The node is killed while it waits for the process that starts sandboxes."""
    client = await node.client()
    await _sh(await client.create("parent"), WRITE)
    await client.call("suspend", sandbox_id="parent")
    (zygote,) = (int(pid) for pid in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split())
    os.kill(zygote, 19)
    await client.send("resume", sandbox_id="parent")
    await asyncio.sleep(0.3)
    await _kill(node)
    node.start()
    await _continues(await node.client())
    _nothing_is_left(node.data)


@pytest.mark.parametrize("kind", ["ext4", pytest.param("xfs", marks=requires("reflink file systems"))])
async def test_a_full_disk_refuses_resume_and_reset_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    with mounted(tmp_path / "small", kind, 1 << 30) as folder:
        async with running_node(folder / "data", HOLDFAST_NODE_SPARES="0") as node:
            client = await node.client()
            await _sh(await client.create("parent"), WRITE)
            other = await client.create("other")
            await client.call("suspend", sandbox_id="parent")
            with (folder / "filler").open("wb") as filler:
                state = os.statvfs(folder)
                os.posix_fallocate(filler.fileno(), 0, state.f_bavail * state.f_frsize - (8 << 20))
            await until_async(lambda: _is_refused(client, "new"), deadline_s=30, what="the node to see that the disk is full")
            for _ in range(2):
                with pytest.raises(RefusedError, match="no_capacity"):
                    await client.call("resume", sandbox_id="parent")
            await _kill(node)
            node.start()
            client = await node.client()
            with pytest.raises(RefusedError, match="no_capacity"):
                await client.call("resume", sandbox_id="parent")
            os.truncate(folder / "filler", 0)
            await until_async(lambda: _is_made(client), deadline_s=30, what="room")
            assert other["endpoint"]
            await client.call("delete", sandbox_id="new")
            await _continues(client)
            _nothing_is_left(node.data)


async def _is_refused(client: NodeClient, name: str) -> bool:
    try:
        await client.create(name)
    except RefusedError as error:
        return str(error.code) == "no_capacity"  # before the node has measured it, the disk has no room for the first files
    await client.call("delete", sandbox_id=name)
    return False


async def _is_made(client: NodeClient) -> bool:
    try:
        await client.create("new")
    except RefusedError:
        return False
    return True
