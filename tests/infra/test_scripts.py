"""The scripts and image recipes as far as they can be tested without a cluster, a cloud or a builder."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gateway.auth import Keys
from gateway.runtimes.kubernetes.cluster import node_probes
from infra.scripts.deploy import checks, keys
from infra.scripts.deploy.__main__ import main as deploy
from infra.scripts.deploy.kubectl import DeployError, Kubectl
from infra.scripts.deploy.render import MARK, SETTINGS, containers, marked, with_images
from tests.infra.kustomize import render
from tests.infra.overlays import K8S, TOP, of_kind

SCRIPTS = [["infra/scripts/build"], ["infra/scripts/provision"], ["infra/scripts/cluster"]]
MODULES = [[sys.executable, "-m", "infra.scripts.deploy"], [sys.executable, "-m", "infra.scripts.smoke"]]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=TOP, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [*SCRIPTS, *MODULES], ids=lambda command: Path(command[-1]).name)
def test_help(command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout


@pytest.mark.parametrize("command", SCRIPTS, ids=lambda command: Path(command[-1]).name)
def test_unknown_arguments_are_refused(command: list[str]) -> None:
    done = run(*command, "--nonsense")
    assert done.returncode != 0
    assert "unknown argument: --nonsense" in done.stderr


def test_a_dry_run_of_provision_has_the_pools_that_the_overlay_expects() -> None:
    done = run("infra/scripts/provision", "--registry", "holdfast1", "--spot", "--dry-run", PATH="/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [" ".join(line.split()[:4]) for line in lines] == [
        "az group create --name",
        "az acr create --resource-group",
        "az aks create --resource-group",
        "az aks nodepool add",
        "az aks nodepool add",
        "az aks get-credentials --resource-group",
    ]
    settings = next(one["data"] for one in of_kind("aks", "ConfigMap") if one["metadata"]["name"] == SETTINGS)
    for line in lines[3:5]:
        assert f"--labels {settings['HOLDFAST_NODE_SELECTOR']} " in line
        assert "--node-taints workload=sandbox:NoSchedule" in line
    assert "--nodepool-labels pool=system" in lines[2]
    assert "--priority Spot" in lines[4]
    assert "kubernetes.azure.com/scalesetpriority" in settings["HOLDFAST_TOLERATIONS"].split(",")


def test_provision_needs_a_registry() -> None:
    assert "--registry is needed" in run("infra/scripts/provision", "--dry-run").stderr
    assert "lower case" in run("infra/scripts/provision", "--dry-run", "--registry", "No-Such").stderr


@pytest.mark.parametrize(
    ("builder", "name"),
    [
        ("docker", "holdfast-bundle:dev"),
        ("podman", "docker.io/library/holdfast-bundle:dev"),
        ("buildah", "docker.io/library/holdfast-bundle:dev"),
    ],
)
def test_images_get_the_name_that_the_overlay_dev_uses(tmp_path: Path, builder: str, name: str) -> None:
    """podman and buildah expand a short name to ``localhost/holdfast-bundle``, kubelets to ``docker.io/library/holdfast-bundle``."""
    program = tmp_path / builder
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/said\n')
    program.chmod(0o755)
    done = run("infra/scripts/build", "bundle", "--tag", "dev", "--builder", builder, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert f"--tag {name} " in (tmp_path / "said").read_text()
    settings = next(one["data"] for one in of_kind("dev", "ConfigMap") if one["metadata"]["name"] == SETTINGS)
    assert settings["HOLDFAST_BUNDLE_IMAGE"] == name.removeprefix("docker.io/library/")


def test_build_reports_a_missing_builder(tmp_path: Path) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = run("infra/scripts/build", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "none of docker, podman and buildah works here" in done.stderr
    assert "--push needs --registry" in run("infra/scripts/build", "--push").stderr


def test_build_passes_file_tag_and_ignore_file_to_the_builder(tmp_path: Path) -> None:
    builder = tmp_path / "podman"
    builder.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/said\n')
    builder.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run("infra/scripts/build", "--builder", "podman", "--registry", "r.example.com", "--tag", "v1", "--push", "gateway", PATH=path)
    assert done.returncode == 0, done.stderr
    file = "infra/images/gateway.Dockerfile"
    assert (tmp_path / "said").read_text().splitlines() == [
        "info",
        f"build --file {file} --tag r.example.com/holdfast-gateway:v1 --ignorefile {file}.dockerignore .",
        "push r.example.com/holdfast-gateway:v1",
    ]


def tools(folder: Path, *names: str, fail: str = "") -> str:
    """A PATH with fake programs ``names`` that record how they are called and fail where the command line begins with ``fail``."""
    for name in names:
        fails = f'case "{name} $*" in "{fail}"*) exit 1;; esac\n' if fail else ""
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/said\n{fails}')
        (folder / name).chmod(0o755)
    for name in ("bash", "dirname", "grep", "sh", "cat"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    return str(folder)


@pytest.mark.parametrize(
    ("tool", "made", "loaded", "context"),
    [
        ("kind", "create cluster --name x --wait 180s", "load docker-image holdfast-bundle:dev --name x", "kind-x"),
        ("k3d", "cluster create x --wait --timeout 180s", "image import holdfast-bundle:dev --cluster x", "k3d-x"),
        ("minikube", "start --profile x --driver docker", "image load holdfast-bundle:dev --profile x", "x"),
    ],
)
def test_a_cluster_is_created_loaded_and_deployed_to(tool: str, made: str, loaded: str, context: str, tmp_path: Path) -> None:
    absent = {"kind": "kind nothing", "k3d": "k3d cluster get", "minikube": "minikube status"}[tool]
    path = tools(tmp_path, tool, "docker", "kubectl", "python", fail=absent)
    done = run("infra/scripts/cluster", "--name", "x", PATH=path, PYTHON="python")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "said").read_text()
    steps = [f"{tool} {made}", "docker build --file infra/images/bundle.Dockerfile --tag holdfast-bundle:dev", f"{tool} {loaded}"]
    places = [calls.find(step) for step in [*steps, f"python -m infra.scripts.deploy --context {context} apply dev"]]
    assert places == sorted(places), calls
    assert -1 not in places, calls


def test_an_existing_cluster_is_used_and_a_failure_is_reported(tmp_path: Path) -> None:
    path = tools(tmp_path, "k3d", "docker", "kubectl", "python", fail="k3d image import")
    done = run("infra/scripts/cluster", PATH=path, PYTHON="python")
    assert "k3d cluster create" not in (tmp_path / "said").read_text()
    assert done.returncode == 1
    assert "could not be loaded" in done.stderr
    assert run("infra/scripts/cluster", "--delete", PATH=path).returncode == 0
    assert (tmp_path / "said").read_text().endswith("k3d cluster delete holdfast\n")


def test_without_a_tool_no_cluster_is_created(tmp_path: Path) -> None:
    path = tools(tmp_path, "docker", "kubectl")
    assert "none of kind, k3d and minikube is installed" in run("infra/scripts/cluster", PATH=path).stderr
    assert run("infra/scripts/cluster", "--tool", "kind", PATH=path).returncode == 1
    assert "not nonsense" in run("infra/scripts/cluster", "--tool", "nonsense", PATH=path).stderr


@pytest.mark.parametrize("image", ["gateway", "bundle"])
def test_recipes_copy_existing_sources_and_run_as_an_ordinary_user(image: str) -> None:
    path = TOP / "infra/images" / f"{image}.Dockerfile"
    text = path.read_text()
    allowed = {line[1:] for line in Path(f"{path}.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"(?m)^COPY (?!--from)(.+)$", text)
    sources = {source for line in copied for source in line.split()[:-1]}
    assert sources
    for source in sources:
        assert (TOP / source).exists(), source
        assert source.split("/")[0] in allowed, f"{source} is not sent to the builder"
    wheel = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for forced in wheel["force-include"]:
        assert any(forced == source or forced.startswith(f"{source}/") for source in sources), f"pip install fails without {forced}"
    bases = re.findall(r"(?m)^FROM (\S+)", text)
    assert set(bases) <= {"${BASE}", "scratch"}
    assert "ARG BASE=python:3.11-slim" in text
    assert not re.search(r"https?://|[a-z]\.(io|com|net)/", text)
    assert re.search(r"(?m)^USER [1-9]\d+:[1-9]\d+$", text.split("FROM")[-1]), "a number, or runAsNonRoot cannot be checked"
    assert (bases[-1] == "scratch") == (image == "bundle")


@pytest.mark.parametrize("image", ["gateway", "bundle"])
def test_every_instruction_of_a_recipe_is_valid(image: str) -> None:
    """Parsed as a builder parses them; nothing is built."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (TOP / "infra/images" / f"{image}.Dockerfile").read_text()).replace("\\\n", " ")
    stages: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        assert word in {"ARG", "FROM", "WORKDIR", "RUN", "COPY", "USER", "ENV", "EXPOSE", "ENTRYPOINT", "CMD"}, line
        assert rest.strip(), line
        match word:
            case "FROM":
                found = re.fullmatch(r"\S+(?: AS ([a-z]+))?", rest)
                assert found, line
                stages.append(found[1] or "")
            case "COPY":
                parts = rest.split()
                source = parts[0].removeprefix("--from=") if parts[0].startswith("--") else None
                assert source is None or source in stages[:-1], f"{line}: no stage of that name before"
                assert len(parts) >= (3 if source else 2), line
            case "ENTRYPOINT" | "CMD":
                assert all(isinstance(part, str) for part in json.loads(rest)), f"{line}: the exec form, or signals go to a shell"
            case "RUN":
                assert subprocess.run(["sh", "-n", "-c", rest], check=False).returncode == 0, line
    assert len(stages) >= 2, "the stage that builds is not the one that ships"
    assert stages[-1] == ""


