"""Pre-created sandboxes: they are adopted, replaced and released, and clients do not notice one that dies."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from session_agent.node.spares import Spares
from tests.node.harness import Node, NodeClient, node, run
from tests.node.leftovers import census, first_process, sandboxed
from tests.node.ociimages import directory, oci_layout, tar
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("namespaces", "cgroups")


async def until_spares(client: NodeClient, count: int) -> None:
    async def reached() -> bool:
        return bool((await client.call("stats"))["spares"] == count)

    await until_async(reached, deadline_s=60, what=f"{count} spares")


async def test_a_create_adopts_a_spare_and_it_is_replaced(node: Node) -> None:
    client = await node.client()
    await client.create("first")
    await until_spares(client, 4)
    before = sandboxed(node.data)
    await client.create("second", env={"WHO": "second"})
    await until_spares(client, 4)
    assert first_process(node.data, "second") in before


async def test_an_adopted_spare_is_like_any_other_sandbox(node: Node) -> None:
    client = await node.client()
    await client.create("first")
    await until_spares(client, 4)
    box = await client.create("second", env={"WHO": "me"}, memory=64 << 20, pids=99)
    done = await run(
        box["endpoint"], "bash", "-c", "hostname; cat /etc/hostname; echo $WHO; cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max"
    )
    assert done["out"].split() == ["second", "second", "me", *(["99"] if done["out"].endswith("99\n") else [])]
    if "pids" in (await client.call("stats"))["limits"]:
        assert done["out"].endswith("99\n")


async def test_a_spare_that_dies_is_replaced(node: Node) -> None:
    client = await node.client()
    await client.create("first")
    await until_spares(client, 4)
    spares = [pid for pid in sandboxed(node.data) if b"zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(spares) == 4
    for pid in spares:
        os.kill(pid, signal.SIGKILL)
    box = await client.create("second")
    assert (await run(box["endpoint"], "echo", "fine"))["out"] == "fine\n"
    await until_spares(client, 4)
    await client.call("delete", sandbox_id="first")
    await client.call("delete", sandbox_id="second")
    await until_async(lambda: len(sandboxed(node.data)) == 4, deadline_s=60, what="four sandboxes, the spares")


async def test_after_a_burst_there_are_more_spares_than_the_minimum(node: Node) -> None:
    """The number depends on the rate of creates (demand.py); the node reports it in its stats and in the doctor's list."""
    clients = [await node.client() for _ in range(12)]
    await asyncio.gather(*(client.create(f"box-{number}") for number, client in enumerate(clients)))
    stats: dict[str, int] = {}

    async def filled() -> bool:
        stats.update(await clients[0].call("spares"))
        return stats["spares"] == stats["spares_wanted"]

    await until_async(filled, deadline_s=60, what="as many spares as are wanted")
    assert 4 < stats["spares"] <= min(12, stats["spares_most"])
    checks = {check["name"]: check["detail"] for check in (await clients[0].call("doctor"))["checks"]}
    assert " wanted by recent creates are ready" in checks["spares"]
    before, names = sandboxed(node.data), [f"more-{number}" for number in range(stats["spares"])]
    await asyncio.gather(*(client.create(name) for name, client in zip(names, clients, strict=False)))
    assert len([name for name in names if first_process(node.data, name) in before]) > 4, "the second burst adopted them"


async def test_spares_follow_the_images_in_use_and_release_removed_ones(tmp_path: Path) -> None:
    async with node(tmp_path / "data") as made:
        client = await made.client()
        for name in ("one", "two", "three"):
            layout = oci_layout(tmp_path / name, [tar([directory(name)])])
            await client.call("image_import", path=str(layout), name=name)
            await client.create(f"box-{name}", image=name)
        await until_spares(client, 8)
        for name in ("one", "two", "three"):
            await client.call("delete", sandbox_id=f"box-{name}")
            await client.call("image_remove", name=name)
        await until_spares(client, 0)
        assert census(tmp_path / "data")["sandboxed processes"] == 0
        assert os.listdir(tmp_path / "data/images/layers") == []


async def test_a_stop_waits_until_a_spare_that_has_ended_is_discarded() -> None:
    begun, go_on, destroyed = asyncio.Event(), asyncio.Event(), list[Any]()

    async def destroy(container: Any) -> None:
        begun.set()
        await go_on.wait()
        destroyed.append(container)

    spares, dead = Spares(cast(Any, SimpleNamespace(destroy=destroy)), 1), cast(Any, SimpleNamespace(on_end=None))
    spares.start()
    spares._dead.append(dead)
    spares._changed.set()
    await begun.wait()
    stopping = asyncio.create_task(spares.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()
    go_on.set()
    await stopping
    assert destroyed == [dead]
