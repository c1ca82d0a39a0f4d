"""The deploy script without a cluster: names of images, keys, and what is checked before and after manifests are applied."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gateway.identity.keys import Keys
from gateway.runtimes.kubernetes.cluster import node_probes
from infra.scripts.deploy import __main__ as deploying
from infra.scripts.deploy import checks, keys
from infra.scripts.deploy.__main__ import main as deploy
from infra.scripts.deploy.kubectl import DeployError, Kubectl
from infra.scripts.deploy.render import MARK, SETTINGS, containers, marked, with_images, with_pull_secret
from tests.infra.kustomize import render
from tests.infra.overlays import K8S


def test_images_of_a_registry_and_marks_of_changed_settings() -> None:
    manifests = render(K8S / "overlays/dev")
    with_images(manifests, "r.example.com/team", "v1")
    marked(manifests)
    images = {container["image"] for one in manifests for container in containers(one)}
    assert images == {"r.example.com/team/holdfast-gateway:v1", "redis:7-alpine"}
    settings = next(one for one in manifests if one["kind"] == "ConfigMap" and one["metadata"]["name"] == SETTINGS)
    assert settings["data"]["HOLDFAST_BUNDLE_IMAGE"] == "r.example.com/team/holdfast-bundle:v1"
    before = marks(manifests)
    assert set(before) == {"holdfast-gateway", "holdfast-controller", "holdfast-redis"}
    settings["data"]["HOLDFAST_DRAIN_S"] = "11"
    marked(manifests)
    assert {name for name, mark in marks(manifests).items() if mark != before[name]} == {"holdfast-gateway", "holdfast-controller"}
    before = marks(manifests)
    marked(manifests, "another version of the Secret")
    assert all(mark != before[name] for name, mark in marks(manifests).items())


def test_every_image_can_come_from_a_mirror_and_be_pulled_with_a_secret() -> None:
    manifests = render(K8S / "overlays/dev")
    with_images(manifests, "", "", "mirror.example.com/hub/")
    with_pull_secret(manifests, "hub")
    workloads = [one for one in manifests if containers(one)]
    assert {one["metadata"]["name"] for one in workloads} == {"holdfast-gateway", "holdfast-controller", "holdfast-redis"}
    assert all(one["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "hub"}] for one in workloads)
    assert {container["image"] for one in workloads for container in containers(one)} == {
        "holdfast-gateway:dev",
        "mirror.example.com/hub/redis:7-alpine",
    }
    settings = next(one for one in manifests if one["kind"] == "ConfigMap" and one["metadata"]["name"] == SETTINGS)
    assert settings["data"]["HOLDFAST_PULL_SECRETS"] == "hub"
    settings["data"]["HOLDFAST_PULL_SECRETS"] = "theirs"
    with_pull_secret(manifests, "hub")
    assert all(one["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "hub"}] for one in workloads)
    assert settings["data"]["HOLDFAST_PULL_SECRETS"] == "theirs"


def test_a_workload_that_does_not_become_ready_is_reported_with_its_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As on a cluster whose DNS is broken: the pod's status says ContainersNotReady, only the log says why."""
    unmet = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [gateway]"}
    status = {"phase": "Running", "conditions": [unmet], "containerStatuses": [{"state": {"running": {}}}]}
    pods = json.dumps({"items": [{"metadata": {"name": "holdfast-gateway-1"}, "status": status}]})
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f"""#!/bin/sh
case "$1 $2" in
  "get pods") echo '{pods}' ;;
  "logs holdfast-gateway-1") echo 'not ready: placement: its name cannot be resolved (DNS)' ;;
  *) exit 1 ;;
esac
"""
    )
    kubectl.chmod(0o755)
    why = deploying._why(Kubectl(str(kubectl)), "gateway")
    assert "ContainersNotReady" in why
    assert "    not ready: placement: its name cannot be resolved (DNS)" in why


