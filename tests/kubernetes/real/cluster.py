"""A namespace on the cluster that KUBECONFIG names, set up like a deployment, and settings for a runtime in it.

Creates and removes the namespace. The gateway of these tests runs where pytest runs, outside of the cluster, and connects to pods by
their addresses; so here, unlike in a deployment, connections to agents are allowed from everywhere.
`HOLDFAST_TEST_IMAGE` and `HOLDFAST_TEST_DEBIAN` name a busybox and a Debian image that the cluster can start.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from holdfast_wire.bundle import AGENT_PORT

from gateway.runtimes.kubernetes.api.client import Api, ApiError
from gateway.runtimes.kubernetes.cluster import network_probe, node_probes
from gateway.runtimes.kubernetes.settings import KubernetesSettings
from tests.support.until import until_async

IMAGE = os.environ.get("HOLDFAST_TEST_IMAGE", "docker.io/library/busybox:stable")
DEBIAN = os.environ.get("HOLDFAST_TEST_DEBIAN", "docker.io/library/debian:stable")
OUTSIDE = os.environ.get("HOLDFAST_TEST_OUTSIDE", "")
"""An address of this machine outside of the cluster's ranges, to which pods are routed."""
CPU_SHARE = 0.02
"""The part of a sandbox's cores that is reserved: the nodes of these tests are small."""
CIDRS = tuple(filter(None, os.environ.get("HOLDFAST_CLUSTER_CIDRS", "").split(",")))


def kubeconfig() -> str:
    return os.environ["KUBECONFIG"]


@contextlib.asynccontextmanager
async def namespace(*, with_policies: bool = True) -> AsyncIterator[KubernetesSettings]:
    """A new namespace with the baseline standard, whose policies deny all traffic except connections to agents."""
    api = Api(kubeconfig(), 20.0)
    name = f"hf-test-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    await api.post("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    try:
        await until_async(lambda: _has_account(api, name), deadline_s=60, what="the namespace's service account")
        for policy in _policies() if with_policies else []:
            await api.post(f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies", policy)
        settings = KubernetesSettings(
            namespace=name,
            kubeconfig=kubeconfig(),
            bundle_image=os.environ["HOLDFAST_BUNDLE_IMAGE"],
            sandbox_profile=os.environ.get("HOLDFAST_SANDBOX_PROFILE", "userns"),  # type: ignore[arg-type]
            bundle_injection=os.environ.get("HOLDFAST_BUNDLE_INJECTION", "auto"),  # type: ignore[arg-type]
            cpu_request_share=CPU_SHARE,
            unschedulable_patience_s=2.0,
            pull_patience_s=5.0,
            cluster_cidrs=CIDRS,
        )
        if with_policies:
            await _note_verdict(api, settings)
        yield settings
    finally:
        await api.delete(f"/api/v1/namespaces/{name}")
        await api.aclose()


async def _note_verdict(api: Api, settings: KubernetesSettings) -> None:
    """Write the verdict that a deployment's controller writes before the first isolated sandbox; probe only once in a run."""
    if not _verdicts:
        verdict = await network_probe.probe(api, settings)
        assert verdict.conclusive, f"the probe cannot determine whether this cluster enforces network policies: {verdict.detail}"
        _verdicts.append(verdict)
    else:
        await network_probe.store_verdict(api, settings, _verdicts[0])


async def require_image_volumes(settings: KubernetesSettings) -> None:
    """Skip the running test where the nodes cannot mount a part of an image: containerd before 2.2."""
    if not _volumes:
        api = Api(kubeconfig(), 20.0)
        try:
            _volumes.append(await node_probes.probe(api, replace(settings, bundle_injection="auto")))
        finally:
            await api.aclose()
    if _volumes[0].volume is False:
        pytest.skip(f"needs nodes that mount a part of an image (containerd 2.2, CRI-O 1.33): {_volumes[0].volume_why}")


_volumes: list[node_probes.NodeVerdict] = []
_verdicts: list[network_probe.Verdict] = []


async def _has_account(api: Api, name: str) -> bool:
    try:
        await api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def _policies() -> list[dict[str, Any]]:
    deny = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    agents = {
        "podSelector": {"matchLabels": {"app.kubernetes.io/component": "sandbox"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"protocol": "TCP", "port": AGENT_PORT}]}],
    }
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return [{**kind, "metadata": {"name": name}, "spec": spec} for name, spec in (("default-deny", deny), ("agents", agents))]
