"""The manifests render, match the schemas of Kubernetes, pass the restricted standard and request no right that is not used.

No cluster is needed; `make test-cluster` uses a real one.
"""

from __future__ import annotations

import copy
import itertools
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.runtimes.kubernetes.pods.manifest import pod
from gateway.runtimes.kubernetes.pods.profiles import STANDARDS
from gateway.runtimes.kubernetes.settings import read
from tests.conformance.runtimes import order
from tests.infra.kustomize import RenderError, identity, render
from tests.infra.overlays import ALL, EVERYTHING, K8S, OVERLAYS, compose, everything, of_kind, pod_templates, rendered
from tests.infra.podsecurity import violations
from tests.support.kube.rules import check_pod

MODES = ("enforce", "warn", "audit")
OPERATOR_APIS = {"monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1", "serving.knative.dev/v1"}
"""Served by operators, not by Kubernetes, so there is no schema for them; `test_agreement` checks them."""
USED_RIGHTS = {
    ("", "namespaces"): {"get"},
    ("", "events"): {"list", "watch"},
    ("", "pods"): {"create", "get", "list", "watch", "patch", "delete"},
    ("apps", "daemonsets"): {"create", "get", "list", "delete"},
    ("networking.k8s.io", "networkpolicies"): {"create", "get", "list", "watch", "patch", "delete"},
    ("cilium.io", "ciliumnetworkpolicies"): {"create", "get", "list", "watch", "patch", "delete"},
}


def test_the_four_overlays_exist() -> None:
    assert OVERLAYS == ("aks", "dev", "generic", "knative")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here: only our own renderer was tried")
@pytest.mark.parametrize("name", ALL)
def test_kubectl_renders_the_same(name: str, tmp_path: Path) -> None:
    folder = everything(tmp_path) if name == EVERYTHING else K8S / "overlays" / name
    text = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout
    by_kubectl = {identity(document): document for document in yaml.safe_load_all(text)}
    assert by_kubectl == {identity(document): document for document in rendered(name)}


