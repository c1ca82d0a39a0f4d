"""An agent that breaks every rule: each call of both APIs ends, with a result or a typed error, within its time limit and bounded memory.

Nothing that such an agent does is a fault of the infrastructure. A sample runs in `make test`, the rest in `make soak`; `make fuzz`
draws new seeds.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast import HoldfastError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sdk.support.faces import inner
from tests.sdk.support.hostile_agent import HostileAgent
from tests.support.hostile_agent import GREETINGS, SCRIPTS, Peer, at_random, no_welcome

LIMIT_S = 30.0
"""Far more than the limits below add up to, on a loaded machine."""
MOST_BYTES = 200 * 1024 * 1024
Calls = dict[str, Callable[[Any], Awaitable[Any]]]


@pytest.fixture
def agent() -> Iterator[HostileAgent]:
    with HostileAgent() as running:
        yield running


@pytest.fixture
async def sandbox(agent: HostileAgent, face: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """One with short time limits."""
    for module in ("holdfast._async.rest", "holdfast._sync.rest", "holdfast._transport.session.engine"):
        monkeypatch.setattr(f"{module}.LAST_LOOK_S", 0.1)
    for module in ("holdfast._async.transfers", "holdfast._sync.transfers"):
        monkeypatch.setattr(f"{module}.STALLS", 1)
    client = face.client(
        agent.url, "test-key", connect_timeout_s=0.7, resume_timeout_s=0.7, request_timeout_s=0.7, max_output_bytes=100_000
    )
    inner(client)._options = replace(inner(client)._options, cancel_timeout_s=0.2, answer_timeout_s=0.5)
    sandbox = client.get_sandbox("sb-1")
    yield sandbox
    await sandbox.close()
    await client.close()


def calls(folder: Path) -> Calls:
    """Every call that waits for an agent, with the time limits that a user can give."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "f").write_bytes(b"x" * 100_000)

    async def run(box: Any) -> None:
        await (await box.shell()).run("true", 0.3)

    async def process(box: Any) -> None:
        process = await box.start("true", timeout=0.3)
        while await process.read() is not None:
            pass
        await process.wait()

    async def terminal(box: Any) -> None:
        await (await box.terminal()).wait(0.5)

    async def watch(box: Any) -> None:
        await (await box.files.watch(".")).read(0.5)

    async def tunnel(box: Any) -> None:
        await box.tunnel(80, wait_s=0.3)

    async def listen(box: Any) -> None:
        listener = await box.listen(8080)
        try:
            await listener.accept(0.3)
        finally:
            await listener.close()

    async def typed(box: Any) -> None:
        process = await box.start("cat", timeout=0.3)
        async with process:
            await process.write(b"x" * 3_000_000)
            await process.close_stdin()
            await process.wait()

    return {
        "exec": lambda box: box.exec("true", timeout=0.3),
        "exec with input": lambda box: box.exec("cat", input=b"x" * 3_000_000, timeout=0.3),
        "run": run,
        "process": process,
        "terminal": terminal,
        "follow": lambda box: box.follow("c-1"),
        "read": lambda box: box.files.read("x"),
        "write": lambda box: box.files.write("x", b"y" * 3_000_000),
        "append": lambda box: box.files.append("x", b"y"),
        "list": lambda box: box.files.list("."),
        "search": lambda box: box.files.search(".", pattern="x"),
        "stat": lambda box: box.files.stat("x"),
        "move": lambda box: box.files.move("x", "y"),
        "remove": lambda box: box.files.remove("x"),
        "download": lambda box: box.files.download("x", folder / "got"),
        "upload": lambda box: box.files.upload(source / "f", "x"),
        "upload a tree": lambda box: box.files.upload(source, "x"),
        "patch": lambda box: box.apply_patch("--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+y\n"),
        "watch": watch,
        "tunnel": tunnel,
        "listen": listen,
        "input of a process": typed,
        "part": lambda box: box.files.read("x", offset=5, length=5),
        "exists": lambda box: box.files.exists("x"),
        "mkdir": lambda box: box.files.mkdir("x"),
        "copy": lambda box: box.files.copy("x", "y"),
        "chmod": lambda box: box.files.chmod("x", 0o600),
    }


