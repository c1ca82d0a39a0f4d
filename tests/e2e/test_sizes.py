"""Sizes that no machine of the service has are refused at once, and docker's units are understood."""

from __future__ import annotations

import os

import httpx
import pytest
from holdfast import InvalidArgumentError, SandboxClient

from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis")]


@pytest.mark.parametrize("size", [{"memory": "500Ti"}, {"memory": "500Ti", "cpu": 1024}])
def test_more_than_the_machine_has_is_refused(client: SandboxClient, size: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        client.create_sandbox("host", **size)  # type: ignore[arg-type]
    assert refused.value.code == "invalid_quantity"
    assert not refused.value.retryable
    assert "more than any machine here has" in refused.value.message
    assert next(iter(size)) in refused.value.message


def test_all_processors_of_the_machine_can_be_requested(client: SandboxClient) -> None:
    with client.create_sandbox("host", cpu=os.cpu_count()) as sandbox:
        assert sandbox.exec("true").ok


def test_more_processors_than_the_machine_has_are_lowered_to_them(client: SandboxClient) -> None:
    with client.create_sandbox("host", cpu=1024) as sandbox:
        assert float(sandbox.refresh().cpu) == os.cpu_count()
        assert sandbox.exec("true").ok


def test_dockers_units(client: SandboxClient) -> None:
    with client.create_sandbox("host", memory="256m", disk="1g", cpu=0.5) as sandbox:
        assert sandbox.info().memory == "256m"
        assert sandbox.exec("true").ok


def test_the_defaults_are_accepted_on_every_machine(rest: httpx.Client) -> None:
    """Orchard's clients request no size and get four cores and 16Gi, even on a smaller machine."""
    made = rest.post("/sandboxes", json={"image": "host", "wait": True}).json()
    assert (made["cpu"], made["memory"], made["status"]) == ("4", "16Gi", "ready")
    rest.delete(f"/sandboxes/{made['sandbox_id']}")
