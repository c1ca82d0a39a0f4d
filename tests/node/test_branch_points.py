"""What branches are created from, on a real node: it leaves nothing behind, and a full disk refuses it and harms nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.harness import Node, NodeClient, RefusedError, run
from tests.node.harness import node as running_node
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("namespaces", "root")


async def _sh(box: dict[str, Any], script: str) -> str:
    result = await run(box["endpoint"], "sh", "-c", script)
    assert result["code"] == 0, result
    return str(result["out"])


def _stored(data: Path) -> dict[str, list[str]]:
    return {name: sorted(os.listdir(data / "images" / name)) for name in ("layers", "index", "tmp")}


async def _hold(client: NodeClient, sandbox_id: str = "parent") -> str:
    return str((await client.call("hold", sandbox_id=sandbox_id))["branch_point"])


async def test_layers_go_with_the_last_branch_in_any_order(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node:
        client, empty = await node.client(), _stored(tmp_path / "data")
        parent = await client.create("parent", env={"A": "1"})
        await _sh(parent, "mkdir /data && echo one > /data/f")
        point = await _hold(client)
        boxes = {name: await client.create(name, branch_point=point, env={"B": "2"}) for name in ("b1", "b2")}
        assert await _sh(boxes["b1"], "cat /data/f; echo $A$B") == "one\n12\n"
        assert [one["name"] for one in (await client.call("images"))["images"]] == ["host"], "it is no image of users"
        await client.call("release", branch_point=point)
        with pytest.raises(RefusedError, match="image_not_found"):
            await client.create("late", branch_point=point)
        assert len(_stored(tmp_path / "data")["layers"]) == 1
        second = await _hold(client, "b1")
        boxes["b3"] = await client.create("b3", branch_point=second)
        await client.call("release", branch_point=second)
        for gone, left in (("parent", "b3"), ("b1", "b3"), ("b3", "b2")):
            await client.call("delete", sandbox_id=gone)
            assert await _sh(boxes[left], "cat /data/f") == "one\n"
        await client.call("delete", sandbox_id="b2")
        assert _stored(tmp_path / "data") == empty


@pytest.mark.parametrize("when", ["during the copy", "before the release"])
async def test_a_node_that_is_killed_leaves_nothing(tmp_path: Path, when: str) -> None:
    async with running_node(tmp_path / "data") as node:
        client, empty = await node.client(), _stored(tmp_path / "data")
        parent = await client.create("parent")
        await _sh(parent, "mkdir /data && head -c 64M /dev/urandom > /data/f")
        if when == "during the copy":
            await client.send("hold", sandbox_id="parent")
            await until_async(lambda: _stored(tmp_path / "data")["tmp"], deadline_s=60.0, what="the copy to begin")
        else:
            await client.create("branch", branch_point=await _hold(client))
        await _kill(node)
        node.start()
        client = await node.client()
        assert (await client.call("list"))["sandboxes"] == []
        assert _stored(tmp_path / "data") == empty
        await client.create("parent")
        await client.call("delete", sandbox_id="parent")


async def _kill(node: Node) -> None:
    assert node.process
    node.close_clients()
    node.process.kill()
    await asyncio.to_thread(node.process.wait)


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder on a file system of its own, of 1 GiB."""
    image, folder = tmp_path / "image", tmp_path / "small"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(1 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_refuses_and_harms_nothing(small_folder: Path) -> None:
    async with running_node(small_folder / "data") as node:
        client = await node.client()
        parent, other = await client.create("parent"), await client.create("other")
        await _sh(parent, "mkdir /data && head -c 100M /dev/urandom > /data/f && sha256sum /data/f > /data/sum && sync")
        empty = _stored(small_folder / "data")
        state = os.statvfs(small_folder)
        with (small_folder / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, state.f_bavail * state.f_frsize - (60 << 20))
        for operation in ("hold", "suspend", "snapshot"):
            with pytest.raises(RefusedError, match="no_space"):
                await client.call(operation, sandbox_id="parent")
            assert _stored(small_folder / "data") == empty
        assert await _sh(parent, "sha256sum -c /data/sum; echo more > /data/g") == "/data/f: OK\n"
        await _sh(other, "echo fine > /tmp/f")
        os.unlink(small_folder / "filler")
        child = await client.create("child", branch_point=await _hold(client))
        assert await _sh(child, "sha256sum -c /data/sum") == "/data/f: OK\n"
