"""Every call of the SDK, cancelled at every one of its waits, once and twice, by asyncio and by anyio: no sandbox, command or file remains.

Sources: UKGovernmentBEIS/inspect_ai#5494, Significant-Gravitas/AutoGPT#12774, inspect_ai#4071. The blocking API is cancelled by Ctrl-C, see
``client/test_cancel``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient

from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("namespaces", "redis", "bash")

Call = Callable[[], Awaitable[Any]]
MOST_WAITS = 200


ACTIONS: ContextVar[tuple[dict[int, Callable[[], object]], list[int]]] = ContextVar("ACTIONS")
"""What to do at which wait, and the number of waits so far. A call that runs tasks of its own counts the waits in these."""


@types.coroutine
def interrupted(work: Awaitable[Any]) -> Generator[Any, Any, Any]:
    """``await work``, with an action at some of its waits."""
    actions, seen = ACTIONS.get()
    steps = work.__await__()
    send, value = steps.send, None
    while True:
        try:
            waits_for = send(value)
        except StopIteration as end:
            return end.value
        seen[0] += 1
        if seen[0] in actions:
            actions[seen[0]]()
        try:
            value = yield waits_for
            send = steps.send
        except BaseException as why:
            value, send = why, steps.throw


async def cancelled_at(call: Call, number: int, *, by: str, twice: bool) -> bool:
    """Cancel the call at its wait ``number``, with ``twice`` again at the next. Returns whether it got so far."""
    seen = [0]

    async def run() -> None:
        me = asyncio.current_task()
        assert me is not None
        if by == "asyncio":
            actions: dict[int, Callable[[], object]] = {number: me.cancel, **({number + 1: me.cancel} if twice else {})}
            ACTIONS.set((actions, seen))
            await interrupted(call())
            return
        with anyio.CancelScope() as scope:
            ACTIONS.set(({number: scope.cancel, **({number + 1: me.cancel} if twice else {})}, seen))
            await interrupted(call())

    task = asyncio.create_task(run())
    try:
        async with asyncio.timeout(60):
            await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    if not task.cancelled() and (why := task.exception()) is not None:
        raise why
    return seen[0] >= number


async def at_every_wait(call: Call, check: Callable[[], Awaitable[None]], *, by: str, twice: bool, first: int = 1, step: int = 1) -> int:
    """Returns the number of waits."""
    for number in range(first, MOST_WAITS, step):
        if not await cancelled_at(call, number, by=by, twice=twice):
            return number - 1
        try:
            await check()
        except AssertionError as left:
            raise AssertionError(f"cancelled by {by}{' twice' * twice} at wait {number}: {left}") from None
    raise AssertionError("too many waits")


WAYS = [(by, twice) for by in ("asyncio", "anyio") for twice in (False, True)]
ways = pytest.mark.parametrize(("by", "twice"), WAYS, ids=[f"{by}{'-twice' * twice}" for by, twice in WAYS])


@pytest.fixture
async def aclient(stack: Any) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        yield client


@pytest.fixture
async def box(aclient: AsyncSandboxClient) -> AsyncIterator[AsyncSandbox]:
    async with await aclient.create_sandbox("host", cpu="1", memory="512Mi", ready_timeout_s=60) as box:
        yield box


def creates(client: AsyncSandboxClient, stack: Any, labels: dict[str, str]) -> dict[str, Call]:
    """Calls that create sandboxes."""

    async def one(_: int = 0) -> None:
        async with await client.create_sandbox("host", labels=labels) as box:
            await box.exec("true")

    async def with_opening() -> None:
        async with client.create_sandbox("host", labels=labels) as box:
            await box.files.write("x", b"y")

    async def own_client() -> None:
        async with AsyncSandbox.create("host", labels=labels, url=stack.url, api_key=stack.key) as box:
            await box.exec("true")

    async def mapped() -> None:
        async def counted(_: int) -> None:
            await interrupted(one())

        await client.map(counted, range(4), concurrency=3, progress=False)

    async def reset() -> None:
        async with client.create_sandbox("host", labels=labels) as box:
            await box.exec("true")
            await box.reset()

    async def grouped() -> None:
        async with client.group(f"g-{os.urandom(6).hex()}") as group:
            await client.create_sandbox("host", labels=labels, group=group)

    async def deleted() -> None:
        box = await client.create_sandbox("host", labels=labels)
        try:
            await box.exec("true")
        finally:
            await box.delete()

    calls = (one, with_opening, own_client, mapped, reset, grouped, deleted)
    return {call.__name__: call for call in calls}


CREATES = ("one", "with_opening", "own_client", "mapped", "reset", "grouped", "deleted")


async def create_leaves_nothing(client: AsyncSandboxClient, stack: Any, name: str, by: str, twice: bool, **steps: int) -> None:
    labels = {"case": os.urandom(8).hex()}

    async def left() -> list[Any]:
        return [(one.sandbox_id, one.status) for one in await client.list_sandboxes(labels=labels)]

    async def check() -> None:
        if name == "grouped":  # the controller deletes a group's sandboxes
            with contextlib.suppress(AssertionError):
                await until_async(functools.partial(none, left), deadline_s=60, what="the group's sandboxes to be deleted")
        assert await left() == []

    assert await at_every_wait(creates(client, stack, labels)[name], check, by=by, twice=twice, **steps) >= 3


async def none(left: Callable[[], Awaitable[list[Any]]]) -> bool:
    return not await left()


@ways
@pytest.mark.parametrize("name", ["one", "mapped"])
async def test_a_sample_of_cancelled_creates_leaves_no_sandbox(
    aclient: AsyncSandboxClient, stack: Any, name: str, by: str, twice: bool
) -> None:
    await create_leaves_nothing(aclient, stack, name, by, twice, first=2, step=1 if name == "one" else 5)


@pytest.mark.slow
@ways
@pytest.mark.parametrize("name", CREATES)
async def test_cancelled_creates_leave_no_sandbox(aclient: AsyncSandboxClient, stack: Any, name: str, by: str, twice: bool) -> None:
    await create_leaves_nothing(aclient, stack, name, by, twice)


def commands(box: AsyncSandbox, mark: str) -> dict[str, Call]:
    """Calls that run a command which would take an hour."""

    async def execute() -> None:
        await box.exec(mark, input=b"x" * 100_000)

    async def shell() -> None:
        async with box.shell() as opened:
            await opened.run(mark)

    async def stream() -> None:
        async with box.shell() as opened, opened.stream(f"echo begun; {mark}") as running:
            async for _ in running:
                pass

    async def process() -> None:
        async with box.start(mark) as running:
            await running.write(b"x")
            await running.wait()

    async def terminal() -> None:
        async with box.terminal() as opened:
            await opened.write(f"{mark}\n".encode())
            await opened.wait()

    return {call.__name__: call for call in (execute, shell, stream, process, terminal)}


COMMANDS = ("execute", "shell", "stream", "process", "terminal")


async def command_leaves_nothing(box: AsyncSandbox, name: str, by: str, twice: bool, **steps: int) -> None:
    seconds = 100_000 + int.from_bytes(os.urandom(3), "big")

    async def check() -> None:
        async def ended() -> bool:
            return not (await box.exec(f"pgrep -f 'slee[p] {seconds}' || true")).stdout

        await until_async(ended, deadline_s=60, what="the command to end")  # a killed process takes a moment to end

    # Without a cancellation the call would not end, so its last wait is the one at which the command runs.
    waits = 0
    call = commands(box, f"sleep {seconds}")[name]
    for number in range(steps.get("first", 1), MOST_WAITS, steps.get("step", 1)):
        reached = asyncio.create_task(cancelled_at(call, number, by=by, twice=twice))
        done, _ = await asyncio.wait([reached], timeout=2.0)
        if not done:
            reached.cancel()
            await asyncio.wait([reached])
            await check()
            break
        assert reached.result()
        await check()
        waits = number
    assert waits
    assert (await box.exec("echo on")).stdout == "on\n"


@ways
async def test_a_sample_of_cancelled_commands_ends_the_command(box: AsyncSandbox, by: str, twice: bool) -> None:
    await command_leaves_nothing(box, "process", by, twice, first=1, step=2)


@pytest.mark.slow
@ways
@pytest.mark.parametrize("name", COMMANDS)
async def test_cancelled_calls_leave_no_command(box: AsyncSandbox, name: str, by: str, twice: bool) -> None:
    await command_leaves_nothing(box, name, by, twice)


@pytest.mark.slow
@ways
@pytest.mark.parametrize("name", ["download", "download_tree", "upload", "upload_tree", "write", "tunnel", "watch"])
async def test_cancelled_transfers_leave_no_part(box: AsyncSandbox, tmp_path: Path, name: str, by: str, twice: bool) -> None:
    content = os.urandom(3_000_000)
    await box.exec("mkdir -p from/a from/b to; head -c 3000000 /dev/zero > from/a/x; echo 1 > from/b/y")
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "d").mkdir(parents=True)
    target.mkdir()
    (source / "d" / "f").write_bytes(content)

    async def tunnel() -> None:
        async with await box.tunnel(1):
            await asyncio.sleep(0.001)  # without a connection: asyncio itself loses one that it accepts while a listener is closed

    async def watch() -> None:
        async with await box.files.watch("to") as watching:
            await box.files.write("to/w", b"1")
            await watching.read()

    calls: dict[str, Call] = {
        "download": lambda: box.files.download("from/a/x", target / "x"),
        "download_tree": lambda: box.files.download("from", target),
        "upload": lambda: box.files.upload(source / "d" / "f", "to/f"),
        "upload_tree": lambda: box.files.upload(source, "to"),
        "write": lambda: box.files.write("to/f", content),
        "tunnel": tunnel,
        "watch": watch,
    }

    async def check() -> None:
        names = {path.name for path in target.rglob("*")}
        assert names <= {"x", "y", "a", "b"}, names

        async def whole() -> bool:
            return not (await box.exec("find to -name '.*' -type f; find to -name f -size -3000000c")).stdout

        await until_async(whole, deadline_s=60, what="the sandbox's temporary files to be removed")

    await at_every_wait(calls[name], check, by=by, twice=twice)
