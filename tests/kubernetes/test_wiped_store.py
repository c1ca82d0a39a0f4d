"""A cluster whose Redis is wiped while pods are being created: none is forgotten, and a delete in that time is carried out."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from gateway.controller.loop import Controller
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings
from tests.gateway.controllers import at_work
from tests.gateway.harness import DEADLINE_S, Served, id_of_adas, serve
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.kubelet import Kubelet, ProcessAgent
from tests.support.kube.probe_pods import ProbePods
from tests.support.kube.server import FakeApi
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

FAST = ControllerSettings(lease_ttl_s=2.0, lease_renew_s=0.05, expiry_interval_s=0.05, reconcile_interval_s=0.05, grace_s=60.0)
IDS = [f"sb-{number}" for number in range(6)]


class SlowAgent(ProcessAgent):
    """Starts once ``may_start`` is set, as a pod whose image is being pulled."""

    may_start: asyncio.Event

    async def start(self) -> None:
        await self.may_start.wait()
        await super().start()

    async def ended(self) -> int:
        await self.may_start.wait()
        return await super().ended() if self._process is not None else 0


@pytest_asyncio.fixture
async def slow(api: FakeApi, redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Served, Controller]]:
    """A gateway and a controller on a cluster whose pods have no agent yet."""
    SlowAgent.may_start = asyncio.Event()
    with ProbePods(api).run():
        async with Kubelet(api, agent=SlowAgent).run(), serve(redis_url, tmp_path) as served:
            runtime = KubernetesRuntime(settings_for(api, tmp_path), "replica-1", QUICK)
            served.gateway.runtime = runtime
            try:
                yield served, Controller(served.store, runtime, "c1", FAST)
            finally:
                SlowAgent.may_start.set()
                await served.gateway.background.aclose()
                await runtime.aclose()


async def test_sandboxes_in_creation_are_neither_forgotten_nor_left_behind(
    slow: tuple[Served, Controller], api: FakeApi, redis_server: RedisServer
) -> None:
    served, controller = slow
    async with served.client() as client, at_work(controller):

        async def asked(method: str, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
            answer = await client.request(method, path, **more)
            return answer.status_code, answer.json()

        async def is_known(id_: str) -> bool:
            code, body = await asked("GET", f"/sandboxes/{id_}")
            assert code in (200, 503), body
            return code == 200

        for id_ in IDS:
            body = {"image": "host", "sandbox_id": id_, "block_network": False, "heartbeat_timeout_s": 3600}
            assert (await asked("POST", "/sandboxes", json=body))[0] == 200
        await until_async(lambda: len(api.pods.names()) == len(IDS), deadline_s=DEADLINE_S, what="the pods")
        redis_server.flush()
        early, late, kept = IDS[:2], IDS[2:4], IDS[4:]
        for id_ in early:
            code, body = await asked("DELETE", f"/sandboxes/{id_}")
            assert code in (200, 503), body
        for id_ in late + kept:
            await until_async(functools.partial(is_known, id_), deadline_s=DEADLINE_S, what="its record")
            assert (await asked("GET", f"/sandboxes/{id_}"))[1]["status"] == "pending"
        for id_ in late:
            assert (await asked("DELETE", f"/sandboxes/{id_}"))[0] == 200
        SlowAgent.may_start.set()
        for id_ in kept:
            code, body = await asked("GET", f"/sandboxes/{id_}/wait?timeout=60")
            assert (code, body["status"]) == (200, "ready"), body
        await until_async(
            lambda: set(api.pods.names()) == {f"hf-{id_of_adas(id_)}" for id_ in kept}, deadline_s=DEADLINE_S, what="the deletes"
        )
        for id_ in early + late:
            assert (await asked("GET", f"/sandboxes/{id_}"))[0] == 410
