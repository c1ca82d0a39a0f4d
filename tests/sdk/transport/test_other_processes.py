"""Objects of the SDK that are pickled, copied, forked or used in another event loop."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import holdfast
import pytest
from holdfast import (
    Address,
    AsyncSandboxClient,
    CommandFailedError,
    CommandResult,
    HoldfastError,
    InvalidArgumentError,
    SandboxClient,
    SandboxLostError,
    SessionLostError,
)
from holdfast._errors import error
from holdfast_wire.errors import TABLE, ProtocolError

from tests.sdk.support.fake_agent import FakeAgent


@pytest.mark.parametrize("code", sorted(TABLE))
@pytest.mark.parametrize("transfer", [copy.copy, copy.deepcopy, lambda why: pickle.loads(pickle.dumps(why))])
def test_errors_can_be_copied_and_pickled(code: str, transfer: Callable[[HoldfastError], HoldfastError]) -> None:
    before = error(code, "why", hint="do", fault="workload", reason="oom", detail={"path": "/a", "command_id": "c", "started": True})
    after = transfer(before)
    assert type(after) is type(before)
    assert after.to_map() == before.to_map()
    assert str(after) == str(before)
    if isinstance(before, OSError):
        assert isinstance(after, OSError)
        assert (after.errno, after.strerror, after.filename) == (before.errno, before.strerror, before.filename)


def test_results_and_addresses_can_be_pickled() -> None:
    failed = CommandFailedError("it failed", CommandResult(3, b"out", b"", 0.1))
    for thing in (failed, ProtocolError("broken"), Address("::1", 80), SandboxLostError("sandbox_gone", "gone")):
        back: Any = pickle.loads(pickle.dumps(thing))
        assert type(back) is type(thing)
        assert str(back) == str(thing)
    assert pickle.loads(pickle.dumps(failed)).result.exit_code == 3
    assert pickle.loads(pickle.dumps(Address("h", 1))) == ("h", 1)


def test_pickling_an_object_with_connections_is_refused_with_a_hint() -> None:
    client = SandboxClient("http://127.0.0.1:1", "key")
    for thing in (client, client.get_sandbox("sb")):
        with pytest.raises(TypeError, match=r"another client there|get_sandbox"):
            pickle.dumps(thing)


def test_a_forked_process_opens_its_own_session() -> None:
    with FakeAgent() as agent, SandboxClient(agent.url, "key") as client:
        sandbox = client.get_sandbox("sb")
        shell, process = sandbox.shell(), sandbox.start("hang")
        assert sandbox.exec("echo parent").stdout == "parent\n"
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # no assertion here: it would run the rest of the suite twice
            try:
                results = [sandbox.exec("echo child").stdout]
                for use in (lambda: shell.run("true"), lambda: process.read(timeout=1), process.close, lambda: process.wait(1)):
                    try:
                        use()
                    except SessionLostError as why:
                        results.append(why.code)
                client.close()
                os.write(write, " ".join(results).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as answer:
            assert answer.read() == b"child\n session_lost session_lost session_lost session_lost"
        os.waitpid(child, 0)
        assert shell.run("echo still").stdout == "still\n"
        assert not process.done
        process.close()


def test_one_client_in_two_event_loops() -> None:
    with FakeAgent() as agent:
        client = AsyncSandboxClient(agent.url, "key")
        sandbox = client.get_sandbox("sb")
        kept: list[Any] = []

        async def first() -> str:
            kept.append(await sandbox.shell())
            kept.append(await sandbox.start("hang"))
            return (await sandbox.exec("echo one")).stdout

        async def second() -> str:
            shell, process = kept
            for use in (lambda: shell.run("true"), process.read, process.close):
                with pytest.raises(SessionLostError, match="that made it"):
                    await use()
            output = (await sandbox.exec("echo two")).stdout
            await client.close()
            return output

        assert asyncio.run(first()) == "one\n"
        assert asyncio.run(second()) == "two\n"


def test_using_a_client_in_two_event_loops_at_once_is_refused() -> None:
    with FakeAgent() as agent:
        client = AsyncSandboxClient(agent.url, "key")
        sandbox = client.get_sandbox("sb")

        async def first() -> None:
            await sandbox.exec("echo one")
            with pytest.raises(SessionLostError, match="that made it") as refused:
                await asyncio.to_thread(asyncio.run, second())
            assert "a client each" in refused.value.hint
            assert (await sandbox.exec("echo three")).stdout == "three\n"
            await client.close()

        async def second() -> None:
            await sandbox.exec("echo two")

        asyncio.run(first())


def test_a_mistyped_argument_is_refused_with_a_suggestion() -> None:
    assert holdfast.__version__
    client = SandboxClient("http://127.0.0.1:1", "key")
    with pytest.raises(InvalidArgumentError, match="memroy") as refused:
        client.create_sandbox("host", memroy="1Gi")  # type: ignore[call-arg]
    assert "memory" in refused.value.hint


def test_the_repr_of_shells_processes_and_tunnels() -> None:
    with FakeAgent() as agent, SandboxClient(agent.url, "key") as client:
        sandbox = client.get_sandbox("sb")
        process = sandbox.start("hang")
        assert repr(sandbox.shell()).startswith("<Shell bash")
        assert repr(process) == f"<Process {process.command_id}>"
        with sandbox.tunnel(80) as address:
            assert str(address).startswith("127.0.0.1:")
        process.close()
        assert repr(process).endswith(" done>")
