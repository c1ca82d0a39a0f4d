"""Fixtures of the end-to-end tests: a client of the session's stack, the key of another tenant, and one sandbox per module."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator

import httpx
import pytest
from holdfast import Sandbox, SandboxClient, Shell

from tests.support.stack import Stack


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[SandboxClient]:
    """The synchronous client of the shared stack."""
    with SandboxClient(stack.url, stack.key) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(client: SandboxClient) -> Iterator[Sandbox]:
    """One sandbox for a module's tests, which share its state."""
    with client.create_sandbox("host") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def living(sandbox: Sandbox) -> Iterator[Shell]:
    """A shell that was opened before the test; the test must not change its state."""
    with sandbox.shell() as shell:
        shell.run("KEPT=kept; cd /usr")
        yield shell


@pytest.fixture
def nothing_lost(living: Shell) -> Iterator[None]:
    """Check after the test that the living shell still has its variable and its working directory."""
    yield
    result = living.run("echo $KEPT; pwd", timeout=60)
    assert (result.stdout, result.shell_restarted) == ("kept\n/usr\n", False)


@pytest.fixture(scope="session")
def stranger_key(stack: Stack) -> str:
    """A key of the same service that belongs to another owner."""
    key = f"hf_{secrets.token_hex(16)}"
    with (stack.data / "keys").open("a") as file:
        file.write(f"stranger {hashlib.sha256(key.encode()).hexdigest()}\n")
    return key


@pytest.fixture(scope="session")
def rest(stack: Stack) -> Iterator[httpx.Client]:
    """Plain HTTP with the stack's key."""
    with httpx.Client(verify=False, base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=60) as rest:
        yield rest
