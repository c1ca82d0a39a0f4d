"""Every overlay, rendered once, and one more that uses all components, for the tests of the manifests.

Owns finding and rendering them. `folder` is what `kubectl kustomize` gets.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.infra.kustomize import Manifest, render

TOP = Path(__file__).resolve().parents[2]
K8S = TOP / "infra" / "k8s"
OVERLAYS = tuple(sorted(path.parent.name for path in K8S.glob("overlays/*/kustomization.yaml")))
COMPONENTS = tuple(sorted(path.parent.name for path in K8S.glob("components/*/kustomization.yaml")))
EVERYTHING = "everything"
ALL = (*OVERLAYS, EVERYTHING)

_ORDER = ("gateway", "redis-managed", "autoscaling", "autoscaling-sessions")
"""Components that others build upon; they come first."""
_APART = ("redis", "redis-disk", "root", "profile-root", "profile-restricted", "pools")
"""``redis`` with its disk is the alternative to ``redis-managed``; the others set how sandboxes are confined, or where they run, which has
separate tests."""


def everything(folder: Path) -> Path:
    """An overlay with all components that can be combined, written into ``folder``."""
    return compose(folder, *_ORDER, *(name for name in COMPONENTS if name not in (*_ORDER, *_APART)))


def compose(folder: Path, *components: str) -> Path:
    """An overlay of the base and these components."""
    up = Path(*[".."] * len(folder.resolve().parts[1:])) / Path(*K8S.parts[1:])
    body = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(up / "base")],
        "components": [str(up / "components" / name) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(body))
    return folder


@functools.cache
def rendered(name: str) -> tuple[Manifest, ...]:
    """The manifests of an overlay. Shared between tests: not to be changed."""
    if name != EVERYTHING:
        return tuple(render(K8S / "overlays" / name))
    with tempfile.TemporaryDirectory() as folder:
        return tuple(render(everything(Path(folder))))


def of_kind(name: str, *kinds: str) -> list[Manifest]:
    return [manifest for manifest in rendered(name) if manifest["kind"] in kinds]


def pod_templates(name: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, template) of each workload, a Knative Service among them."""
    found = []
    for manifest in rendered(name):
        template = manifest.get("spec", {}).get("template")
        if template and "containers" in template.get("spec", {}):
            found.append((f"{manifest['kind']} {manifest['metadata']['name']}", template))
    return found
