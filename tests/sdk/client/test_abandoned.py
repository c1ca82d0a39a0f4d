"""Streams that are dropped before their end and finalized by the garbage collector."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from holdfast import AsyncCommandStream, CommandStream, SandboxClient
from holdfast._transport.session.command_call import Call
from holdfast_wire.frames import Open, Opened, Output

from tests.sdk.support.fake_agent import FakeAgent, HeldSession
from tests.support.until import until


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def endless(held: HeldSession, opened: Open) -> None:
    """A file transfer that never ends."""
    held.session.send(Opened(opened.channel, {}))
    held.session.send(Output(opened.channel, 1, b"x" * 1000))


@pytest.mark.usefixtures("no_collection")
def test_ended_commands_leave_no_reference_cycles(agent: FakeAgent) -> None:
    earlier = kept()  # held, so that no later call gets the id of one of these
    with SandboxClient(agent.url, "key") as client:
        sandbox = client.get_sandbox("sb")
        assert len(sandbox.exec("flood 100000").stdout) == 100_000
        for script, size_bytes in (("flood 100000", 100_000), ("exit 3", 0)):
            process = sandbox.start(script)
            assert sum(len(chunk.data) for chunk in process) == size_bytes
        del process
        until(lambda: set(map(id, kept())) <= set(map(id, earlier)), deadline_s=60, what="the calls to be freed")


def kept() -> list[object]:
    """Calls that are still allocated, also those that only a reference cycle keeps, and those of other tests."""
    return [each for each in gc.get_objects() if type(each) is Call]


@pytest.mark.usefixtures("no_collection")
def test_a_stream_collected_during_an_engine_step_is_closed_after_the_step(agent: FakeAgent) -> None:
    agent.transfer = endless
    with SandboxClient(agent.url, "key") as client:
        sandbox = client.get_sandbox("sb")
        stream = sandbox.files.stream("/file")
        assert len(next(stream)) == 1000
        cycle: list[object] = [stream]
        cycle.append(cycle)
        del stream, cycle
        driver = sandbox._driver
        assert driver is not None
        step = threading.Thread(target=driver.perform, args=(gc.collect,), daemon=True)
        step.start()
        step.join(60)
        assert not step.is_alive(), "the collector waits for the lock that its own thread holds"
        until(lambda: len(agent.closes) == 1, deadline_s=60, what="the agent to receive the close")
        assert sandbox.exec("echo on").stdout == "on\n"


@pytest.mark.parametrize("stream", [AsyncCommandStream, CommandStream])
def test_a_stream_interrupted_in_its_constructor_is_finalized_without_an_error(stream: Any) -> None:
    stream.__new__(stream).__del__()
