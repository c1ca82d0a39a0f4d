"""What keeps a session's connection outlives what goes wrong around it; where it cannot, its callers hear of it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any

import pytest
from holdfast import OutcomeUnknownError, SandboxClient, ServiceUnavailableError
from holdfast._options import Options
from holdfast._transport.threads import Link
from holdfast._transport.threads_gates import Turn

from tests.sdk.support.fake_agent import FakeAgent


async def test_a_host_that_no_name_can_be_is_told(face: Any) -> None:
    client = face.client(f"http://{'a' * 70}.example:99", "key", connect_timeout_s=0.2, transport="session")
    with pytest.raises(ServiceUnavailableError, match="cannot connect"):
        await asyncio.wait_for(client.get_sandbox("sb").exec("true"), 20)
    await client.close()


def test_who_comes_late_to_a_wake_up_finds_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(Options(url="http://127.0.0.1:1", api_key="key"), "sb")
    enter = Turn.__enter__

    def late(turn: Turn) -> None:
        os.read(link._wake_read, 64)  # as the leader did that was woken too, and that has resigned by now
        enter(turn)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        link.wake()
        monkeypatch.setattr(Turn, "__enter__", late)
        assert link._serve_once(ours, time.monotonic() + 20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_keeper_that_dies_tells_who_waits(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(link: Link, *args: object) -> None:
        raise ZeroDivisionError

    with SandboxClient(agent.url, "key") as client:
        sandbox = client.get_sandbox("sb")
        process = sandbox.start("hang", command_id="h")
        monkeypatch.setattr("holdfast._transport.threads_keeper.Keeper._broken", broken)
        agent.cut()
        with pytest.raises(OutcomeUnknownError, match="ZeroDivisionError"):
            process.wait(20)