def marks(manifests: list[dict[str, Any]]) -> dict[str, str]:
    return {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"][MARK] for one in manifests if containers(one)}


class FakeCluster(Kubectl):
    """Stores Secrets as the API server would, and nothing else."""

    __slots__ = ()
    secrets: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - emptied by the fixture

    def get(self, *arguments: str) -> dict[str, Any] | None:
        return self.secrets.get(arguments[1])

    def run(self, *arguments: str, text: str | None = None) -> str:
        body = json.loads(text or "{}")
        data = {name: base64.b64encode(value.encode()).decode() for name, value in body["stringData"].items()}
        assert not any(value in " ".join(arguments) for value in body["stringData"].values()), "other users can read a command line"
        if arguments[0] == "create":
            self.secrets[body["metadata"]["name"]] = {"data": data}
        else:
            self.secrets[arguments[2]]["data"].update(data)
        return ""


@pytest.fixture
def cluster() -> FakeCluster:
    FakeCluster.secrets.clear()
    return FakeCluster()


def owners(cluster: FakeCluster, folder: Path) -> Keys:
    """The API keys that a gateway reads from the mounted Secret."""
    path = folder / "keys"
    path.write_text("\n".join(keys.lines(cluster)))
    return Keys(path)


async def test_keys_are_created_once_and_can_be_rotated(cluster: FakeCluster, tmp_path: Path) -> None:
    first = keys.ensure(cluster, "admin", None)
    assert first is not None
    assert keys.ensure(cluster, "admin", None) is None
    secret = cluster.secrets[keys.KEYS]["data"]["secret"]
    assert len(base64.b64decode(secret)) >= 32
    second = keys.add(cluster, "trainer")
    assert [(await owners(cluster, tmp_path).principal_of(key)).owner for key in (first, second)] == ["admin", "trainer"]
    assert len(keys.remove(cluster, "admin")) == 1
    with pytest.raises(DeployError, match="no key"):
        keys.remove(cluster, "admin")
    assert [line.split()[0] for line in keys.lines(cluster)] == ["trainer"]
    assert cluster.secrets[keys.KEYS]["data"]["secret"] == secret


def test_the_address_of_a_managed_redis_is_kept(cluster: FakeCluster) -> None:
    keys.ensure(cluster, "admin", "rediss://:p@r:6380/0")
    keys.ensure(cluster, "admin", None)
    assert base64.b64decode(cluster.secrets[keys.REDIS]["data"]["url"]) == b"rediss://:p@r:6380/0"
    keys.ensure(cluster, "admin", "rediss://:q@r:6380/0")
    assert base64.b64decode(cluster.secrets[keys.REDIS]["data"]["url"]) == b"rediss://:q@r:6380/0"


class ReadOnlyCluster(Kubectl):
    """A cluster that contains ``objects``, by kind or by kind and name, and fails on every write."""

    __slots__ = ()
    objects: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - emptied by the fixture

    def get(self, *arguments: str) -> dict[str, Any] | None:
        return self.objects.get("/".join(one for one in arguments[:2] if not one.startswith("-")))

    def run(self, *arguments: str, text: str | None = None) -> str:
        raise AssertionError(arguments)


@pytest.fixture
def read_only_cluster() -> ReadOnlyCluster:
    ReadOnlyCluster.objects.clear()
    return ReadOnlyCluster()


def test_objects_that_another_overlay_left_are_named() -> None:
    """On a real cluster the autoscaler of `generic` kept three gateways in a deployment for which `dev` specifies two."""
    generic, dev = render(K8S / "overlays/generic"), render(K8S / "overlays/dev")

    class Applied(Kubectl):
        __slots__ = ()

        def get(self, *arguments: str) -> dict[str, Any] | None:
            kinds, namespace = arguments[0].split(","), arguments[2]
            mark = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
            found = [
                {**one, "metadata": {**one["metadata"], "annotations": mark}}
                for one in [*generic, *dev]
                if one["metadata"].get("namespace") == namespace and any(kind.split(".")[0] == one["kind"].lower() + "s" for kind in kinds)
            ]
            made = {"kind": "NetworkPolicy", "metadata": {"name": "hf-egress-1", "namespace": namespace}}  # by a gateway, not by kubectl
            return {"items": [*found, made]}

    lines: list[str] = []
    checks.report_left_over(Applied(), dev, lines.append)
    assert [line.split("kubectl delete ")[1] for line in lines] == [
        "--namespace holdfast horizontalpodautoscaler/holdfast-gateway",
        "--namespace holdfast-sandboxes limitrange/sandboxes resourcequota/sandboxes",
    ]
    checks.report_left_over(Applied(), [*generic, *dev], lines.append)
    assert len(lines) == 2


def storage_class(name: str, default: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default} if default else None}}


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([], "no default one: it has none at all"),
        ([storage_class("fast"), storage_class("slow", "false")], "no default one: it has fast, slow"),
        ([storage_class("fast"), storage_class("slow", "true")], ""),
    ],
)
def test_an_overlay_whose_disk_cannot_be_provisioned_is_refused_before_it_is_applied(
    read_only_cluster: ReadOnlyCluster, classes: list[dict[str, Any]], words: str
) -> None:
    read_only_cluster.objects["storageclass"] = {"items": classes}
    generic = render(K8S / "overlays/generic")
    if not words:
        checks.storage(read_only_cluster, generic)
        return
    with pytest.raises(DeployError, match=words) as caught:
        checks.storage(read_only_cluster, generic)
    assert str(caught.value).startswith("statefulset/holdfast-redis claims a disk")
    checks.storage(read_only_cluster, render(K8S / "overlays/dev"))


