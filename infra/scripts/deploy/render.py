"""An overlay as manifests, with the images of this deployment in it.

Owns the substitution of images (also the bundle's, which is a setting and not a container's image) and the mark that restarts pods
when their settings change. Pure but for asking kubectl to render. Called by ``__main__`` and tests.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from infra.scripts.deploy.kubectl import DeployError, Kubectl

OVERLAYS = Path(__file__).resolve().parents[2] / "k8s" / "overlays"
SETTINGS = "holdfast-settings"
MARK = "holdfast.dev/settings"
_OURS = ("holdfast-gateway", "holdfast-bundle")

Manifest = dict[str, Any]


def overlay_path(name: str) -> Path:
    """The folder of one of this repository's overlays by its name, or another folder."""
    path = OVERLAYS / name if "/" not in name else Path(name)
    if not (path / "kustomization.yaml").is_file():
        known = ", ".join(sorted(one.name for one in OVERLAYS.iterdir() if one.is_dir()))
        raise DeployError(f"{path} has no kustomization.yaml: name one of {known}, or a folder of yours with a slash in its name")
    return path


def render(cluster: Kubectl, overlay: str) -> list[Manifest]:
    text = cluster.run("kustomize", str(overlay_path(overlay)))
    return [document for document in yaml.safe_load_all(text) if document]


def with_images(manifests: list[Manifest], registry: str, tag: str, mirror: str = "") -> None:
    """Use ``registry`` and ``tag`` for the images of this project, and ``mirror`` for those of others (Redis); an empty value keeps that of
    the overlay."""

    def moved(reference: str) -> str:
        name, _, version = reference.rpartition("/")[2].partition(":")
        if name not in _OURS:
            return f"{mirror.rstrip('/')}/{reference.rpartition('/')[2]}" if mirror else reference
        return f"{registry + '/' if registry else ''}{name}:{tag or version or 'latest'}"

    for manifest in manifests:
        for container in containers(manifest):
            container["image"] = moved(container["image"])
        if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] == SETTINGS:
            manifest["data"]["HOLDFAST_BUNDLE_IMAGE"] = moved(manifest["data"]["HOLDFAST_BUNDLE_IMAGE"])


def with_pull_secret(manifests: list[Manifest], secret: str) -> None:
    """Let every pod of the deployment pull with this Secret, and the sandboxes too, unless the overlay names theirs."""
    for manifest in manifests:
        if containers(manifest):
            spec = manifest["spec"]["template"]["spec"]
            if {"name": secret} not in spec.setdefault("imagePullSecrets", []):
                spec["imagePullSecrets"].append({"name": secret})
        if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] == SETTINGS:
            manifest["data"].setdefault("HOLDFAST_PULL_SECRETS", secret)


def marked(manifests: list[Manifest], redis_version: str = "") -> None:
    """Write hashes of the settings that pods read at their start into their templates, so that a change restarts them.

    A setting affects the processes that read it; ``redis_version`` (the version of the Secret, never its content) also affects Redis.
    """
    settings = [one["data"] for one in manifests if one["kind"] == "ConfigMap" and one["metadata"]["name"] == SETTINGS]
    for manifest in manifests:
        ours = containers(manifest)
        read: list[Any] = settings if any(container.get("envFrom") for container in ours) else []
        if any("valueFrom" in variable for container in ours for variable in container.get("env", ())):
            read = [*read, redis_version]
        if read:
            digest = hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()[:16]
            manifest["spec"]["template"]["metadata"].setdefault("annotations", {})[MARK] = digest


def containers(manifest: Manifest) -> list[dict[str, Any]]:
    """The containers of a workload's pod template; none for another kind of object."""
    template = manifest.get("spec", {}).get("template", {})
    spec = template.get("spec", {}) if isinstance(template, dict) else {}
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]
