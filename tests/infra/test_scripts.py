"""The scripts as far as they can be tested without a cluster, a cloud or a builder: their options, builds and clusters for development."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.scripts.deploy.render import SETTINGS
from tests.infra.overlays import TOP, of_kind

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


def test_build_passes_file_and_tag_to_the_builder(tmp_path: Path) -> None:
    builder = tmp_path / "podman"
    builder.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/said\n')
    builder.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run("infra/scripts/build", "--builder", "podman", "--registry", "r.example.com", "--tag", "v1", "--push", "gateway", PATH=path)
    assert done.returncode == 0, done.stderr
    file = "infra/images/gateway.Dockerfile"
    assert (tmp_path / "said").read_text().splitlines() == [
        "info",
        f"build --file {file} --tag r.example.com/holdfast-gateway:v1 .",
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