def test_a_named_storage_class_must_exist(read_only_cluster: ReadOnlyCluster) -> None:
    manifests = render(K8S / "overlays/generic")
    (redis,) = [one for one in manifests if one["kind"] == "StatefulSet"]
    read_only_cluster.objects["storageclass"] = {"items": [storage_class("fast")]}
    redis["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] = "fast"
    checks.storage(read_only_cluster, manifests)
    redis["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] = "faster"
    with pytest.raises(DeployError, match="faster, which does not exist: it has fast"):
        checks.storage(read_only_cluster, manifests)


def test_switching_overlays_names_the_remedy(read_only_cluster: ReadOnlyCluster) -> None:
    dev, generic, aks = (render(K8S / "overlays" / name) for name in ("dev", "generic", "aks"))
    checks.disks_stay(read_only_cluster, generic)
    for live, wanted, words in (
        (dev, generic, "runs with no disk, and this overlay has data 4Gi"),
        (generic, dev, "this overlay has none"),
        (aks, generic, "runs with data 4Gi of managed-csi, and this overlay has data 4Gi: it was"),
    ):
        (read_only_cluster.objects["statefulset/holdfast-redis"],) = [one for one in live if one["kind"] == "StatefulSet"]
        checks.disks_stay(read_only_cluster, live)
        with pytest.raises(DeployError, match=words) as caught:
            checks.disks_stay(read_only_cluster, wanted)
        assert "kubectl delete statefulset" in str(caught.value)


def test_workloads_are_awaited_in_the_order_of_their_dependencies() -> None:
    order = [one["metadata"]["name"] for one in checks.in_order_of_need(render(K8S / "overlays/generic")) if containers(one)]
    assert order == ["holdfast-redis", "holdfast-controller", "holdfast-gateway"]


@pytest.mark.parametrize(
    ("profile", "seen", "words"),
    [
        ("userns", node_probes.NodeVerdict("userns", 1.0, True), "in a user namespace of the pod; a probe pod got a user namespace"),
        (
            "userns",
            node_probes.NodeVerdict("userns", 1.0, False, "runc is old"),
            "BUT THE NODES CANNOT: runc is old. Every create is refused",
        ),
        ("userns", node_probes.NodeVerdict("userns", 1.0, None, "no image"), "not known (no image)"),
        ("userns", node_probes.NodeVerdict("root", 1.0, True), "not known (no probe pod has finished yet)"),
        ("userns", None, "not known (no probe pod has finished yet)"),
        ("root", None, "sandbox profile root: the image's own user, root included, without a user namespace"),
        ("restricted", None, "sandbox profile restricted: user 1000, no capabilities"),
    ],
)
def test_deploy_reports_the_profile_and_whether_nodes_support_it(
    read_only_cluster: ReadOnlyCluster, profile: str, seen: node_probes.NodeVerdict | None, words: str
) -> None:
    manifests = render(K8S / "overlays/dev")
    settings = next(one for one in manifests if one["kind"] == "ConfigMap" and one["metadata"]["name"] == SETTINGS)
    settings["data"]["HOLDFAST_SANDBOX_PROFILE"] = profile
    if seen is not None:
        annotations = {node_probes.VERDICT: json.dumps(asdict(seen))}
        read_only_cluster.objects[f"networkpolicy/{node_probes.NAME}"] = {"metadata": {"annotations": annotations}}
    lines: list[str] = []
    checks.report_nodes(read_only_cluster, manifests, lines.append, wait_s=0.0)
    assert len(lines) == 1
    assert words in lines[0]
    assert (checks.VERDICT_OF, checks.VERDICT) == (node_probes.NAME, node_probes.VERDICT)


def test_deploy_reports_what_prevents_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert deploy(["--kubectl", "no-such-kubectl", "apply", "dev"]) == 1
    assert "no-such-kubectl is not installed" in capsys.readouterr().err
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\n[ "$1" = kustomize ] || { echo refused >&2; exit 1; }\n')
    kubectl.chmod(0o755)
    assert deploy(["--kubectl", str(kubectl), "apply", "dev"]) == 1
    assert "no cluster answers" in capsys.readouterr().err
    assert deploy(["--kubectl", str(kubectl), "apply", "nowhere"]) == 1
    assert "aks, dev, generic, knative" in capsys.readouterr().err
