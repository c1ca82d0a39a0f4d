"""Nothing is left on the machine after deletes, after kill -9 and after sandboxes that resist their removal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import glob
import json
import os
import resource
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node import recovery
from session_agent.node.settings import NodeSettings
from tests.node.harness import ENTRY, Node, RefusedError, ask, node, run
from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = [requires("namespaces", "cgroups"), pytest.mark.timeout(300)]


async def test_fifty_creates_and_deletes_leave_nothing(tmp_path: Path) -> None:
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


async def test_a_clean_stop_removes_everything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = census(data)
    async with node(data) as made:
        clients = [await made.client() for _ in range(5)]
        await asyncio.gather(*(client.create(f"box-{number}") for number, client in enumerate(clients)))
        assert await made.stop() == 0
        assert not (data / "node.sock").exists()
    assert census(data) == before


async def test_resisting_sandboxes_are_deleted(tmp_path: Path) -> None:
    """A running fork bomb, a tree too deep to walk down, directories without permissions."""
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


async def test_sandboxes_die_with_a_killed_node_and_the_next_node_cleans_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = census(data)
    first = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY})
    first.start()
    client = await first.client()
    for name in ("a", "b"):
        box = await client.create(name)
        await run(box["endpoint"], "sh", "-c", "(setsid sleep 100 >/dev/null 2>&1 &) ; exit 0")
    assert census(data)["sandboxed processes"] >= 4
    await first.stop(signal.SIGKILL)
    await until_async(lambda: not census(data)["sandboxed processes"], deadline_s=60, what="the sandboxes to die with their node")
    async with node(data, HOLDFAST_NODE_SPARES="0") as second:
        client = await second.client()
        await client.send("watch")
        synced = await client.next_event("sync")
        assert synced["sandboxes"] == []
        assert synced["began_at"] > box["created_at"], "by which the controller knows that they are lost"
        client = await second.client()
        assert census(data) == before
        assert (await run((await client.create("a"))["endpoint"], "echo", "again"))["out"] == "again\n"
    assert census(data) == before


@requires("memory file system")
async def test_the_next_node_cleans_up_after_a_killed_one_without_data_directory(tmp_path: Path) -> None:
    """Files of a living node stay, and those of a killed one that can be started again."""
    dead, restartable, living = (tmp_path / name for name in ("dead", "restartable", "living"))
    for data in (dead, restartable):
        killed = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY, "HOLDFAST_NODE_SPARES": "0"})
        killed.start()
        await (await killed.client()).create("box")
        await killed.stop(signal.SIGKILL)
    left = {data: census(data)["files"] for data in (dead, restartable)}
    async with node(living, HOLDFAST_NODE_SPARES="0") as other:
        await (await other.client()).create("box")
        dead.rename(tmp_path / "moved")
        living.rename(tmp_path / "hidden")
        async with node(tmp_path / "next", HOLDFAST_NODE_SPARES="0"):
            assert left[dead] >= 1
            assert not os.path.lexists(NodeSettings(str(dead), "").run_dir)
            assert census(dead)["cgroups"] == 0
            assert census(restartable)["files"] == left[restartable]
            assert census(living)["files"] == 1
        (tmp_path / "hidden").rename(living)
    async with node(restartable, HOLDFAST_NODE_SPARES="0"):
        assert census(restartable)["files"] == 0
    assert not [data for data in (dead, restartable, living) if os.path.lexists(NodeSettings(str(data), "").run_dir)]


async def test_a_node_killed_amid_a_hundred_creates_and_deletes_leaves_nothing(tmp_path: Path) -> None:
    """Eight workers at a time, with ready spares and disks being mounted; the next node finds everything that is left."""
    data = tmp_path / "data"
    before = census(data)
    first = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY})
    first.start()
    half, made = asyncio.Event(), 0

    async def create_and_delete(worker: int) -> None:
        nonlocal made
        with contextlib.suppress(AssertionError, ConnectionError, asyncio.IncompleteReadError, json.JSONDecodeError):
            client = await first.client()
            for number in range(13):
                await client.create(f"box-{worker}-{number}")
                made += 1
                if made >= 50:
                    half.set()
                await client.call("delete", sandbox_id=f"box-{worker}-{number}")

    workers = [asyncio.create_task(create_and_delete(number)) for number in range(8)]
    await half.wait()
    await first.stop(signal.SIGKILL)
    await asyncio.wait(workers)
    assert 50 <= made < 104
    await until_async(lambda: not census(data)["sandboxed processes"], deadline_s=60, what="the sandboxes to die with their node")
    async with node(data, HOLDFAST_NODE_SPARES="0") as second:
        client = await second.client()
        assert (await client.call("list"))["sandboxes"] == []
        assert census(data) == before
        await client.create("another")
        await client.call("delete", sandbox_id="another")
        assert census(data) == before
    assert census(data) == before


async def test_sandboxes_outlive_the_zygote(node: Node) -> None:
    client = await node.client()
    box = await client.create("survivor")
    zygotes = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    # the oldest: a process that it has just forked has the same name for a moment
    zygote = next(int(pid) for pid in zygotes if b"holdfast-zygote" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(zygote, signal.SIGTERM)  # as a service manager may send it to all processes of the node: the node ends it
    await client.create("meanwhile")
    assert os.path.exists(f"/proc/{zygote}")
    os.kill(zygote, signal.SIGKILL)
    assert (await run(box["endpoint"], "echo", "alive"))["out"] == "alive\n"
    for number in range(6):
        await client.create(f"next-{number}")
    assert await ask(box["endpoint"], "list", path="/workspace") == []


async def test_a_zygote_without_descriptors_leaks_none(tmp_path: Path) -> None:
    """Whichever step of a fork fails first, the descriptors that earlier steps opened are closed."""
    async with node(tmp_path / "data", HOLDFAST_NODE_SPARES="0") as made:
        client = await made.client()
        await client.create("first")  # the zygote keeps the program that makes namespaces
        zygotes = Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()
        zygote = next(int(pid) for pid in zygotes if b"holdfast-zygote" in Path(f"/proc/{pid}/cmdline").read_bytes())
        opened = set(os.listdir(f"/proc/{zygote}/fd"))
        soft, hard = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        first = max(map(int, opened)) + 1
        for limit in range(first, first + 6):
            resource.prlimit(zygote, resource.RLIMIT_NOFILE, (limit, hard))
            with pytest.raises(RefusedError):
                await client.create(f"refused-{limit}")
        await until_async(lambda: set(os.listdir(f"/proc/{zygote}/fd")) == opened, deadline_s=60, what="the zygote to close them")
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (soft, hard))
        await client.create("box")


async def test_one_node_per_data_directory(node: Node) -> None:
    second = Node(node.data, {"HOLDFAST_AGENT_ENTRY": ENTRY})
    with pytest.raises(AssertionError, match="another node is using"):
        second.start()


async def test_one_node_per_socket(node: Node, tmp_path: Path) -> None:
    second = Node(tmp_path / "other", {"HOLDFAST_AGENT_ENTRY": ENTRY, "HOLDFAST_NODE_SOCKET": node.socket})
    with pytest.raises(AssertionError, match="another node listens there"):
        second.start()
    await (await node.client()).create("box")
    lost = Node(tmp_path / "third", {"HOLDFAST_AGENT_ENTRY": ENTRY, "HOLDFAST_NODE_SOCKET": str(tmp_path / "none/node.sock")})
    with pytest.raises(AssertionError, match=r"none/node\.sock cannot be used: No such file or directory"):
        lost.start()


def test_processes_of_an_earlier_node_end_before_its_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = NodeSettings(str(tmp_path / "data"), "")
    recovery.make_directories(config)
    Path(config.sandboxes_dir, "box").mkdir()
    (tmp_path / "groups/box").mkdir(parents=True)
    removed: list[str] = []
    monkeypatch.setattr(recovery, "remove", lambda path: removed.append("processes"))
    monkeypatch.setattr("session_agent.trees.remove", lambda path, *, unlock: removed.append("files"))
    groups: Any = SimpleNamespace(limiting=[SimpleNamespace(base=str(tmp_path / "groups"))])
    recovery.sweep(config, groups)
    assert removed == ["processes", "files"]


@requires("root", "memory file system")
def test_one_node_per_run_directory(tmp_path: Path) -> None:
    """Nodes in containers may share it while their data directories have the same name: the second must not remove the first's files."""
    config = NodeSettings(str(tmp_path / "data"), "")
    recovery.make_directories(config)
    claimed = recovery.claim_run_dir(config)
    assert claimed is not None
    socket = Path(config.agent_socket("box"))
    socket.touch()
    for step in (recovery.claim_run_dir, recovery.sweep_all):
        with pytest.raises(HoldfastError, match="another node is using"):
            step(config)
    assert socket.exists()
    socket.unlink()
    recovery.remove_run_dir(config)
    os.close(claimed)
    assert not os.path.lexists(config.run_dir)