async def ends(sandbox: Any, call: Callable[[Any], Awaitable[Any]]) -> HoldfastError | None:
    """Make the call. Returns its typed error."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    caught: HoldfastError | None = None
    async with asyncio.timeout(LIMIT_S):
        try:
            await call(sandbox)
        except HoldfastError as why:
            caught = why
    assert caught is None or not caught.is_infrastructure, caught
    assert caught is None or caught.code not in ("key_invalid", "quota_exceeded")
    assert time.monotonic() - begun < LIMIT_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES
    return caught


SAMPLE = ("exec", "run", "process", "read")


@pytest.mark.parametrize("script", ["silence", "go_away", "drops_after_start"])
@pytest.mark.parametrize("name", SAMPLE)
async def test_a_sample_of_calls_ends(agent: HostileAgent, sandbox: Any, tmp_path: Path, name: str, script: str) -> None:
    agent.script = SCRIPTS[script]
    assert await ends(sandbox, calls(tmp_path)[name]) is not None


@pytest.mark.soak
@pytest.mark.parametrize("script", SCRIPTS)
async def test_every_call_ends(agent: HostileAgent, sandbox: Any, tmp_path: Path, script: str) -> None:
    agent.script = SCRIPTS[script]
    for name, call in calls(tmp_path).items():
        caught = await ends(sandbox, call)
        assert caught is not None or name in ("watch", "follow", "tunnel"), name


async def test_an_agent_without_a_welcome_is_given_up(agent: HostileAgent, sandbox: Any) -> None:
    agent.greets = no_welcome
    assert await ends(sandbox, lambda box: box.exec("true")) is not None


@pytest.mark.parametrize("changed", GREETINGS.values(), ids=GREETINGS)
async def test_a_wrong_welcome_ends_the_attempt(agent: HostileAgent, sandbox: Any, changed: dict[str, Any]) -> None:
    async def greet(peer: Peer) -> None:
        await peer.welcome(**changed)

    agent.greets = greet
    assert await ends(sandbox, lambda box: box.exec("true", timeout=0.3)) is not None


async def test_a_download_ends_where_the_file_ended(agent: HostileAgent, sandbox: Any, tmp_path: Path) -> None:
    """The file had 10 bytes by its stat and by Opened, and its content never ends."""
    from holdfast_wire.frames import Closed, Open, Opened, Output

    async def script(peer: Peer, frame: Any) -> None:
        if not isinstance(frame, Open):
            return
        if frame.kind == "fs":
            entry = {"name": "x", "path": "/x", "type": "file", "size": 10, "mode": 0o644, "mtime": 0.0}
            await peer.send(Opened(frame.channel, {}), Closed(frame.channel, {"entry": entry, **entry}))
        elif frame.kind == "read":
            await peer.send(Opened(frame.channel, {"size": 10, "mode": 0o644}))
            for _ in range(12):
                await peer.send(Output(frame.channel, 1, b"x" * 65536))

    agent.script = script
    caught = await ends(sandbox, lambda box: box.files.download("x", tmp_path / "got"))
    assert caught is not None
    assert "more bytes than it announced" in caught.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(int(os.environ.get("HOLDFAST_HOSTILE_SEEDS", "2"))))
async def test_random_messages(agent: HostileAgent, sandbox: Any, tmp_path: Path, seed: int) -> None:
    for number, call in enumerate(calls(tmp_path).values()):
        agent.script = at_random(seed * 1000 + number)
        await ends(sandbox, call)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_random_messages_of_any_seed(tmp_path: Path, seed: int) -> None:
    from tests.sdk.support.faces import AsyncFace, SyncFace

    async def check() -> None:
        with HostileAgent() as agent:
            for face in (AsyncFace(), SyncFace()):
                client = face.client(agent.url, "k", connect_timeout_s=0.5, resume_timeout_s=0.5, request_timeout_s=0.5)
                inner(client)._options = replace(inner(client)._options, cancel_timeout_s=0.2, answer_timeout_s=0.5)
                sandbox = client.get_sandbox("sb-1")
                for number, call in enumerate(calls(tmp_path).values()):
                    agent.script = at_random(seed + number)
                    if number % 4 == seed % 4:
                        await ends(sandbox, call)
                await sandbox.close()
                await client.close()

    asyncio.run(check())
