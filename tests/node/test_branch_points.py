"""What branches are created from, on a real node: it leaves nothing behind, and a full disk refuses it and harms nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.filesystems import mounted
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


@pytest.fixture(
    params=[
        "by copy of blocks",
        "by copy of files",
        pytest.param("xfs", marks=requires("reflink file systems")),
        pytest.param("btrfs", marks=requires("reflink file systems")),
    ]
)
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A data folder, and on file systems whose files can share blocks."""
    if "by copy" in request.param:
        yield tmp_path / "data"
        return
    with mounted(tmp_path / "disk", request.param, 4 << 30) as folder:
        yield folder / "data"


async def _method(client: NodeClient) -> str:
    (check,) = [one for one in (await client.call("doctor"))["checks"] if one["name"] == "snapshots"]
    return "clone" if "clone" in check["detail"] else "copy"


async def test_layers_go_with_the_last_branch_in_any_order(data: Path, request: pytest.FixtureRequest) -> None:
    by_files = "by copy of files" in request.node.name
    async with running_node(data, HOLDFAST_NODE_SPARES="0", HOLDFAST_NODE_ID_MAPPING="off" if by_files else "on") as node:
        client, empty = await node.client(), _stored(data)
        assert (await _method(client) == "clone") != ("by copy" in request.node.name)
        cloned = not by_files
        parent = await client.create("parent", env={"A": "1"})
        await _sh(parent, "mkdir /data && echo one > /data/f")
        point = await _hold(client)
        boxes = {name: await client.create(name, branch_point=point, env={"B": "2"}) for name in ("b1", "b2")}
        assert await _sh(boxes["b1"], "cat /data/f; echo $A$B") == "one\n12\n"
        assert [one["name"] for one in (await client.call("images"))["images"]] == ["host"], "it is no image of users"
        await client.call("release", branch_point=point)
        with pytest.raises(RefusedError, match="image_not_found"):
            await client.create("late", branch_point=point)
        assert len(_stored(data)["layers"]) == (0 if cloned else 1)
        assert _clones(node) == (1 if cloned else 0)
        second = await _hold(client, "b1")
        boxes["b3"] = await client.create("b3", branch_point=second)
        await client.call("release", branch_point=second)
        for gone, left in (("parent", "b3"), ("b1", "b3"), ("b3", "b2")):
            await client.call("delete", sandbox_id=gone)
            assert await _sh(boxes[left], "cat /data/f") == "one\n"
        await client.call("delete", sandbox_id="b2")
        assert _stored(data) == empty
        assert _clones(node) == 0


def _clones(node: Node) -> int:
    """How many clones the node has open: it closes the device of a disk as soon as that is mounted."""
    return sum(os.readlink(link).startswith("/dev/loop") for link in Path(f"/proc/{node.pid}/fd").iterdir())


@requires("reflink file systems")
async def test_an_image_of_a_branch_has_what_its_parent_wrote(tmp_path: Path) -> None:
    """What is only a clone until then becomes a layer of the store, and outlives the node; so does a branch that is paused to disk."""
    with mounted(tmp_path / "disk", "xfs", 4 << 30) as folder:
        async with running_node(folder / "data", HOLDFAST_NODE_SPARES="0") as node:
            client = await node.client()
            parent = await client.create("parent")
            await _sh(parent, "mkdir /data && echo one > /data/one && rm -r /srv && chown 1234:70000 /data/one")
            point = await _hold(client)
            child = await client.create("child", branch_point=point)
            await client.call("release", branch_point=point)
            await _sh(child, "echo two > /data/two; stat -c %u:%g /data/one; test ! -e /srv")
            image = (await client.call("snapshot", sandbox_id="child"))["image"]["digest"]
            again = (await client.call("snapshot", sandbox_id="child"))["image"]
            assert (again["digest"], again["parent"]) == (image, "host"), "the same content, of a sandbox of host"
            await client.call("suspend", sandbox_id="child")
            assert _clones(node) == 0, "the clone is not needed any more"
            await _kill(node)
            node.start()
            client = await node.client()
            other = await client.create("other", image=image)
            await client.call("resume", sandbox_id="child")
            for box in (other, child):
                assert (
                    await _sh(box, "cat /data/one /data/two; stat -c %u:%g /data/one; ls -d /srv || echo none")
                    == "one\ntwo\n1234:70000\nnone\n"
                )


async def test_a_branch_point_ends_with_the_connection_of_its_gateway(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node:
        client, other, empty = await node.client(), await node.client(), _stored(tmp_path / "data")
        big = await client.create("big")
        await _sh(big, "head -c 64M /dev/urandom > /tmp/f")
        await client.create("parent")
        for name in ("big", "parent"):
            await _hold(other, name)
        assert len(_stored(tmp_path / "data")["layers"]) == 1, "the files of a large one are copied"
        assert _clones(node) == 1, "of a small one the blocks of its disk"
        await other.send("hold", sandbox_id="parent")
        other.close()

        async def are_gone() -> bool:
            return _stored(tmp_path / "data") == empty and _clones(node) == 0

        await until_async(are_gone, deadline_s=60, what="all three to be released")


async def test_two_gateways_change_one_sandbox_at_once(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node:
        client, empty = await node.client(), _stored(tmp_path / "data")
        box = await client.create("parent")
        await _sh(box, "echo kept > /tmp/f")
        for _ in range(3):
            gateways = [(await node.client(), op) for op in ("hold", "suspend", "pause", "snapshot", "hold", "suspend")]
            answers = await asyncio.gather(*(_code(gateway, op) for gateway, op in gateways))
            assert set(answers) <= {"", "sandbox_paused"}, answers
            assert answers[1] == answers[5] == "", "the same change twice is one change"
            await asyncio.gather(*(gateway.call("resume", sandbox_id="parent") for gateway, _ in gateways))
            assert await _sh(box, "cat /tmp/f") == "kept\n"
            for gateway, _ in gateways:
                gateway.close()
        for image in (await client.call("images"))["images"]:
            if image["name"] != "host":
                await client.call("image_remove", name=image["name"])
        await client.call("delete", sandbox_id="parent")
        await until_async(lambda: _stored(tmp_path / "data") == empty, deadline_s=60, what="everything to be removed")


async def _code(client: NodeClient, operation: str) -> str:
    try:
        await client.call(operation, sandbox_id="parent")
    except RefusedError as error:
        return str(error.code)
    return ""


@pytest.mark.parametrize("when", ["during the copy", "before the release"])
async def test_a_node_that_is_killed_leaves_nothing(tmp_path: Path, when: str) -> None:
    async with running_node(tmp_path / "data") as node:
        client, empty = await node.client(), _stored(tmp_path / "data")
        parent = await client.create("parent")
        await _sh(parent, "mkdir /data && head -c 256M /dev/urandom > /data/f")  # so much that the copy is not over at once
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


@pytest.fixture(params=["ext4", pytest.param("xfs", marks=requires("reflink file systems"))])
def small_folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A data folder on a file system of its own, of 1 GiB."""
    with mounted(tmp_path / "small", request.param, 1 << 30) as folder:
        yield folder


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
        os.truncate(small_folder / "filler", 0)  # at once, which XFS does not do for a file that is removed
        child = await client.create("child", branch_point=await _hold(client))
        assert await _sh(child, "sha256sum -c /data/sum") == "/data/f: OK\n"
