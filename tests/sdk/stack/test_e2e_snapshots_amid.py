"""Resets, deletes, snapshots and branches while commands run, shells are open and others use what is removed; on a whole service."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from holdfast import AsyncSandbox, AsyncSandboxClient, HoldfastError, ImageNotFoundError, NotFoundError, SandboxLostError, SessionLostError

from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until_async

pytestmark = [pytest.mark.asyncio(loop_scope="module"), requires("namespaces", "root", "redis")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(client: AsyncSandboxClient) -> AsyncIterator[AsyncSandbox]:
    async with client.create_sandbox("host", memory="512m", env={"GIVEN": "1"}) as made:
        yield made


async def _out(sandbox: AsyncSandbox, script: str) -> str:
    return (await sandbox.exec(script)).check().stdout


@pytest.mark.parametrize("to", [None, "amid/prepared"])
async def test_reset_ends_what_runs(client: AsyncSandboxClient, sandbox: AsyncSandbox, to: str | None) -> None:
    """Commands, shells, terminals and the sessions of others end with a reason; nothing of them is in the sandbox afterwards."""
    await sandbox.exec("echo prepared > /tmp/f")
    if to:
        await sandbox.snapshot(to)
    shell = await sandbox.shell("main")
    await shell.run("cd /tmp; V=1; echo changed > f; sleep 600 &")
    running = asyncio.ensure_future(shell.run("while :; do echo x >> /tmp/more; done"))
    process = await sandbox.start("while :; do echo y >> /tmp/more; done")
    terminal = await sandbox.terminal("bash", name="open")
    async with AsyncSandboxClient(client.url, client._options.api_key) as other:
        waiting = asyncio.ensure_future(other.get_sandbox(sandbox.id).exec("sleep 600"))
        await until_async(lambda: _has(sandbox, "/tmp/more"), deadline_s=60, what="the commands to run")
        await sandbox.reset(to=to)
        for ended in (running, process.wait(), terminal.wait()):
            with pytest.raises(SessionLostError) as lost:
                await ended
            assert lost.value.reason == "reset"
        with pytest.raises(HoldfastError):
            await waiting
        assert await _out(sandbox, "cat /tmp/f 2>&1; ls /tmp; echo $GIVEN; cat /proc/[0-9]*/comm | grep -c sleep || true") == (
            "prepared\nf\n1\n0\n" if to else "cat: /tmp/f: No such file or directory\n1\n0\n"
        )
        assert (await (await sandbox.shell("main")).run("pwd; echo $V")).stdout.split("\n")[1] == ""
        assert await _out(other.get_sandbox(sandbox.id), "echo again") == "again\n"
    if to:
        await client.images.remove(to)


async def _has(sandbox: AsyncSandbox, path: str) -> bool:
    return (await sandbox.exec(["test", "-s", path])).exit_code == 0


async def test_images_and_parents_are_removed_in_any_order(client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    """A chain of snapshots of snapshots: what is below is removed first, while sandboxes, branches and pauses use it."""
    await sandbox.exec("mkdir /work; echo 1 > /work/a")
    first = await sandbox.snapshot("amid/first")
    async with client.create_sandbox("amid/first", memory="512m") as child:
        await child.exec("echo 2 > /work/b")
        second = await child.snapshot("amid/second")
        assert second.parent == first.digest
        await client.images.remove("amid/first")
        branches = await child.branch(2)
        await branches[0].pause(to_disk=True)
    await sandbox.delete()
    try:
        assert await _out(branches[1], "cat /work/*") == "1\n2\n"
        again = await branches[1].snapshot("amid/first")
        assert again.parent == first.digest, (
            "the name of a removed image is free; the parent is what the branch's own parent was created from"
        )
        await client.images.remove("amid/second")
        async with client.create_sandbox("amid/first", memory="512m") as last:
            await client.images.remove("amid/first")
            assert await _out(last, "cat /work/*") == "1\n2\n"
            await branches[0].resume()
            assert await _out(branches[0], "cat /work/*") == "1\n2\n"
        with pytest.raises(ImageNotFoundError):
            await client.images.tag("amid/first", "amid/other")
    finally:
        for branch in branches:
            await branch.delete()


async def test_a_name_means_the_snapshot_that_had_it_last(client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    await sandbox.exec("echo 1 > /tmp/f")
    first = await sandbox.snapshot("amid/name")
    async with client.create_sandbox("amid/name", memory="512m") as old:
        await sandbox.exec("echo 2 > /tmp/f")
        second = await sandbox.snapshot("amid/name")
        assert first.digest != second.digest
        assert [one.digest for one in await client.images.list() if one.name == "amid/name"] == [second.digest]
        assert await _out(old, "cat /tmp/f") == "1\n"
        async with client.create_sandbox("amid/name", memory="512m") as new:
            assert await _out(new, "cat /tmp/f") == "2\n"
    with pytest.raises(ImageNotFoundError):
        await client.images.tag(first.digest, "amid/other")
    await client.images.remove("amid/name")


async def test_a_parent_that_is_deleted_meanwhile(client: AsyncSandboxClient) -> None:
    """Either all branches are there, or an error says why not; then none is left."""
    for pause_s in (0.0, 0.02, 0.1):
        parent = await client.create_sandbox("host", memory="256m", labels={"amid": "delete"})
        await parent.exec("echo kept > /tmp/f")
        branching = asyncio.ensure_future(_branch(parent))
        await asyncio.sleep(pause_s)
        async with AsyncSandboxClient(client.url, client._options.api_key) as other:
            await other.get_sandbox(parent.id).delete()
        try:
            branches = await branching
        except (NotFoundError, SandboxLostError, SessionLostError):
            branches = []
        for branch in branches:
            assert await _out(branch, "cat /tmp/f") == "kept\n"
            await branch.delete()

        async def is_empty() -> bool:
            return await client.list_sandboxes({"amid": "delete"}) == []

        await until_async(is_empty, deadline_s=60, what="all branches to be gone")


async def _branch(parent: AsyncSandbox) -> list[AsyncSandbox]:
    return list(await parent.branch(3))


async def test_nothing_of_another_owner_can_be_named(
    client: AsyncSandboxClient, sandbox: AsyncSandbox, stack: Stack, tmp_path: Path
) -> None:
    key = f"hf_{secrets.token_hex(16)}"
    with (stack.data / "keys").open("a") as file:
        file.write(f"amid-stranger {hashlib.sha256(key.encode()).hexdigest()}\n")
    await sandbox.exec("echo secret > /tmp/secret")
    image = await sandbox.snapshot("amid/mine")
    async with AsyncSandboxClient(stack.url, key) as stranger:
        assert {one.name for one in await stranger.images.list()} & {image.name, image.digest} == set()
        other = stranger.get_sandbox(sandbox.id)
        for call in (other.snapshot("amid/theirs"), other.branch(), other.pause(), other.pause(to_disk=True), other.resume()):
            with pytest.raises(NotFoundError):
                await call
        for name in (image.name, image.digest):
            for use in (stranger.images.tag(name, "amid/theirs"), stranger.images.save(name, tmp_path / "saved.tar")):
                with pytest.raises(ImageNotFoundError):
                    await use
            async with stranger.create_sandbox(name, memory="256m") as made:  # this service uses the machine's files for unknown images
                assert (await made.exec(["test", "-e", "/tmp/secret"])).exit_code == 1
            with pytest.raises(ImageNotFoundError):
                await stranger.images.remove(name)
    assert image in await client.images.list()
    await client.images.remove(image.name)
