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
    """An overlay of ours by name, or a folder of yours."""
    path = OVERLAYS / name if "/" not in name else Path(name)
    if not (path / "kustomization.yaml").is_file():
        known = ", ".join(sorted(one.name for one in OVERLAYS.iterdir() if one.is_dir()))
        raise DeployError(f"{path} has no kustomization.yaml: name one of {known}, or a folder of yours with a slash in its name")
    return path


def render(cluster: Kubectl, overlay: str) -> list[Manifest]:
    text = cluster.run("kustomize", str(overlay_path(overlay)))
    return [document for document in yaml.safe_load_all(text) if document]


def with_images(manifests: list[Manifest], registry: str, tag: str) -> None:
    """Point our images at ``registry`` and ``tag``; what is empty stays as the overlay has it. Redis keeps its own name."""

    def moved(reference: str) -> str:
        name, _, version = reference.rpartition("/")[2].partition(":")
        if name not in _OURS:
            return reference
        return f"{registry + '/' if registry else ''}{name}:{tag or version or 'latest'}"

    for manifest in manifests:
        for container in containers(manifest):
            container["image"] = moved(container["image"])
        if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] == SETTINGS:
            manifest["data"]["HOLDFAST_BUNDLE_IMAGE"] = moved(manifest["data"]["HOLDFAST_BUNDLE_IMAGE"])


def marked(manifests: list[Manifest], redis_version: str = "") -> None:
    """Write hashes of what pods read at their start into their templates: what changed then rolls out by itself.

    Settings concern who reads them, ``redis_version`` (of the Secret, never what is in it) also Redis.
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
    """Of a workload's pod template; none for anything else."""
    template = manifest.get("spec", {}).get("template", {})
    spec = template.get("spec", {}) if isinstance(template, dict) else {}
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]
