"""The id of a deleted sandbox is free once its processes are gone, while its files are still being discarded."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.node.harness import Node, NodeClient, RefusedError, run
from tests.node.harness import node as running_node
from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("namespaces", "root")

_MANY_FILES = """
import os
for directory in range(100):
    os.makedirs(f"/tree/{directory}")
    for file in range(120):
        open(f"/tree/{directory}/{file}", "w").close()
"""
"""Removing them takes much longer than a create."""


def _is(data: Path, before: dict[str, int]) -> bool:
    return census(data) == before


async def _slow_to_discard(client: NodeClient, image: str = "host") -> None:
    box = await client.create("box", image=image)
    assert (await run(box["endpoint"], "/usr/bin/python3", "-c", _MANY_FILES))["code"] == 0


async def _delete(node: Node) -> NodeClient:
    """Begin the delete; the answer comes to this client."""
    client = await node.client()
    await client.send("delete", sandbox_id="box")
    return client


async def _create_again(client: NodeClient) -> None:
    async def refused() -> str:
        try:
            await client.create("box", incarnation="1" * 16)
        except RefusedError as error:
            return str(error.code)
        return ""

    async with asyncio.timeout(60):
        while code := await refused():
            assert code == "sandbox_exists"
            await asyncio.sleep(0.001)


def _folders(data: Path) -> list[str]:
    return sorted(os.listdir(data / "sandboxes"))


async def test_an_id_is_free_before_the_files_are_discarded(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running_node(data, HOLDFAST_NODE_SPARES="0", HOLDFAST_DEFAULT_DISK="none") as node:
        client = await node.client()
        for last in (False, False, True):  # where nothing runs the create for long, the files are gone before it has ended
            await _slow_to_discard(client)
            watcher = await node.client()
            await watcher.send("watch")
            await watcher.next_event("sync")
            (old,) = _folders(data)
            deleting = await _delete(node)
            await _create_again(client)
            if old in _folders(data):
                break
            assert not last, "the create did not wait for the old files"
            await deleting.receive()
            await client.call("delete", sandbox_id="box")
        assert (await watcher.receive())["event"]["type"] == "gone", "and is reported after the end of the old sandbox"
        assert (await watcher.receive())["event"]["type"] == "ready"
        assert (await deleting.receive())["existed"]
        assert old not in _folders(data), "the delete was answered when nothing was left"
        (box,) = (await client.call("list"))["sandboxes"]
        assert (await run(box["endpoint"], "test", "!", "-e", "/tree"))["code"] == 0


async def test_a_create_waits_for_the_end_of_the_sandbox_that_has_the_id(tmp_path: Path) -> None:
    """It does what needs no id meanwhile, and is neither refused nor mixed up with another one for the same id."""
    async with running_node(tmp_path / "data", HOLDFAST_NODE_SPARES="0") as node:
        client, watcher = await node.client(), await node.client()
        before = census(node.data)
        old = await client.create("box")
        await watcher.send("watch")
        await watcher.next_event("sync")
        request = {"sandbox_id": "box", "image": "host", "owner": "test", "token": "ab" * 32, "cpu": 1, "memory": 256 << 20}
        deleting = await client.send("delete", sandbox_id="box", incarnation="0" * 16)
        creating = await client.send("create", **request, incarnation="1" * 16)
        refused = await client.send("create", **request, incarnation="2" * 16)
        answers = {answer["id"]: answer for answer in [await client.receive() for _ in range(3)]}
        assert answers[refused]["error"]["code"] == "sandbox_exists"
        assert answers[deleting]["existed"]
        assert answers[creating]["endpoint"] == old["endpoint"]
        assert (await run(old["endpoint"], "true"))["code"] == 0, "the socket is that of the new one"
        events = [(await watcher.receive())["event"] for _ in range(2)]
        assert [(event["type"], event["incarnation"]) for event in events] == [("gone", "0" * 16), ("ready", "1" * 16)]
        assert not (await client.call("delete", sandbox_id="box", incarnation="0" * 16))["existed"]
        assert (await client.call("delete", sandbox_id="box", incarnation="1" * 16))["existed"]
        assert (await client.call("list"))["sandboxes"] == []
        await until_async(lambda: _is(node.data, before), deadline_s=60, what="nothing to be left")


async def test_layers_stay_until_the_files_are_discarded(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running_node(data, HOLDFAST_NODE_SPARES="0", HOLDFAST_DEFAULT_DISK="none") as node:
        client = await node.client()
        await client.create("origin")
        image = (await client.call("snapshot", sandbox_id="origin"))["image"]["digest"]
        await client.call("delete", sandbox_id="origin")
        await _slow_to_discard(client, image)
        await client.call("image_remove", name=image)
        (old,) = _folders(data)
        deleting = await _delete(node)
        await _create_again(client)
        stayed = len(os.listdir(data / "images/layers"))
        assert old in _folders(data)
        assert stayed == 1
        await deleting.receive()
        await until_async(lambda: not os.listdir(data / "images/layers"), deadline_s=60, what="the layer of the removed image to go")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_node_that_ends_meanwhile_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    async with running_node(data, HOLDFAST_NODE_SPARES="0", HOLDFAST_DEFAULT_DISK="none") as node:
        before = census(data)
        await _slow_to_discard(await node.client())
        await _delete(node)
        await _create_again(await node.client())
        assert len(_folders(data)) == 2
        code = await node.stop(number)
        if number == signal.SIGTERM:
            assert code == 0
            assert _folders(data) == []
        else:
            await until_async(lambda: not census(data)["sandboxed processes"], deadline_s=60, what="the sandboxes to die with their node")
        node.start()
        await node.client()
        await until_async(lambda: _is(data, before), deadline_s=60, what="nothing to be left")