def test_the_renderer_refuses_unknown_fields_and_targets(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: x-\n")
    with pytest.raises(RenderError, match="namePrefix"):
        render(tmp_path)
    (tmp_path / "kustomization.yaml").write_text("patches: [{patch: '[{op: add, path: /a, value: 1}]', target: {kind: Pod, name: x}}]")
    with pytest.raises(RenderError, match="nothing matches"):
        render(tmp_path)


@pytest.mark.parametrize("version", ["1.33", "1.36"])
@pytest.mark.parametrize("name", ALL)
def test_manifests_match_the_schemas(name: str, version: str) -> None:
    for manifest in rendered(name):
        if manifest["apiVersion"] not in OPERATOR_APIS:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_refuse_an_unknown_field() -> None:
    broken = copy.deepcopy(of_kind("dev", "Deployment")[0])
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(broken, "1.36", strict=True)


@pytest.mark.parametrize("name", ALL)
def test_pods_pass_the_restricted_standard(name: str) -> None:
    templates = pod_templates(name)
    assert len(templates) >= 2
    assert {which: found for which, template in templates if (found := violations(template["spec"]))} == {}


@pytest.mark.parametrize(
    "change",
    [
        {"hostNetwork": True},
        {"securityContext": {}},
        {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        {"containers": {"securityContext": {}}},
        {"containers": {"ports": [{"containerPort": 1, "hostPort": 1}]}},
        {"containers": {"securityContext": {"privileged": True}}},
    ],
    ids=str,
)
def test_the_standard_refuses_unsafe_pods(change: dict[str, Any]) -> None:
    spec = copy.deepcopy(pod_templates("dev")[0][1]["spec"])
    spec["containers"][0] |= change.pop("containers", {})
    assert violations(spec | change)


@pytest.mark.parametrize("name", ALL)
def test_pods_have_a_read_only_root_and_limits(name: str) -> None:
    for which, template in pod_templates(name):
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, which
            assert container["resources"]["limits"]["memory"], which
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), which
        assert template["spec"]["enableServiceLinks"] is False, "variables of a Service would be read as settings"


@pytest.mark.parametrize("name", ALL)
def test_namespaces_enforce_the_standard_that_their_pods_can_meet(name: str) -> None:
    assert _levels(of_kind(name, "Namespace")) == {"holdfast": "restricted", "holdfast-sandboxes": "baseline"}
    (settings,) = [one["data"] for one in of_kind(name, "ConfigMap") if one["metadata"]["name"] == "holdfast-settings"]
    assert STANDARDS[settings["HOLDFAST_SANDBOX_PROFILE"]] == "baseline"


@pytest.mark.parametrize(
    ("components", "profile", "root", "level"),
    [
        (("profile-root",), "root", False, "baseline"),
        (("profile-restricted",), "restricted", False, "restricted"),
        (("profile-restricted", "root"), "restricted", True, "baseline"),
    ],
)
def test_a_component_chooses_the_profile(tmp_path: Path, components: tuple[str, ...], profile: str, root: bool, level: str) -> None:
    manifests = render(compose(tmp_path, "gateway", "redis", *components))
    assert _levels(manifests) == {"holdfast": "restricted", "holdfast-sandboxes": level}
    data = next(one["data"] for one in manifests if one["metadata"]["name"] == "holdfast-settings")
    settings = read(data)
    assert (settings.sandbox_profile, settings.allow_root) == (profile, root)
    check_pod(pod(order("sb-1"), settings, "init", "r"), restricted=level == "restricted")


def _levels(manifests: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The standard that each namespace enforces, which is also the one for its warnings and its audit log."""
    found = {}
    for one in manifests:
        if one["kind"] == "Namespace":
            (found[one["metadata"]["name"]],) = {one["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"] for mode in MODES}
    return found


@pytest.mark.parametrize("name", ALL)
def test_roles_have_only_rights_in_use(name: str) -> None:
    used = {right: verbs for right, verbs in USED_RIGHTS.items() if name == EVERYTHING or right[0] != "cilium.io"}
    by_controller = {right: verbs for right, verbs in used.items() if right != ("", "namespaces")}  # only the doctor reads it
    granted: dict[str, dict[tuple[str, str], set[str]]] = {}
    for role in of_kind(name, "Role"):
        assert role["metadata"]["namespace"] == "holdfast-sandboxes"
        rights = granted[role["metadata"]["name"]] = defaultdict(set)
        for rule in role["rules"]:
            for right in itertools.product(rule["apiGroups"], rule["resources"]):
                rights[right] |= set(rule["verbs"])
    assert granted == {"holdfast-gateway": used, "holdfast-controller": by_controller}
    wide = [(one["metadata"]["name"], one["rules"]) for one in of_kind(name, "ClusterRole")]
    node_stats = ("holdfast-node-stats", [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}])
    assert wide == ([node_stats] if name in ("aks", EVERYTHING) else [])
    assert "*" not in {
        text for one in of_kind(name, "Role", "ClusterRole") for rule in one["rules"] for part in rule.values() for text in part
    }


@pytest.mark.parametrize("name", ALL)
def test_only_callers_of_the_api_server_have_a_token(name: str) -> None:
    accounts = {one["metadata"]["name"]: one["automountServiceAccountToken"] for one in of_kind(name, "ServiceAccount")}
    bound = {subject["name"] for one in of_kind(name, "RoleBinding", "ClusterRoleBinding") for subject in one["subjects"]}
    assert {account for account, token in accounts.items() if token} == bound == {"holdfast-gateway", "holdfast-controller"}
    for one in of_kind(name, "RoleBinding", "ClusterRoleBinding"):
        assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in {
            (role["kind"], role["metadata"]["name"]) for role in of_kind(name, "Role", "ClusterRole")
        }


@pytest.mark.parametrize("name", ALL)
def test_no_secret_is_committed(name: str) -> None:
    assert of_kind(name, "Secret") == []
    for path in K8S.rglob("*.yaml"):
        text = path.read_text()
        assert not re.search(r"BEGIN [A-Z ]*PRIVATE KEY|hf_[A-Za-z0-9_-]{20}|[A-Za-z0-9+/]{60}", text), path
        assert not re.search(r"://:[^$\s]", re.sub(r"(?m)^\s*#.*$", "", text)), f"{path}: a password in an address"


@pytest.mark.parametrize("name", ALL)
def test_images_are_named_without_a_registry(name: str) -> None:
    images = {container["image"] for _, template in pod_templates(name) for container in template["spec"]["containers"]}
    own_redis = set() if name == EVERYTHING else {"redis"}  # that one uses a managed Redis
    assert {image.partition(":")[0] for image in images} == {"holdfast-gateway"} | own_redis
    assert all(":" in image for image in images)


def test_each_overlay_has_its_components_and_one_more_has_all() -> None:
    used = {}
    for path in K8S.glob("overlays/*/kustomization.yaml"):
        used[path.parent.name] = [Path(one).name for one in yaml.safe_load(path.read_text())["components"]]
    assert used == {
        "aks": ["gateway", "redis", "redis-disk", "limits", "autoscaling", "node-stats"],
        "dev": ["gateway", "redis"],
        "generic": ["gateway", "redis", "redis-disk", "limits", "autoscaling"],
        "knative": ["redis", "redis-disk", "limits"],
    }
    optional = {"ServiceMonitor", "PodMonitor", "HTTPRoute", "Ingress", "HorizontalPodAutoscaler", "ClusterRole", "LimitRange"}
    assert optional <= {one["kind"] for one in rendered(EVERYTHING)}


def test_one_component_allows_root_and_only_to_sandboxes(tmp_path: Path) -> None:
    manifests = render(compose(tmp_path, "gateway", "redis", "root"))
    levels = {
        one["metadata"]["name"]: one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for one in manifests
        if one["kind"] == "Namespace"
    }
    assert levels == {"holdfast": "restricted", "holdfast-sandboxes": "baseline"}
    settings = next(one["data"] for one in manifests if one["metadata"]["name"] == "holdfast-settings")
    assert settings["HOLDFAST_ALLOW_ROOT"] == "true"
    assert all("HOLDFAST_ALLOW_ROOT" not in one.get("data", {}) for name in ALL for one in of_kind(name, "ConfigMap"))
