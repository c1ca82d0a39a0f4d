"""Snapshots, branches and pauses on a whole service: what a branch has of its parent, what is listed as lost, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from holdfast import (
    AsyncBranches,
    AsyncSandbox,
    AsyncSandboxClient,
    ConflictError,
    ImageNotFoundError,
    InvalidArgumentError,
    SandboxNotFoundError,
    ServiceUnavailableError,
    SessionLostError,
    UnsupportedError,
    WaitTimeoutError,
)
from holdfast_server.embed import running_stack

from tests.node.harness import NodeClient
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
    async with client.create_sandbox("host", memory="512m", env={"GIVEN": "at the create"}, labels={"a": "b"}) as made:
        yield made


async def _out(sandbox: AsyncSandbox, script: str) -> str:
    return (await sandbox.exec(script)).check().stdout


async def test_a_snapshot_is_an_image_of_its_owner(client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    await sandbox.exec("mkdir /work && echo one > /work/f")
    image = await sandbox.snapshot("e2e/work:1")
    assert (image.name, image.shared, image.parent) == ("e2e/work:1", False, "host")
    assert image.digest.startswith("sha256:")
    assert image in await client.images.list()
    await sandbox.exec("echo two > /work/f")
    async with client.create_sandbox(image.name, memory="512m") as other:
        assert await _out(other, "cat /work/f") == "one\n"
    tagged = await client.images.tag(image.name, "e2e/again")
    assert (tagged.digest, tagged.parent) == (image.digest, "host")
    await client.images.remove("e2e/work:1")
    async with client.create_sandbox("e2e/again", memory="512m") as other:
        await client.images.remove("e2e/again")
        assert await _out(other, "cat /work/f") == "one\n", "an image may be removed while sandboxes use it"
    with pytest.raises(ImageNotFoundError):
        await client.images.tag("e2e/again", "e2e/more")
    unnamed = await sandbox.snapshot()
    assert unnamed.name == unnamed.digest
    await client.images.remove(unnamed.name)
    with pytest.raises(InvalidArgumentError):
        await sandbox.snapshot("..")


async def test_a_branch_has_files_variables_and_shells(sandbox: AsyncSandbox) -> None:
    shell = await sandbox.shell("main")
    await shell.run('mkdir -p /work && cd /work && V=kept && f() { echo "f $V"; } && echo parent > file')
    async with sandbox.branch(3, turn=20) as branches:
        assert branches.lost == []
        infos = [await branch.info() for branch in branches]
        assert {(info.parent, info.turn, info.image, info.status) for info in infos} == {(sandbox.id, 20, "host", "ready")}
        assert all(info.labels == {"a": "b"} for info in infos)
        for number, branch in enumerate(branches):
            other = await branch.shell("main")
            result = await other.run("pwd; f; cat file; echo $GIVEN; cat /etc/hostname; echo $HOSTNAME")
            assert result.stdout.split("\n")[:6] == ["/work", "f kept", "parent", "at the create", branch.id, branch.id]
            await other.run(f"echo {number} > file; V={number}; touch only-{number}")
        assert [await _out(branch, "cat /work/file; ls /work") for branch in branches] == [f"{n}\nfile\nonly-{n}\n" for n in range(3)]
        assert (await shell.run("f; cat file; ls")).stdout == "f kept\nparent\nfile\n", "nothing of a branch reaches its parent"
        await branches[1].delete()
        await sandbox.delete()
        assert await _out(branches[2], "cat /work/file") == "2\n", "branches outlive their parent and siblings"
    with pytest.raises(SandboxNotFoundError):
        await sandbox.client.get_sandbox(branches[0].id + "x").refresh()


async def test_a_branch_of_a_branch(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("echo 0 > /tmp/depth")
    async with sandbox.branch() as first, first[0].branch() as second:
        await second[0].exec("echo 2 > /tmp/depth")
        async with second[0].branch(2) as third:
            assert [await _out(one, "cat /tmp/depth") for one in (sandbox, first[0], *third)] == ["0\n", "0\n", "2\n", "2\n"]
            assert (await third[0].info()).parent == second[0].id


async def test_what_does_not_continue_is_listed(sandbox: AsyncSandbox) -> None:
    shell = await sandbox.shell("main")
    await shell.run("sleep 985 & exec 9</etc/passwd")
    server = await sandbox.start(["sleep", "986"])
    terminal = await sandbox.terminal(["cat"], name="editor")
    await terminal.write(b"half-typed")
    async with sandbox.branch() as branches:
        found = {(one.kind, one.name.partition(" ")[2] if one.kind == "process" else one.name) for one in branches.lost}
        assert found >= {
            ("command", server.command_id),
            ("terminal", "editor"),
            ("process", "sleep 985"),
            ("descriptor", "main: 9 -> /etc/passwd"),
        }
        assert "sleep" not in await _out(branches[0], "cat /proc/[0-9]*/comm")


WORKSPACE = """
mkdir -p /work && cd /work && git init -q . && git config user.email a@b && git config user.name a
echo one > file && git add file && git commit -qm first && echo two > file && echo new > untracked
python3 -m venv --without-pip /work/venv && . venv/bin/activate
python3 -m http.server 8000 --bind 127.0.0.1 > /dev/null 2>&1 &
"""
SERVES = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000), 5)' 2> /dev/null"


async def test_a_branch_of_a_repository_an_environment_a_server_and_a_half_typed_command(sandbox: AsyncSandbox) -> None:
    shell = await sandbox.shell("main")
    assert (await shell.run(WORKSPACE)).exit_code == 0
    await shell.run(f"until {SERVES}; do :; done")
    terminal = await sandbox.terminal("bash", name="typing")
    await terminal.write(b"echo half-ty")
    show = "git log --format=%s; git status --short; command -v python3; echo $VIRTUAL_ENV; pwd"
    before = (await shell.run(show)).stdout
    assert before == "first\n M file\n?? untracked\n?? venv/\n/work/venv/bin/python3\n/work/venv\n/work\n"
    async with sandbox.branch() as branches:
        found = {(one.kind, one.name.partition(" ")[2] if one.kind == "process" else one.name) for one in branches.lost}
        assert found >= {("process", "python3 -m http.server 8000 --bind 127.0.0.1"), ("terminal", "typing")}
        other = await branches[0].shell("main")
        assert (await other.run(show)).stdout == before
        assert (await other.run(SERVES)).exit_code == 1, "a server does not continue"
        await other.run("git commit -qam second; rm -r venv")
        assert (await shell.run(show)).stdout == before
        assert (await shell.run(SERVES)).exit_code == 0
        await terminal.write(b"ped; exit\n")
        assert b"half-typed" in b"".join([chunk.data async for chunk in terminal])


async def test_idle_waits_and_now_does_not(sandbox: AsyncSandbox) -> None:
    shell = await sandbox.shell("main")
    await shell.run("V=before; mkfifo /tmp/go")
    running = asyncio.ensure_future(shell.run("V=after; echo begun > /tmp/begun; read line < /tmp/go"))
    await until_async(lambda: _has(sandbox, "/tmp/begun"), deadline_s=60.0, what="the command")
    with pytest.raises(WaitTimeoutError):
        await sandbox.branch(when="idle", timeout=0.2)
    async with sandbox.branch(when="now") as branches:
        assert [one.reason for one in branches.lost if one.kind == "command"] == ["it was running"]
        assert (await (await branches[0].shell("main")).run("echo $V")).stdout == "before\n"
    waiting = asyncio.ensure_future(_branched(sandbox))
    await sandbox.exec("echo > /tmp/go")
    async with await waiting as branches:
        assert (await (await branches[0].shell("main")).run("echo $V")).stdout == "after\n"
    await running


async def _branched(sandbox: AsyncSandbox) -> AsyncBranches:
    return await sandbox.branch()


async def test_either_all_branches_or_none(client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    before = {info.sandbox_id for info in await client.list_sandboxes()}
    with pytest.raises(InvalidArgumentError):
        await sandbox.branch(257)
    async with AsyncSandboxClient(client.url, client._options.api_key) as other:
        answer = other._rest.request("POST", f"/sandboxes/{sandbox.id}/branch", json={"sandbox_ids": ["fresh-one", sandbox.id]})
        with pytest.raises(ConflictError):
            await answer

        async def as_before() -> bool:
            return {info.sandbox_id for info in await client.list_sandboxes()} == before

        await until_async(as_before, deadline_s=60.0, what="the other branch to be deleted")


async def test_a_paused_sandbox_keeps_its_memory_and_refuses_calls(sandbox: AsyncSandbox) -> None:
    counter = await sandbox.start("i=0; while :; do i=$((i+1)); echo $i > /tmp/count; done")
    await until_async(lambda: _has(sandbox, "/tmp/count"), deadline_s=60.0, what="the counter")
    assert (await sandbox.pause()).info.paused == "memory"
    assert (await sandbox.pause()).info.paused == "memory", "it may be repeated"
    async with AsyncSandboxClient(sandbox.client.url, sandbox.client._options.api_key) as other:
        same = other.get_sandbox(sandbox.id)
        for call in (same.exec("true"), same.files.read("/tmp/count"), same.branch()):
            with pytest.raises(ConflictError) as caught:
                await call
            assert caught.value.code == "sandbox_paused"
        first, second = await same.snapshot("e2e/paused"), await same.snapshot("e2e/paused")
        assert first.digest == second.digest, "nothing runs"
        with pytest.raises(ConflictError):
            await same.pause(to_disk=True)
        await other.images.remove("e2e/paused")
    waiting = asyncio.ensure_future(sandbox.exec("echo later"))
    result = await sandbox.resume()
    assert (result.info.paused, result.lost) == (None, [])
    assert (await waiting).stdout == "later\n", "an open session waits"
    assert (await sandbox.resume()).info.paused is None
    await counter.kill()


async def _has(sandbox: AsyncSandbox, path: str) -> bool:
    return (await sandbox.exec(["test", "-s", path])).exit_code == 0


async def test_a_sandbox_paused_to_disk_continues_with_files_and_shells(sandbox: AsyncSandbox) -> None:
    shell = await sandbox.shell("main")
    await shell.run("cd /tmp; V=kept; echo kept > /tmp/f")
    server = await sandbox.start(["sleep", "983"])
    result = await sandbox.pause(to_disk=True)
    assert result.info.paused == "disk"
    assert ("command", server.command_id) in {(one.kind, one.name) for one in result.lost}
    with pytest.raises(SessionLostError) as lost:
        await shell.run("true")
    assert lost.value.reason == "paused"
    for call in (sandbox.exec("true"), sandbox.snapshot()):
        with pytest.raises(ConflictError):
            await call
    assert (await sandbox.resume()).lost == []
    assert await _out(sandbox, "cat /tmp/f; echo $GIVEN") == "kept\nat the create\n"
    assert (await (await sandbox.shell("main")).run("pwd; echo $V")).stdout == "/tmp\nkept\n"
    await sandbox.pause(to_disk=True)
    await sandbox.delete()


async def test_nothing_happens_between_a_pause_to_disk_and_its_files(sandbox: AsyncSandbox) -> None:
    """What a client was told before the sandbox ended is in the files, although copying them took a while."""
    await sandbox.exec("mkdir /data && head -c 300M /dev/urandom > /data/f && sync")
    counter = await sandbox.start("i=0; while :; do i=$((i+1)); echo $i >> /data/log; echo $i; done")
    seen = b""

    async def read() -> None:
        nonlocal seen
        async for chunk in counter:
            seen = (seen + chunk.data)[-100:]

    reading = asyncio.ensure_future(read())
    await until_async(lambda: seen, deadline_s=60.0, what="the counter")
    await sandbox.pause(to_disk=True, when="now")
    with contextlib.suppress(SessionLostError):
        await reading
    last = int(seen.split()[-2])
    await sandbox.resume()
    assert int(await _out(sandbox, "tail -n 1 /data/log")) >= last


async def test_reset_to_a_snapshot(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("echo prepared > /tmp/f")
    await sandbox.snapshot("e2e/prepared")
    await sandbox.exec("echo changed > /tmp/f")
    await sandbox.reset(to="e2e/prepared")
    assert await _out(sandbox, "cat /tmp/f; echo $GIVEN") == "prepared\nat the create\n"
    async with sandbox.branch() as branches:
        await branches[0].exec("echo branch > /tmp/f")
        assert await _out(sandbox, "cat /tmp/f") == "prepared\n"
        await branches[0].reset()
        assert (await branches[0].exec("test -e /tmp/f")).exit_code == 1, "a branch knows the arguments of its parent's create"
    await sandbox.reset()
    assert (await sandbox.exec("test -e /tmp/f")).exit_code == 1
    await sandbox.client.images.remove("e2e/prepared")


async def test_an_image_above_the_machine_is_not_saved(client: AsyncSandboxClient, sandbox: AsyncSandbox, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "hello").write_text("hello")
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(root / "hello", "hello")
    await client.images.import_(str(tmp_path / "root.tar"), "e2e/plain")
    size = await client.images.save("e2e/plain", tmp_path / "saved.tar")
    assert (tmp_path / "saved.tar").stat().st_size == size
    assert (await client.images.import_(str(tmp_path / "saved.tar"), "e2e/back")).name == "e2e/back"
    await sandbox.snapshot("e2e/host")
    with pytest.raises(UnsupportedError):
        await client.images.save("e2e/host", tmp_path / "host.tar")
    assert not (tmp_path / "host.tar").exists()
    for name in ("e2e/plain", "e2e/back", "e2e/host"):
        await client.images.remove(name)


async def test_a_gateway_that_ends_within_a_resume_loses_no_shell(stack: Stack, client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    """It has continued the sandbox, and ends before it has restored the shells."""
    shell = await sandbox.shell("agent")
    assert (await shell.run("cd /tmp; V=1")).exit_code == 0
    await sandbox.pause(to_disk=True)
    node = await NodeClient.connect(str(stack.data / "node.sock"))
    (row,) = [one for one in (await node.call("list"))["sandboxes"] if one["paused"]]
    assert (await node.call("resume", sandbox_id=row["sandbox_id"], incarnation=row["incarnation"]))["shells"]
    (row,) = [one for one in (await node.call("list"))["sandboxes"] if one["sandbox_id"] == row["sandbox_id"]]
    assert row["paused"] == "disk", "so the record stays paused, and no call finds a sandbox without its shells"
    node.close()
    assert (await sandbox.resume()).info.paused is None
    assert (await (await sandbox.shell("agent")).run("pwd; echo $V")).stdout == "/tmp\n1\n"


async def test_a_sandbox_on_disk_survives_a_stop_of_the_whole_service(tmp_path: Path) -> None:
    """As `holdfast up`, stopped and started again in the same folder; a reboot in between has nothing else to lose."""
    with running_stack(tmp_path / "data", {}) as stack:
        async with AsyncSandboxClient(stack.url, stack.key) as client:
            sandbox = await client.create_sandbox("host", memory="256m", labels={"kept": "yes"})
            assert (await (await sandbox.shell("agent")).run("cd /tmp; V=1; echo kept > f")).exit_code == 0
            await sandbox.pause(to_disk=True)
    with running_stack(tmp_path / "data", {}) as stack:
        async with AsyncSandboxClient(stack.url, stack.key) as client:

            async def is_known() -> bool:
                try:
                    return [one.paused for one in await client.list_sandboxes()] == ["disk"]
                except ServiceUnavailableError:  # the record is being rebuilt
                    return False

            await until_async(is_known, deadline_s=90, what="its record to be rebuilt")
            again = client.get_sandbox(sandbox.id)
            assert (await again.resume()).info.labels == {"kept": "yes"}
            assert (await (await again.shell("agent")).run("pwd; echo $V; cat f")).stdout == "/tmp\n1\nkept\n"
            await again.delete()
