"""A full data folder: writers get ENOSPC, what was written stays, reserved disks keep their room, and creates are refused."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from session_agent.node.kernel.disks import missing_requirement
from tests.node.harness import Node, RefusedError, run
from tests.node.harness import node as running_node
from tests.support.requires import requires

pytestmark = requires("namespaces", "root")
FOLDER_BYTES = 768 << 20

WRITE = """
import json, os
block, written, refused = os.urandom(1 << 16), 0, None
try:
    with open("/workspace/big", "wb", buffering=0) as file:
        try:
            while True:
                written += file.write(block)
        finally:
            os.fsync(file)
except OSError as error:
    refused = error.errno
print(json.dumps({"written": written, "refused": refused, "block": block[:64].hex()}))
"""

COUNT = """
import json, os, sys
written, head = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
fd = os.open("/workspace/big", os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
lost = sum(os.pread(fd, 64, offset) != head for offset in range(0, written // 65536 * 65536, 65536))
print(json.dumps(lost))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder on a small file system of its own."""
    if reason := missing_requirement(str(tmp_path)):
        pytest.skip(f"sandboxes have no disks of their own on this machine: {reason}")
    image, place = tmp_path / "image", tmp_path / "small"
    place.mkdir()
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, FOLDER_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield place / "data"
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def write_out(node: Node) -> None:
    """Write the cached pages of every disk of the node's sandboxes to the files behind them."""
    libc = ctypes.CDLL(None)
    for name in os.listdir(f"/proc/{node.pid}/fd"):
        try:
            status = os.stat(f"/proc/{node.pid}/fd/{name}")
            if os.major(status.st_dev) == 7:
                fd = os.open(f"/proc/{node.pid}/fd/{name}", os.O_RDONLY)
                libc.syncfs(fd)
                os.close(fd)
        except OSError:
            continue


def free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


async def written(endpoint: str) -> dict[str, int]:
    done = await run(endpoint, "/usr/bin/python3", "-c", WRITE)
    assert done["out"], done
    result: dict[str, int] = json.loads(done["out"])
    return result


async def lost_blocks(endpoint: str, said: dict[str, int]) -> int:
    if not said["written"]:
        return 0
    done = await run(endpoint, "/usr/bin/python3", "-c", COUNT, str(said["written"]), str(said["block"]))
    assert done["out"], done
    count: int = json.loads(done["out"])
    return count


async def test_what_was_written_stays_when_all_sandboxes_fill_the_folder(folder: Path) -> None:
    async with running_node(folder, HOLDFAST_NODE_SPARES="0", HOLDFAST_DEFAULT_DISK="256Mi") as made:
        client = await made.client()
        boxes = [await client.create(f"box-{number}") for number in range(6)]
        said = await asyncio.gather(*(written(box["endpoint"]) for box in boxes))
        write_out(made)
        assert [await lost_blocks(box["endpoint"], one) for box, one in zip(boxes, said, strict=True)] == [0] * 6
        assert {one["refused"] for one in said} == {28}, "every writer gets ENOSPC"
        assert sum(one["written"] for one in said) > FOLDER_BYTES // 2, "most of the folder can be used"


async def test_a_size_that_was_asked_for_is_reserved(folder: Path) -> None:
    async with running_node(folder, HOLDFAST_NODE_SPARES="0", HOLDFAST_DEFAULT_DISK="256Mi") as made:
        client = await made.client()
        asked = await client.create("asked", disk=300 << 20)
        greedy = [await client.create(f"box-{number}") for number in range(4)]
        await asyncio.gather(*(written(box["endpoint"]) for box in greedy))
        script = (
            "dd if=/dev/urandom of=/workspace/a bs=1M count=250 && rm /workspace/a && dd if=/dev/urandom of=/workspace/a bs=1M count=250"
        )
        done = await run(asked["endpoint"], "sh", "-c", script)
        assert done["code"] == 0, done["err"]
        write_out(made)
        sums = [(await run(asked["endpoint"], "sha256sum", "/workspace/a"))["out"]]
        fresh = "import os; fd = os.open('/workspace/a', 0); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)"
        await run(asked["endpoint"], "/usr/bin/python3", "-c", fresh)
        sums.append((await run(asked["endpoint"], "sha256sum", "/workspace/a"))["out"])
        assert sums[0] == sums[1]
        await client.call("delete", sandbox_id="asked")


async def test_creates_are_refused_when_there_is_no_room(folder: Path) -> None:
    async with running_node(folder, HOLDFAST_NODE_SPARES="0", HOLDFAST_DEFAULT_DISK="256Mi") as made:
        client = await made.client()
        with pytest.raises(RefusedError, match="no room for a disk of 2048 MiB") as refused:
            await client.create("too-large", disk=2 << 30)
        assert refused.value.code == "no_capacity"
        assert refused.value.error["hint"]
        await client.create("asked", disk=128 << 20)
        boxes = [await client.create(f"box-{number}") for number in range(4)]
        await asyncio.gather(*(written(box["endpoint"]) for box in boxes))
        with pytest.raises(RefusedError, match="no room for another sandbox"):
            await client.create("one-more")
        with pytest.raises(RefusedError, match="no room for a disk"):
            await client.create("one-more", disk=64 << 20)
        stats = await client.call("stats")
        assert stats["disk_left"] < FOLDER_BYTES // 20
        assert stats["disk_free"] > 0
        checks = {check["name"]: check for check in (await client.call("doctor"))["checks"]}
        assert not checks["disk room"]["ok"]
        assert "creates are refused" in checks["disk room"]["detail"]
        await client.call("delete", sandbox_id="box-0")
        await client.create("one-more")


async def test_a_sandbox_ends_if_its_allocated_blocks_cannot_be_stored(folder: Path) -> None:
    """Blocks that a sandbox allocates without writing are promised to it. If others take the room, its later writes would be lost."""
    async with running_node(folder, HOLDFAST_NODE_SPARES="0", HOLDFAST_DEFAULT_DISK="512Mi") as made:
        client, watch = await made.client(), await made.client()
        await watch.send("watch")
        box = await client.create("allocates")
        done = await run(box["endpoint"], "fallocate", "-l", "400M", "/workspace/a")
        assert done["code"] == 0, done["err"]
        assert (await client.call("stats"))["disk_promised"] > 350 << 20
        with (folder / "other").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free(folder) - (40 << 20))
        event = await watch.next_event("failed")
        assert (event["sandbox_id"], event["reason"], event["fault"]) == ("allocates", "disk-full", "infrastructure")


async def test_a_disk_is_not_limited_while_there_is_room(tmp_path: Path) -> None:
    if reason := missing_requirement(str(tmp_path)):
        pytest.skip(f"sandboxes have no disks of their own on this machine: {reason}")
    async with running_node(tmp_path / "data", HOLDFAST_NODE_SPARES="0", HOLDFAST_DEFAULT_DISK="256Mi") as made:
        box = await (await made.client()).create("usual")
        output = (await run(box["endpoint"], "df", "-B1M", "--output=avail", "/workspace"))["out"]
        assert int(output.split()[1]) > 220
