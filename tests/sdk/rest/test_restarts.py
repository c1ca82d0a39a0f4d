"""REST while the service restarts: the client waits for a service that answered before; one that never answered is an error at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from holdfast import SandboxClient, ServiceUnavailableError
from holdfast._transport.rest.retry import ATTEMPTS

from tests.sdk.rest.test_rest import Answer, Service

NO_ANSWER: Answer = None
LIST: Answer = (200, {"sandboxes": []})
RECORD: Answer = (
    200,
    {
        "sandbox_id": "sb",
        "namespace": "default",
        "image": "host",
        "status": "ready",
        "ready": True,
        "block_network": True,
        "cpu": "1",
        "memory": "1Gi",
        "timeout": 60.0,
    },
)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr("holdfast._transport.rest.retry.CAP_S", 0.005)
    with Service() as running:
        yield running


def test_the_client_waits_for_a_service_that_answered_before(service: Service) -> None:
    service.answers = [LIST, *[NO_ANSWER] * 12, LIST, *[NO_ANSWER] * 12, RECORD]
    with SandboxClient(service.url, "k") as client:
        assert client.list_sandboxes() == []
        assert client.list_sandboxes() == []
        assert client.create_sandbox("host").id
    creates = [key for line, key in service.requests if line.startswith("POST /sandboxes")]
    assert len(creates) == 13
    assert len(set(creates)) == 1, "all creates are one request"


def test_the_client_does_not_wait_for_a_service_that_never_answered(service: Service) -> None:
    service.answers = [NO_ANSWER]
    with SandboxClient(service.url, "k") as client, pytest.raises(ServiceUnavailableError):
        client.list_sandboxes()
    assert len(service.requests) == ATTEMPTS


def test_the_wait_for_a_restart_is_limited(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast._transport.rest.retry.RESTART_S", 1.0)
    service.answers = [LIST, NO_ANSWER]
    with SandboxClient(service.url, "k") as client:
        client.list_sandboxes()
        with pytest.raises(ServiceUnavailableError, match="cannot reach"):
            client.list_sandboxes()
    assert len(service.requests) > ATTEMPTS + 1
