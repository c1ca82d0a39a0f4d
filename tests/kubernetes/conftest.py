"""Fixtures of the Kubernetes tests: a fake cluster with real agents, and a runtime on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from gateway.runtimes.kubernetes.api.watch import WatchSettings
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.runtimes.kubernetes.settings import KubernetesSettings
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.server import FakeApi

QUICK = WatchSettings(page=3, server_limit_s=60, silence_s=3.0, backoff_least_s=0.02, backoff_most_s=0.2)


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi().serve() as served:
        yield served


@pytest_asyncio.fixture
async def kubelet(api: FakeApi) -> AsyncIterator[Kubelet]:
    async with Kubelet(api).run() as running:
        yield running


def settings_for(api: FakeApi, folder: Path, **more: object) -> KubernetesSettings:
    given = {"namespace": api.namespace, "bundle_image": "registry.example/bundle:1", "page": 3, **more}
    return KubernetesSettings(kubeconfig=api.kubeconfig(folder), **given)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def runtime(api: FakeApi, kubelet: Kubelet, tmp_path: Path) -> AsyncIterator[KubernetesRuntime]:
    made = KubernetesRuntime(settings_for(api, tmp_path), "replica-1", QUICK)
    yield made
    await made.aclose()
