"""Nothing stays behind: not after deletes, not after kill -9, not after sandboxes that resist."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.node.harness import ENTRY, Node, ask, node, run
from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = [requires("namespaces", "cgroups"), pytest.mark.timeout(120)]


async def test_fifty_come_and_go_without_a_trace(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with node(data, HOLDFAST_NODE_SPARES="0") as made:
        client = await made.client()
        before = census(data)
        for number in range(50):
            box = await client.create(f"box-{number}")
            await run(box["endpoint"], "sh", "-c", "mkdir -p /tmp/a/b/c; echo x > /etc/new; (sleep 100 >/dev/null 2>&1 &); rm -r /var/tmp")
            await client.call("delete", sandbox_id=f"box-{number}")
        assert census(data) == before
    assert census(data)["cgroups"] == 0


async def test_a_clean_stop_takes_everything_along(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = census(data)
    async with node(data) as made:
        clients = [await made.client() for _ in range(5)]
        await asyncio.gather(*(client.create(f"box-{number}") for number, client in enumerate(clients)))
        assert await made.stop() == 0
        assert not (data / "node.sock").exists()
    assert census(data) == before


async def test_resisting_sandboxes_are_deleted(tmp_path: Path) -> None:
    """A fork bomb under way, a tree too deep to walk down, directories without permissions."""
    data = tmp_path / "data"
    async with node(data, HOLDFAST_NODE_SPARES="0") as made:
        client = await made.client()
        before = census(data)
        bomb = await client.create("bomb", pids=256)
        _, writer = await asyncio.open_unix_connection(bomb["endpoint"].removeprefix("unix://"))
        writer.write(b'{"op": "run", "argv": ["sh", "-c", "b() { b | b & }; b; sleep 100"]}\n')
        deep = await client.create("deep")
        script = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nopen('f', 'w')"
        assert (await run(deep["endpoint"], "/usr/bin/python3", "-c", script))["code"] == 0
        locked = await client.create("locked")
        await run(locked["endpoint"], "sh", "-c", "mkdir -p /tmp/x/y; touch /tmp/x/y/z; chmod 0 /tmp/x/y /tmp/x")
        for name in ("bomb", "deep", "locked"):
            assert (await client.call("delete", sandbox_id=name))["existed"]
        writer.close()
        assert census(data) == before


async def test_a_killed_node_takes_its_sandboxes_and_is_swept_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = census(data)
    first = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY})
    first.start()
    client = await first.client()
    for name in ("a", "b"):
        box = await client.create(name, labels={"name": name})
        await run(box["endpoint"], "sh", "-c", "(setsid sleep 100 >/dev/null 2>&1 &) ; exit 0")
    assert census(data)["sandboxed processes"] >= 4
    await first.stop(signal.SIGKILL)
    await until_async(lambda: not census(data)["sandboxed processes"], deadline_s=60, what="the sandboxes to die with their node")
    async with node(data, HOLDFAST_NODE_SPARES="0") as second:
        client = await second.client()
        listed = {box["sandbox_id"]: box for box in (await client.call("list"))["sandboxes"]}
        assert set(listed) == {"a", "b"}
        assert {(box["state"], box["reason"], box["fault"]) for box in listed.values()} == {("failed", "node-lost", "infrastructure")}
        assert listed["a"]["labels"] == {"name": "a"}
        assert census(data) == before
        assert (await client.call("delete", sandbox_id="a"))["existed"]
        assert (await run((await client.create("a"))["endpoint"], "echo", "again"))["out"] == "again\n"
    assert census(data) == before


async def test_a_node_killed_amid_a_hundred_creates_and_deletes_leaves_nothing(tmp_path: Path) -> None:
    """Eight at a time, spares in stock, some disks just being mounted; the next node finds what is left of each."""
    data = tmp_path / "data"
    before = census(data)
    first = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY})
    first.start()
    half, made = asyncio.Event(), 0

    async def one_after_the_other(worker: int) -> None:
        nonlocal made
        with contextlib.suppress(AssertionError, ConnectionError, asyncio.IncompleteReadError, json.JSONDecodeError):
            client = await first.client()
            for number in range(13):
                await client.create(f"box-{worker}-{number}")
                made += 1
                if made >= 50:
                    half.set()
                await client.call("delete", sandbox_id=f"box-{worker}-{number}")

    workers = [asyncio.create_task(one_after_the_other(number)) for number in range(8)]
    await half.wait()
    await first.stop(signal.SIGKILL)
    await asyncio.wait(workers)
    assert 50 <= made < 104
    await until_async(lambda: not census(data)["sandboxed processes"], deadline_s=60, what="the sandboxes to die with their node")
    async with node(data, HOLDFAST_NODE_SPARES="0") as second:
        client = await second.client()
        assert {box["reason"] for box in (await client.call("list"))["sandboxes"]} <= {"node-lost"}
        assert census(data) == before
        await client.create("another")
        await client.call("delete", sandbox_id="another")
        assert census(data) == before
    assert census(data) == before


async def test_sandboxes_outlive_the_zygote(node: Node) -> None:
    client = await node.client()
    box = await client.create("survivor")
    zygotes = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    # the oldest: what it has just forked is called the same for a moment
    zygote = next(int(pid) for pid in zygotes if b"holdfast-zygote" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(zygote, signal.SIGKILL)
    assert (await run(box["endpoint"], "echo", "alive"))["out"] == "alive\n"
    for number in range(6):
        await client.create(f"next-{number}")
    assert await ask(box["endpoint"], "list", path="/workspace") == []


async def test_one_node_per_data_directory(node: Node) -> None:
    second = Node(node.data, {"HOLDFAST_AGENT_ENTRY": ENTRY})
    with pytest.raises(AssertionError, match="another node is using"):
        second.start()
