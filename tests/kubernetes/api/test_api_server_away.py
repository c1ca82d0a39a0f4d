"""Creates while the API server is unavailable and right after it returns: what the runbook promises, over REST and in the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from holdfast import AsyncSandboxClient, ServiceUnavailableError

from gateway.runtimes.kubernetes.api.watch import WatchSettings
from gateway.runtimes.kubernetes.pods import creation
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.gateway.harness import ADA, Served, serve
from tests.kubernetes.conftest import settings_for
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.server import FakeApi
from tests.support.pace import Stopwatch
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

LONG_BACKOFF = WatchSettings(page=3, server_limit_s=60, silence_s=3.0, backoff_least_s=100.0, backoff_most_s=100.0)
"""A watch that breaks does not connect again during a test, unless something wakes it."""


class Outage:
    """Outages of the API server behind ``api``: requests get no answer, a cut connection, or status 503."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._handle = api._route
        self.away = ""
        self.failed_requests = 0
        api._route = self.handle  # type: ignore[method-assign]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not self.away:
            return await self._handle(request)
        self.failed_requests += 1
        if self.away == "silent":
            await asyncio.sleep(3600)
        if self.away == "cut":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"kind": "Status", "reason": "ServiceUnavailable", "message": "etcd is away", "code": 503}, status=503)

    def begin(self, kind: str) -> None:
        self.away = kind
        self._api.drop_watches()


@pytest_asyncio.fixture
async def served(redis_url: str, api: FakeApi, kubelet: Kubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(creation, "_AWAY_S", 2.0)
    monkeypatch.setattr(creation, "_NO_ANSWER_S", 2.0)
    runtime = KubernetesRuntime(settings_for(api, tmp_path, request_timeout_s=2.0), "replica-1", LONG_BACKOFF)
    async with serve(redis_url, tmp_path) as served:
        served.gateway.runtime = runtime
        try:
            yield served
        finally:
            await runtime.aclose()


def body(number: int, **more: Any) -> dict[str, Any]:
    return {"image": "host", "cpu": 1, "memory": "64Mi", "wait": True, "sandbox_id": f"sb-{number}", **more}


@pytest.mark.parametrize("kind", ["cut", "refusing", "silent"])
@pytest.mark.parametrize("timeout_s", [0.6, 30.0])
async def test_a_create_answers_503_and_a_later_one_succeeds(served: Served, api: FakeApi, kind: str, timeout_s: float) -> None:
    """Also where the sandbox's own timeout ends before the gateway gives up on the API server: the sandbox is not the cause."""
    outage = Outage(api)
    async with served.client() as client:
        assert (await client.post("/sandboxes", json=body(0))).status_code == 200  # caches what only the first create requests
        outage.begin(kind)
        create_request = {"json": body(1, timeout=timeout_s), "headers": {"Idempotency-Key": "k1"}}
        for _ in range(2):
            answer = await client.post("/sandboxes", **create_request)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["code"]) == (503, "runtime_unavailable"), answer.text
            assert int(answer.headers["Retry-After"]) >= 1
            assert answer.json()["retryable"]
        outage.away = ""
        if timeout_s > 1:
            answer = await client.post("/sandboxes", **create_request)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["status"]) == (200, "ready")


async def test_the_sdk_reports_an_unavailable_service_not_a_lost_sandbox(served: Served, api: FakeApi) -> None:
    outage = Outage(api)
    async with AsyncSandboxClient(served.url, ADA) as client:
        await client.create_sandbox("host", cpu="1", memory="64Mi")
        outage.begin("cut")
        with pytest.raises(ServiceUnavailableError) as caught:
            await client.create_sandbox("host", cpu="1", memory="64Mi", ready_timeout_s=8)
        assert caught.value.code == "runtime_unavailable"
        waiting = asyncio.create_task(client.create_sandbox("host", cpu="1", memory="64Mi", ready_timeout_s=60))
        before = outage.failed_requests
        await until_async(lambda: outage.failed_requests > before + 2, deadline_s=60, what="further requests")
        outage.away = ""
        assert (await (await waiting).exec(["echo", "up"])).stdout == "up\n"


async def test_creates_proceed_at_once_when_the_api_server_is_back(served: Served, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that has failed for long waits long before its next try; the first create that is answered wakes it."""
    monkeypatch.setattr(creation, "_NO_ANSWER_S", 60.0)
    outage = Outage(api)
    async with served.client() as client:
        assert (await client.post("/sandboxes", json=body(0))).status_code == 200
        outage.begin("cut")
        waiting = [asyncio.create_task(client.post("/sandboxes", json=body(n, timeout=60))) for n in range(1, 4)]
        await until_async(lambda: outage.failed_requests > 5, deadline_s=60, what="several requests to fail")
        outage.away = ""
        with Stopwatch() as watch:
            answers = await asyncio.gather(*waiting)
            assert watch.elapsed_s < 30.0
        assert [answer.json()["status"] for answer in answers] == ["ready"] * 3
