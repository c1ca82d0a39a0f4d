"""The thread of a session survives failures of its environment; where it cannot, its callers get the error."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from holdfast import HoldfastError, OutcomeUnknownError, SandboxClient, ServiceUnavailableError
from holdfast._options import Options
from holdfast._transport.threads.driver import SessionDriver

from tests.sdk.support.fake_agent import FakeAgent


async def test_an_invalid_host_name_is_reported(face: Any) -> None:
    client = face.client(f"http://{'a' * 70}.example:99", "key", connect_timeout_s=0.2, transport="session")
    with pytest.raises(ServiceUnavailableError, match="cannot connect"):
        await asyncio.wait_for(client.get_sandbox("sb").exec("true"), 60)
    await client.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_in_the_session_thread_ends_the_waits(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(driver: SessionDriver, *args: object) -> None:
        raise ZeroDivisionError

    with SandboxClient(agent.url, "key") as client:
        sandbox = client.get_sandbox("sb")
        process = sandbox.start("hang", command_id="h")
        monkeypatch.setattr("holdfast._transport.threads.driver.SessionDriver._pause", broken)
        agent.cut()
        with pytest.raises(OutcomeUnknownError, match="ZeroDivisionError"):
            process.wait(60)


def test_a_thread_that_reuses_the_id_of_the_ended_session_thread_may_use_the_session() -> None:
    """Threads of a pool start and end all the time, and the system reuses their ids."""
    driver = SessionDriver(Options(url="http://127.0.0.1:1", api_key="key", transport="session", connect_timeout_s=0.1), "sb")
    with pytest.raises(HoldfastError):
        driver.start()
    driver._thread.join(60)
    outcomes: dict[int, str] = {}

    def use() -> None:
        try:
            driver.perform(bool)
            outcomes[threading.get_ident()] = "served"
        except RuntimeError as error:
            outcomes[threading.get_ident()] = str(error)

    for _ in range(1000):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(60)
        if driver._thread.ident in outcomes:
            break
    assert outcomes.get(driver._thread.ident or 0) == "served"
