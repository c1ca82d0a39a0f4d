"""Sizes that no machine here has are refused at once, and docker's units are understood."""

from __future__ import annotations

import os

import httpx
import pytest
from holdfast import InvalidArgumentError, SandboxClient

from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis")]


@pytest.mark.parametrize("asked", [{"memory": "500Ti"}, {"cpu": 1024}, {"cpu": "1024", "memory": "64m"}])
def test_more_than_the_machine_has_is_refused(client: SandboxClient, asked: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        client.create_sandbox("host", **asked)  # type: ignore[arg-type]
    assert refused.value.code == "invalid_quantity"
    assert not refused.value.retryable
    assert "more than any machine here has" in refused.value.message
    assert next(iter(asked)) in refused.value.message


def test_all_that_the_machine_has_may_be_asked_for(client: SandboxClient) -> None:
    with client.create_sandbox("host", cpu=os.cpu_count()) as sandbox:
        assert sandbox.exec("true").ok


def test_dockers_units(client: SandboxClient) -> None:
    with client.create_sandbox("host", memory="256m", disk="1g", cpu=0.5) as sandbox:
        assert sandbox.info().memory == "256m"
        assert sandbox.exec("true").ok


def test_the_defaults_are_taken_whatever_the_machine_has(rest: httpx.Client) -> None:
    """Orchard's clients ask for nothing and get four cores and 16Gi, be the machine ever so small."""
    made = rest.post("/sandboxes", json={"image": "host", "wait": True}).json()
    assert (made["cpu"], made["memory"], made["status"]) == ("4", "16Gi", "ready")
    rest.delete(f"/sandboxes/{made['sandbox_id']}")