@requires("root", "memory file system")
def test_a_starting_node_finds_its_run_directory_unlocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node that looks for abandoned run directories at that moment must not hold the lock, even for microseconds."""
    starting, sweeping = (NodeSettings(str(tmp_path / name), "") for name in ("starting", "sweeping"))
    for config in (starting, sweeping):
        recovery.make_directories(config)
    os.symlink(starting.data_dir, f"{starting.run_dir}/data")  # of its last run
    is_gone, starts = recovery._is_gone, []

    def start_now(path: str) -> bool:
        if path == starting.data_dir:
            try:
                os.close(recovery.claim_run_dir(starting) or -1)
                starts.append("started")
            except HoldfastError as error:
                starts.append(error.message)
        return is_gone(path)

    monkeypatch.setattr(recovery, "_is_gone", start_now)
    try:
        recovery.sweep_abandoned(sweeping)
    finally:
        for config in (starting, sweeping):
            recovery.remove_run_dir(config)
    assert starts == ["started"]


@requires("root", "memory file system")
@pytest.mark.parametrize("step", ["rename", "unlink", "rmdir"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_run_directory_whose_removal_was_interrupted_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, done: bool
) -> None:
    ending, later = (NodeSettings(str(tmp_path / name), "") for name in ("ending", "later"))
    for config in (ending, later):
        recovery.make_directories(config)
    claimed = recovery.claim_run_dir(ending)
    assert claimed is not None
    real = getattr(os, step)

    def killed(*args: Any, **more: Any) -> None:
        if done:
            real(*args, **more)
        raise OSError(errno.EIO, "the node is killed here")

    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, step, killed)
            with pytest.raises(OSError, match="killed here"):
                recovery.remove_run_dir(ending)
        left = glob.glob(f"{ending.run_dir}*")
        recovery.sweep_abandoned(later)
        assert glob.glob(f"{ending.run_dir}*") == left  # its node has the lock
        os.close(claimed)
        shutil.rmtree(ending.data_dir)
        recovery.sweep_abandoned(later)
        assert glob.glob(f"{ending.run_dir}*") == []
    finally:
        for path in glob.glob(f"{ending.run_dir}*"):
            shutil.rmtree(path)
        recovery.remove_run_dir(later)


@requires("root", "memory file system")
def test_a_link_that_another_user_put_beside_a_run_directory_is_left_alone(tmp_path: Path) -> None:
    config, later = (NodeSettings(str(tmp_path / name), "") for name in ("data", "later"))
    for each in (config, later):
        recovery.make_directories(each)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    planted = f"{config.run_dir}.removed"
    os.symlink(kept, planted)
    try:
        os.close(recovery.claim_run_dir(config) or -1)
        recovery.remove_run_dir(config)
        recovery.sweep_abandoned(later)
        assert glob.glob(f"{config.run_dir}*") == [planted]
        assert (kept / "file").exists()
    finally:
        os.unlink(planted)
        recovery.remove_run_dir(later)
