"""What the regression tests share: one sandbox, and the same sandbox through a link that can be cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from holdfast import Sandbox, SandboxClient

from tests.faults.proxy import FaultProxy, Weather
from tests.support.stack import Stack


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[SandboxClient]:
    with SandboxClient(stack.url, stack.key) as client:
        yield client


@pytest.fixture(scope="session")
def sandbox(client: SandboxClient) -> Iterator[Sandbox]:
    """One for all of these tests: none of them may make it unusable, which is part of what they verify."""
    with client.create_sandbox("host", memory="1Gi") as sandbox:
        yield sandbox


@dataclass(frozen=True)
class Link:
    """A sandbox reached through a proxy that can cut the connection."""

    proxy: FaultProxy
    client: SandboxClient
    sandbox: Sandbox

    def fresh(self) -> Sandbox:
        """The sandbox with a session of its own."""
        return self.client.get_sandbox(self.sandbox.id)

    def cut_and_reconnect(self) -> None:
        """Cut the connection, and return when the session is attached again and has run a command."""
        self.proxy.cut_all()
        assert self.sandbox.exec("true", timeout=20).exit_code == 0


@pytest.fixture
def weather() -> Weather:
    """Override this for faults that occur without a call."""
    return Weather()


@pytest.fixture
def link(stack: Stack, sandbox: Sandbox, weather: Weather) -> Iterator[Link]:
    with (
        FaultProxy(stack.url.replace("http://", "tcp://"), seed=7, weather=weather) as proxy,
        SandboxClient(proxy.url, stack.key) as client,
    ):
        proxied = client.get_sandbox(sandbox.id)
        try:
            yield Link(proxy, client, proxied)
        finally:
            proxied.close()
