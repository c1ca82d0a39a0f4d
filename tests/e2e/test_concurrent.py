"""Concurrent use: many sandboxes are created, used and deleted without a trace; equal creates at the same time make one sandbox.

The node's own suite has the large counts (1 000 created and deleted); this is the whole chain with concurrent clients.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from holdfast import AsyncSandboxClient, SandboxClient

from tests.node.leftovers import unclaimed
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack
from tests.support.until import until

pytestmark = [requires("namespaces", "redis"), pytest.mark.timeout(300)]

SANDBOXES = 50
AT_ONCE = 5


async def test_fifty_concurrent_sandboxes_leave_nothing_behind() -> None:
    """Runs on its own stack, so that the leftovers counted are only its own; spares, whose number follows demand, are not counted."""
    with running_stack() as own:
        async with AsyncSandboxClient(own.url, own.key) as client:
            done = await asyncio.gather(*(life(client, number) for number in range(SANDBOXES)))
            assert done == [f"{number} {number + 1}\n" for number in range(SANDBOXES)], "all succeeded, and none got the result of another"
            assert await client.list_sandboxes() == []
        until(lambda: not any(unclaimed(own.data).values()), deadline_s=60, what=lambda: f"everything to be deleted: {unclaimed(own.data)}")


async def life(client: AsyncSandboxClient, number: int) -> str:
    """Use one sandbox by a shell, by exec and by files; returns the output of the last command."""
    async with await client.create_sandbox("host", memory="128Mi", cpu="500m", labels={"number": str(number)}) as sandbox:
        shell = await sandbox.shell()
        assert (await shell.run(f"N={number}; cd /tmp")).exit_code == 0
        assert (await sandbox.exec(["sh", "-c", f"echo {number} > /tmp/own"])).exit_code == 0
        await sandbox.files.write("/tmp/second", f"{number + 1}\n")
        assert (await sandbox.exec("false")).exit_code == 1
        return (await shell.run("echo $(cat own) $(cat second)")).stdout


def test_threads_share_one_client(client: SandboxClient) -> None:
    """The synchronous API from several threads: one sandbox each, and one shared by all."""
    with client.create_sandbox("host") as shared, ThreadPoolExecutor(8) as pool:

        def work(number: int) -> str:
            with client.create_sandbox("host", memory="128Mi") as own:
                mine = own.exec(f"echo {number}").stdout
            return mine + shared.exec(f"echo {number}").stdout

        assert list(pool.map(work, range(8))) == [f"{number}\n{number}\n" for number in range(8)]


def test_equal_concurrent_creates_make_one_sandbox(stack: Stack, rest: httpx.Client) -> None:
    key = secrets.token_hex(8)
    barrier = threading.Barrier(AT_ONCE)

    def post(_: int) -> httpx.Response:
        with httpx.Client(base_url=stack.url, headers={"X-API-Key": stack.key, "Idempotency-Key": key}, timeout=60) as own:
            barrier.wait()
            return own.post("/sandboxes", json={"image": "host", "wait": True, "labels": {"idem": key}})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(post, range(AT_ONCE)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["sandbox_id"] for answer in answers}) == 1
    assert len({answer.json()["incarnation"] for answer in answers}) == 1
    listed = rest.get("/sandboxes", params={"label": f"idem={key}"}).json()["sandboxes"]
    assert len(listed) == 1
    assert post_again(rest, key, {"image": "host", "wait": True, "labels": {"idem": key}}) == (200, None)
    assert post_again(rest, key, {"image": "host", "wait": True, "labels": {"idem": "other"}}) == (422, "idempotency_conflict")
    assert post_again(rest, key, {"image": "host", "cpu": 1}) == (422, "idempotency_conflict")
    assert rest.delete(f"/sandboxes/{listed[0]['sandbox_id']}").status_code == 200


def post_again(rest: httpx.Client, key: str, body: dict[str, object]) -> tuple[int, str | None]:
    answer = rest.post("/sandboxes", json=body, headers={"Idempotency-Key": key})
    return answer.status_code, answer.json().get("code")


def test_equal_concurrent_creates_with_one_id_make_one_sandbox(stack: Stack, client: SandboxClient, rest: httpx.Client) -> None:
    """Equal requests with the same chosen id get the same sandbox; a different request is a conflict."""
    name = f"same-{secrets.token_hex(4)}"
    barrier = threading.Barrier(AT_ONCE)

    def post(_: int) -> httpx.Response:
        with httpx.Client(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=60) as own:
            barrier.wait()
            return own.post("/sandboxes", json={"image": "host", "wait": True, "sandbox_id": name})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(post, range(AT_ONCE)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["incarnation"] for answer in answers}) == 1
    other = rest.post("/sandboxes", json={"image": "host", "wait": True, "sandbox_id": name, "cpu": 1})
    assert (other.status_code, other.json()["code"]) == (409, "sandbox_exists")
    assert client.get_sandbox(name).delete()


async def test_many_shells_and_commands_on_one_session(stack: Stack) -> None:
    async with AsyncSandboxClient(stack.url, stack.key) as client, await client.create_sandbox("host") as sandbox:
        shells = await asyncio.gather(*(sandbox.shell() for _ in range(10)))

        async def turns(number: int) -> list[str]:
            await shells[number].run(f"N={number}")
            return [(await shells[number].run(f"echo $N {turn}")).stdout for turn in range(10)]

        async def command(number: int) -> str:
            return (await sandbox.exec(["sh", "-c", f"echo {number}; exit 0"])).stdout

        in_shells, commands = await asyncio.gather(asyncio.gather(*map(turns, range(10))), asyncio.gather(*map(command, range(60))))
        assert in_shells == [[f"{number} {turn}\n" for turn in range(10)] for number in range(10)]
        assert commands == [f"{number}\n" for number in range(60)]
