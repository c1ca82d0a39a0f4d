"""Lifecycle, REST and failures of the real stack, on both APIs."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import httpx
import pytest
from holdfast import (
    AuthenticationError,
    ConflictError,
    HoldfastError,
    InvalidArgumentError,
    RemoteFileNotFoundError,
    SandboxLostError,
    SandboxNotFoundError,
    UnsupportedError,
)

from tests.sdk.support.requirements import STACK
from tests.support.until import until_async

pytestmark = STACK


async def test_create_list_refresh_delete(client: Any) -> None:
    sandbox = await client.create_sandbox(
        "host", cpu="500m", memory="256Mi", env={"FROM": "create"}, labels={"run": "7"}, ready_timeout_s=60
    )
    info = await sandbox.info()
    assert (info.sandbox_id, info.ready, info.image, info.labels) == (sandbox.id, True, "host", {"run": "7"})
    other = await client.create_sandbox("host", labels={"run": "8"}, memory="256Mi")
    assert [i.sandbox_id for i in await client.list_sandboxes({"run": "7"})] == [sandbox.id]
    assert {sandbox.id, other.id} <= {i.sandbox_id for i in await client.list_sandboxes()}
    assert (await sandbox.exec("echo $FROM")).stdout == "create\n"
    await sandbox.keep_alive()
    assert await sandbox.delete()
    await other.delete()
    with pytest.raises(SandboxLostError) as gone:
        await sandbox.refresh()
    assert gone.value.reason == "deleted"
    with pytest.raises((SandboxLostError, SandboxNotFoundError)):
        await sandbox.exec("true")


async def test_leaving_the_block_deletes_the_sandbox(client: Any) -> None:
    async with await client.create_sandbox("host", memory="256Mi") as sandbox:
        assert (await sandbox.exec("true")).ok
    assert sandbox.id not in {i.sandbox_id for i in await client.list_sandboxes()}


async def test_another_client_object_uses_the_same_sandbox(live: Any, client: Any) -> None:
    await live.exec("echo kept > /tmp/kept")
    other = client.get_sandbox(live.id)
    assert await other.files.read_text("/tmp/kept") == "kept\n"
    await other.close()
    assert (await live.exec("cat /tmp/kept")).stdout == "kept\n"


async def test_bad_input_raises_typed_errors(client: Any, face: Any, stack: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        await client.create_sandbox("host", cpu="many")
    with pytest.raises(InvalidArgumentError):
        await client.create_sandbox("host", sandbox_id="Not/Good")
    with pytest.raises(SandboxNotFoundError):
        await client.get_sandbox("sb-none").exec("true")
    with pytest.raises(SandboxNotFoundError):
        await client.get_sandbox("sb-none").refresh()
    stranger = face.client(stack.url, "hf_" + "0" * 32)
    for wrong in (stranger.list_sandboxes(), stranger.get_sandbox("x").exec("true"), stranger.create_sandbox("host")):
        with pytest.raises(AuthenticationError):
            await wrong
    await stranger.close()
    async with await client.create_sandbox("host", sandbox_id="sb-mine", memory="256Mi"):
        with pytest.raises(ConflictError):
            await client.create_sandbox("host", sandbox_id="sb-mine", memory="300Mi")


async def test_rest_works_without_websockets(stack: Any, face: Any) -> None:
    client = face.client(stack.url, stack.key, transport="rest")
    async with await client.create_sandbox("host", memory="256Mi") as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3", cwd="/tmp", env={"A": "1"})
        assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
        assert (await sandbox.exec(["printf", "%s", "a b"])).stdout == "a b"
        late = await sandbox.exec("echo early; sleep 30", timeout=3)
        assert (late.exit_code, late.timed_out, late.stdout) == (124, True, "early\n")
        await sandbox.files.write("/tmp/r/x", b"\x00rest")
        assert await sandbox.files.read("/tmp/r/x") == b"\x00rest"
        assert [e.name for e in await sandbox.files.list("/tmp/r")] == ["x"]
        with pytest.raises(RemoteFileNotFoundError):
            await sandbox.files.read("/tmp/none")
        assert not (await sandbox.apply_patch("no patch")).success
        for beyond in (sandbox.shell(), sandbox.start("true"), sandbox.tunnel(80), sandbox.exec("cat", input=b"x")):
            with pytest.raises(UnsupportedError):
                await beyond
    await client.close()


async def test_the_client_falls_back_to_rest_where_websockets_are_blocked(live: Any, stack: Any, face: Any) -> None:
    """Behind a proxy that answers upgrades with its own page, commands and files go over REST."""
    from tests.sdk.support.blocking_proxy import BlockingProxy

    with BlockingProxy(stack.url) as proxy:
        client = face.client(proxy.url, stack.key)
        sandbox = client.get_sandbox(live.id)
        assert (await sandbox.exec("echo through")).stdout == "through\n"
        await sandbox.files.write("/tmp/x", b"y")
        assert await sandbox.files.read("/tmp/x") == b"y"
        with pytest.raises(UnsupportedError):
            await sandbox.shell()
        await client.close()
    assert proxy.upgrades == 1


async def test_killing_the_gateway_loses_no_output(live: Any, stack: Any) -> None:
    shell = await live.shell()
    await shell.run("X=41; cd /tmp; : > log")
    running = asyncio.create_task(shell.run("for i in $(seq 30); do echo $i | tee -a log; sleep 0.1; done; echo $((X+1))"))

    async def begun() -> bool:
        return bool((await live.exec("test -s /tmp/log")).ok)

    await until_async(begun, deadline_s=60, what="the first line")
    await asyncio.to_thread(stack.wait_restarted, "gateway", await asyncio.to_thread(stack.kill_process, "gateway"))
    result = await running
    assert result.stdout == "".join(f"{n}\n" for n in range(1, 31)) + "42\n"
    assert (await shell.run("wc -l < log; pwd")).stdout.split() == ["30", "/tmp"]
    await asyncio.to_thread(stack.wait_ready)


async def test_deleting_a_sandbox_ends_waiting_calls(client: Any) -> None:
    sandbox = await client.create_sandbox("host", memory="256Mi")
    shell = await sandbox.shell()
    await shell.run("true")
    lines = shell.stream("echo begun; sleep 60").__aiter__()
    assert (await lines.__anext__()).text == "begun\n"
    running = asyncio.create_task(lines.__anext__())
    await client.get_sandbox(sandbox.id).delete()
    with pytest.raises(SandboxLostError) as lost:
        await asyncio.wait_for(running, 60)
    assert (lost.value.reason, lost.value.started) == ("deleted", True)
    await sandbox.close()


async def test_doctor_and_the_list_of_images(client: Any) -> None:
    checks = await client.doctor()
    assert {"name", "ok"} <= checks[0].keys()
    assert "host" in {image.name for image in await client.images.list()}


async def test_an_image_is_imported_used_and_removed(client: Any, tmp_path: Any) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "marker").write_text("mine")
    image = await client.images.import_(root, "tiny:1")
    assert image.name.endswith("tiny:1")
    async with await client.create_sandbox("tiny:1", memory="256Mi") as sandbox:
        assert await sandbox.files.read("/etc/marker") == b"mine"
        assert (await sandbox.exec(["/no/such"])).exit_code == 127
        with pytest.raises(HoldfastError):
            await sandbox.shell()
    await client.images.remove("tiny:1")
    assert "tiny:1" not in {i.name for i in await client.images.list()}


async def test_an_id_in_use_is_a_conflict_unless_it_may_exist(client: Any, face: Any, stack: Any) -> None:
    name = f"mine-{secrets.token_hex(4)}"
    other = face.client(stack.url, stack.key)
    async with await client.create_sandbox("host", sandbox_id=name) as sandbox:
        for again in (client, other):
            with pytest.raises(ConflictError) as conflict:
                await again.create_sandbox("host", sandbox_id=name)
            assert "exist_ok" in conflict.value.hint
            assert (await sandbox.exec("echo here")).stdout == "here\n"
        shared = await other.create_sandbox("host", sandbox_id=name, exist_ok=True)
        assert shared.id == name
        await shared.close()
        with pytest.raises(ConflictError):
            await other.create_sandbox("host", sandbox_id=name, exist_ok=True, cpu=1)
    async with await other.create_sandbox("host", sandbox_id=name) as again:
        assert again.id == name
    await other.close()


async def test_a_repeated_create_does_not_conflict_with_itself(stack: Any) -> None:
    """A request with the same Idempotency-Key is the same request, also where the id must not be in use."""
    name = f"mine-{secrets.token_hex(4)}"
    body = {"image": "host", "sandbox_id": name, "exist_ok": False, "wait": True}
    async with httpx.AsyncClient(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=60) as rest:
        first, again = [await rest.post("/sandboxes", json=body, headers={"Idempotency-Key": "one"}) for _ in range(2)]
        other = await rest.post("/sandboxes", json=body, headers={"Idempotency-Key": "two"})
        twice = await rest.post("/sandboxes", json=body, headers={"Idempotency-Key": "two"})
        orchard = await rest.post("/sandboxes", json={"image": "host", "sandbox_id": name, "wait": True})
        await rest.delete(f"/sandboxes/{name}")
    assert first.json()["incarnation"] == again.json()["incarnation"] == orchard.json()["incarnation"]
    assert [(answer.status_code, answer.json()["code"]) for answer in (other, twice)] == [(409, "sandbox_exists")] * 2


async def test_a_failed_create_leaves_its_name_free(client: Any) -> None:
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=r"(?i)entrypoint"):
        await client.create_sandbox("host", sandbox_id="typed-wrong", entrypoint=True)
    assert "typed-wrong" not in [record.sandbox_id for record in await client.list_sandboxes()]
    async with await client.create_sandbox("host", sandbox_id="typed-wrong") as sandbox:
        with pytest.raises(ConflictError):  # the name belongs to another sandbox, which must not be deleted
            await client.create_sandbox("host", sandbox_id="typed-wrong", entrypoint=True)
        assert (await sandbox.exec("true")).ok
