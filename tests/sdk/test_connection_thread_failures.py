"""The thread of a session survives failures around it; where it cannot, its callers get the error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from holdfast import OutcomeUnknownError, SandboxClient, ServiceUnavailableError
from holdfast._transport.threads.driver import SessionDriver

from tests.sdk.support.fake_agent import FakeAgent


async def test_a_host_that_cannot_be_a_name_is_reported(face: Any) -> None:
    client = face.client(f"http://{'a' * 70}.example:99", "key", connect_timeout_s=0.2, transport="session")
    with pytest.raises(ServiceUnavailableError, match="cannot connect"):
        await asyncio.wait_for(client.get_sandbox("sb").exec("true"), 20)
    await client.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_link_thread_that_fails_ends_the_waits(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(driver: SessionDriver, *args: object) -> None:
        raise ZeroDivisionError

    with SandboxClient(agent.url, "key") as client:
        sandbox = client.get_sandbox("sb")
        process = sandbox.start("hang", command_id="h")
        monkeypatch.setattr("holdfast._transport.threads.driver.SessionDriver._pause", broken)
        agent.cut()
        with pytest.raises(OutcomeUnknownError, match="ZeroDivisionError"):
            process.wait(20)
