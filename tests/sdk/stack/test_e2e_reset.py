"""``sandbox.reset()`` on the real stack and both APIs: the image's original state, and errors of handles from before the reset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from holdfast import SandboxLostError, SandboxNotFoundError, SessionLostError, UnsupportedError

from tests.sdk.support.requirements import STACK

pytestmark = STACK


async def create(client: Any, **options: Any) -> Any:
    return await client.create_sandbox("host", cpu="1", memory="512Mi", ready_timeout_s=60, **options)


async def test_a_reset_restores_the_state_after_creation(client: Any) -> None:
    async with await create(client, env={"KEPT": "yes"}, labels={"run": "7"}, lifetime_s=1000) as sandbox:
        before = await sandbox.info()
        await sandbox.exec("touch /tmp/left /workspace/left; sleep 600 & sleep 601 &")
        await sandbox.set_lifetime(50)
        info = await sandbox.reset()
        assert (info.sandbox_id, info.ready, info.labels) == (before.sandbox_id, True, {"run": "7"})
        assert (await sandbox.info()).lifetime_s == 1000
        result = await sandbox.exec("ls /tmp /workspace; echo $KEPT; pgrep sleep; nproc; cat /proc/sys/kernel/hostname")
        assert "left" not in result.stdout
        assert "yes" in result.stdout
        await sandbox.reset()
        assert (await (await sandbox.shell()).run("pwd")).ok
    assert await sandbox.delete() is False


async def test_handles_from_before_a_reset_raise_session_lost_error(client: Any) -> None:
    async with await create(client) as sandbox:
        shell, named = await sandbox.shell(), await sandbox.shell("named")
        await named.run("X=1")
        process = await sandbox.start("cat")
        terminal = await sandbox.terminal()
        watch = await sandbox.files.watch("/tmp")
        running = asyncio.create_task(shell.run("sleep 600"))
        waiting = asyncio.create_task(watch.read())
        await sandbox.exec("true")
        await sandbox.reset()
        for call in (
            lambda: running, lambda: waiting, lambda: shell.run("true"), lambda: named.run("true"), process.wait, terminal.wait, watch.read,
            lambda: process.signal("TERM"),
        ):  # fmt: skip
            with pytest.raises(SessionLostError, match="was reset") as lost:
                await call()
            assert (lost.value.reason, lost.value.retryable, lost.value.fault) == ("reset", False, "caller")
        assert (await (await sandbox.shell("named")).run("echo ${X-none}")).stdout == "none\n"


async def test_a_request_after_a_reset_reaches_the_new_sandbox(client: Any) -> None:
    async with await create(client) as sandbox:
        await sandbox.files.write("/tmp/left", b"x")
        resetting = asyncio.create_task(sandbox.reset())
        await asyncio.sleep(0)
        await resetting
        assert await sandbox.files.exists("/tmp/left") is False


async def test_a_sandbox_that_another_client_created_is_not_reset(client: Any) -> None:
    async with await create(client) as sandbox:
        other = client.get_sandbox(sandbox.id)
        with pytest.raises(UnsupportedError, match="not created by this client"):
            await other.reset()
        assert (await sandbox.exec("true")).ok


async def test_a_sandbox_that_another_client_deleted_is_created_again(client: Any) -> None:
    async with await create(client) as sandbox:
        await client.get_sandbox(sandbox.id).delete()
        with pytest.raises((SandboxNotFoundError, SandboxLostError)):
            await client.get_sandbox(sandbox.id).refresh()
        await sandbox.reset()
        assert (await sandbox.exec("echo here")).stdout == "here\n"


async def test_heartbeats_continue_after_a_reset(client: Any) -> None:
    async with await create(client, heartbeat_timeout_s=5) as sandbox:
        await sandbox.reset()
        assert (await sandbox.exec("sleep 6; echo lives", timeout=60)).stdout == "lives\n"


async def test_a_sandbox_that_its_own_client_deleted_is_not_created_again(client: Any) -> None:
    sandbox = await create(client)
    await sandbox.delete()
    with pytest.raises(SandboxLostError, match="was deleted: it cannot be reset"):
        await sandbox.reset()
    assert sandbox.id not in [info.sandbox_id for info in await client.list_sandboxes()]
