"""The walk-through of several pools of nodes: its overlay is rendered, and its requests become pods that fit those pools and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from holdfast_wire.errors import HoldfastError

from gateway.model.option_fields import read_options
from gateway.runtimes.kubernetes.pods.manifest import pod
from gateway.runtimes.kubernetes.pods.sharing import check
from gateway.runtimes.kubernetes.settings import KubernetesSettings, read
from tests.conformance.runtimes import order
from tests.infra.kustomize import render
from tests.infra.overlays import compose

POOLS: dict[str, tuple[dict[str, str], list[str]]] = {
    "small": ({"workload": "sandbox", "pool": "small"}, ["workload"]),
    "large": ({"workload": "sandbox", "pool": "large"}, ["workload"]),
    "gpu": ({"workload": "sandbox", "pool": "gpu"}, ["workload", "nvidia.com/gpu"]),
    "system": ({"pool": "system"}, []),
}
"""Labels and keys of taints of the nodes of the walk-through."""


@pytest.fixture
def settings(tmp_path: Path) -> KubernetesSettings:
    manifests = render(compose(tmp_path, "gateway", "redis", "pools"))
    (found,) = [one["data"] for one in manifests if one["kind"] == "ConfigMap" and one["metadata"]["name"] == "holdfast-settings"]
    (claim,) = [one for one in manifests if one["kind"] == "PersistentVolumeClaim"]
    kubernetes_validate.validate(claim, "1.36", strict=True)
    return read(found)


def fitting(settings: KubernetesSettings, body: dict[str, Any]) -> set[str]:
    """The pools on whose nodes the pod of a request may run. Raises ``HoldfastError`` for what is refused."""
    request = order("a")
    request = replace(request, spec=replace(request.spec, options=read_options(body)))
    check(request, settings)
    made = pod(request, settings, "image", "replica")
    kubernetes_validate.validate(made, "1.36", strict=True)
    selector = made["spec"].get("nodeSelector", {}).items()
    tolerated = {one.get("key") for one in made["spec"].get("tolerations", ())}
    return {
        name
        for name, (labels, taints) in POOLS.items()
        if selector - {("kubernetes.io/os", "linux")} <= labels.items() and tolerated >= set(taints)
    }


def test_sandboxes_keep_to_the_nodes_that_are_theirs(settings: KubernetesSettings) -> None:
    assert fitting(settings, {}) == {"small", "large"}
    assert fitting(settings, {"node_selector": {"pool": "large"}}) == {"large"}
    wanted = {"resources": {"nvidia.com/gpu": 1}, "tolerations": [{"key": "nvidia.com/gpu"}], "node_selector": {"pool": "gpu"}}
    assert fitting(settings, wanted) == {"gpu"}


def test_nodes_with_gpus_are_refused_to_others(settings: KubernetesSettings) -> None:
    with pytest.raises(HoldfastError, match="not shared"):
        fitting(settings, {"tolerations": [{"key": "nvidia.com/gpu"}]})
    with pytest.raises(HoldfastError, match="not shared"):
        fitting(settings, {"node_selector": {"workload": "system"}})


def test_the_shared_claim_can_be_mounted_and_no_other(settings: KubernetesSettings) -> None:
    body = {"kind": "claim", "source": "datasets", "path": "/data", "read_only": True}
    assert fitting(settings, {"volumes": [body]}) == {"small", "large"}
    with pytest.raises(HoldfastError, match="not shared"):
        fitting(settings, {"volumes": [{**body, "source": "another"}]})