def test_the_image_starts_what_the_manifests_name() -> None:
    arguments = {
        container["args"][0] for one in of_kind("dev", "Deployment") for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert arguments == {"gateway", "gateway.controller"}
    assert all((TOP / argument.replace(".", "/") / "__main__.py").is_file() for argument in arguments)
    assert 'ENTRYPOINT ["/opt/holdfast/bin/python", "-m"]' in (TOP / "infra/images/gateway.Dockerfile").read_text()


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


def test_keys_are_created_once_and_can_be_rotated(cluster: FakeCluster, tmp_path: Path) -> None:
    first = keys.ensure(cluster, "admin", None)
    assert first is not None
    assert keys.ensure(cluster, "admin", None) is None
    secret = cluster.secrets[keys.KEYS]["data"]["secret"]
    assert len(base64.b64decode(secret)) >= 32
    second = keys.add(cluster, "trainer")
    assert (owners(cluster, tmp_path).owner_of(first), owners(cluster, tmp_path).owner_of(second)) == ("admin", "trainer")
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
    with pytest.raises(DeployError, match="faster, which is not there: it has fast"):
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
        ("userns", node_probes.Seen("userns", 1.0, True), "in a user namespace of the pod; a probe pod had one"),
        ("userns", node_probes.Seen("userns", 1.0, False, "runc is old"), "BUT THE NODES CANNOT: runc is old. Every create is refused"),
        ("userns", node_probes.Seen("userns", 1.0, None, "no image"), "not known (no image)"),
        ("userns", node_probes.Seen("root", 1.0, True), "not known (no probe pod has been over yet)"),
        ("userns", None, "not known (no probe pod has been over yet)"),
        ("root", None, "sandbox profile root: the image's own user, root included, without a user namespace"),
        ("restricted", None, "sandbox profile restricted: user 1000, no capabilities"),
    ],
)
def test_deploy_reports_the_profile_and_whether_nodes_support_it(
    read_only_cluster: ReadOnlyCluster, profile: str, seen: node_probes.Seen | None, words: str
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
