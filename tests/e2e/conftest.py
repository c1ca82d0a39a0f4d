"""What the end-to-end tests share: a client of the session's stack, and one sandbox per module to be reused where isolation allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from holdfast import Sandbox, SandboxClient

from tests.support.stack import Stack


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[SandboxClient]:
    """The synchronous client of the shared stack."""
    with SandboxClient(stack.url, stack.key) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(client: SandboxClient) -> Iterator[Sandbox]:
    """One sandbox for a module's tests: what a test leaves in it, the next one sees."""
    with client.create_sandbox("host") as sandbox:
        yield sandbox
