"""The fixtures of SWE-ReX's own tests, on the service's endpoint in place of SWE-ReX's server. Copied beside its tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
from holdfast import SandboxClient
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    with SandboxClient() as client, client.create_sandbox("host") as sandbox:
        sandbox.exec("ln -sf /usr/bin/python3 /usr/local/bin/python")
        yield f"{client.url}/sandboxes/{sandbox.id}/swerex"


@pytest.fixture
async def remote_runtime(endpoint: str) -> AsyncIterator[RemoteRuntime]:
    runtime = RemoteRuntime(host=endpoint, port=None, auth_token=os.environ["HOLDFAST_API_KEY"])
    yield runtime
    await runtime.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime: RemoteRuntime) -> AsyncIterator[RemoteRuntime]:
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


class _Action(BashAction):
    timeout: float | None = 10


class _Command(Command):
    timeout: float | None = 10
