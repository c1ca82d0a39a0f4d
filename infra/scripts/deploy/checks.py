"""Checks what a cluster lacks for an overlay, before anything is applied, and what its nodes support, once controllers run.

Owns the read-only checks of `make deploy`, through kubectl. `holdfast doctor` reports what a running deployment has found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from infra.scripts.deploy.kubectl import SANDBOXES, SYSTEM, DeployError, Kubectl
from infra.scripts.deploy.render import SETTINGS, Manifest

VERDICT_OF, VERDICT = "hf-canary-nodes", "holdfast.dev/nodes"
"""The policy and its annotation that hold what probe pods saw (`gateway.runtimes.kubernetes.cluster.node_probes`)."""
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_LEFT_KINDS = (
    *("deployments.apps", "statefulsets.apps", "services", "configmaps", "resourcequotas", "limitranges", "ingresses.networking.k8s.io"),
    *("networkpolicies.networking.k8s.io", "poddisruptionbudgets.policy", "horizontalpodautoscalers.autoscaling"),
)
_ORDER = ("redis", "controller", "gateway")
_PROFILES = {
    "userns": "the image's own user, root included, in a user namespace of the pod",
    "root": "the image's own user, root included, without a user namespace",
    "restricted": "user 1000, no capabilities",
}


def in_order_of_need(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Gateways are ready only when Redis is, so a failure of Redis is reported first."""

    def rank(manifest: Manifest) -> int:
        component = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
        return _ORDER.index(component) if component in _ORDER else len(_ORDER)

    return sorted(manifests, key=rank)


def storage(cluster: Kubectl, manifests: Sequence[Manifest]) -> None:
    """Raise ``DeployError`` where a claim of these manifests would wait for ever: no such storage class, or no default one."""
    claims = [claim for claim in _claims(manifests) if claim[1] != ""]
    if not claims:
        return
    known = {one["metadata"]["name"]: one["metadata"] for one in (cluster.get("storageclass") or {}).get("items", ())}
    has_default = any((metadata.get("annotations") or {}).get(_DEFAULT) == "true" for metadata in known.values())
    for owner, named in claims:
        if named is not None and named not in known:
            raise DeployError(f"{owner} claims a disk of the storage class {named}, which does not exist: {_have(known)}")
        if named is None and not has_default:
            raise DeployError(
                f"{owner} claims a disk and names no storage class, and this cluster has no default one: {_have(known)}. Make "
                f"one the default (kubectl annotate storageclass NAME {_DEFAULT}=true), name one in an overlay of yours, or take one "
                "without a disk (dev)"
            )


def disks_stay(cluster: Kubectl, manifests: Sequence[Manifest]) -> None:
    """Raise ``DeployError`` where an overlay gives a live StatefulSet other disks: the API server would refuse that in its own words."""
    for manifest in manifests:
        if manifest["kind"] != "StatefulSet":
            continue
        name = manifest["metadata"]["name"]
        live = cluster.get("statefulset", name, "--namespace", SYSTEM)
        if live is not None and _disks(live) != _disks(manifest):
            raise DeployError(
                f"statefulset/{name} runs with {_disks(live) or 'no disk'}, and this overlay has {_disks(manifest) or 'none'}: it was "
                "deployed from another overlay, and Kubernetes does not change disks in place. Nothing was applied. To switch: kubectl "
                f"delete statefulset --namespace {SYSTEM} {name}, then deploy again. Meanwhile sessions continue, creates get 503, and the "
                "records are rebuilt from the pods"
            )


def report_left_over(cluster: Kubectl, manifests: Sequence[Manifest], report: Callable[[str], None]) -> None:
    """Report which objects another overlay applied that this one does not have: kubectl leaves them in force, an autoscaler for example."""
    applied = {_key(one) for one in manifests}
    for namespace in sorted({one["metadata"]["namespace"] for one in manifests if "namespace" in one["metadata"]}):
        selector = ("--namespace", namespace, "--selector", "app.kubernetes.io/name=holdfast")
        items = (cluster.get(",".join(_LEFT_KINDS), *selector) or {}).get("items") or ()
        ours = [one for one in items if _APPLIED in (one["metadata"].get("annotations") or {})]
        left = sorted(f"{one['kind'].lower()}/{one['metadata']['name']}" for one in ours if _key(one) not in applied)
        if left:
            remove = f"kubectl delete --namespace {namespace} {' '.join(left)}"
            report(f"left by another overlay, and still in force; to remove it: {remove}")


def report_nodes(
    cluster: Kubectl,
    manifests: Sequence[Manifest],
    report: Callable[[str], None],
    wait_s: float = 20.0,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Report which profile sandboxes run under, and whether nodes can give what it needs, as far as the acting controller knows by then."""
    settings: dict[str, str] = next(
        (one["data"] for one in manifests if one["kind"] == "ConfigMap" and one["metadata"]["name"] == SETTINGS), {}
    )
    profile = settings.get("HOLDFAST_SANDBOX_PROFILE") or "userns"
    text = f"sandbox profile {profile}: {_PROFILES.get(profile, 'not known here')}"
    if profile != "userns":
        report(text)
        return
    deadline = time.monotonic() + wait_s
    while (seen := _seen(cluster, settings.get("HOLDFAST_NAMESPACE") or SANDBOXES, profile)) is None and time.monotonic() < deadline:
        sleep(1.0)
    if seen is None or seen.get("users") is None:
        why = "no probe pod has finished yet" if seen is None else seen.get("users_why")
        report(f"{text}; whether the nodes support it is not known ({why}): `holdfast doctor` will report it")
    elif seen["users"]:
        report(f"{text}; a probe pod got a user namespace")
    else:
        report(
            f"{text}; BUT THE NODES CANNOT: {seen.get('users_why')}. Every create is refused until nodes can, or the overlay has the "
            "component profile-root or profile-restricted"
        )


def _seen(cluster: Kubectl, namespace: str, profile: str) -> dict[str, Any] | None:
    found = cluster.get("networkpolicy", VERDICT_OF, "--namespace", namespace) or {}
    text = ((found.get("metadata") or {}).get("annotations") or {}).get(VERDICT)
    try:
        seen = json.loads(text) if text else None
    except ValueError:
        return None
    return seen if isinstance(seen, dict) and seen.get("profile") == profile else None


def _key(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def _claims(manifests: Sequence[Manifest]) -> list[tuple[str, str | None]]:
    """Who claims, and the storage class it names; an empty one is a disk that exists already."""
    found: list[tuple[str, str | None]] = []
    for manifest in manifests:
        owner = f"{manifest['kind'].lower()}/{manifest['metadata']['name']}"
        if manifest["kind"] == "PersistentVolumeClaim":
            found.append((owner, manifest["spec"].get("storageClassName")))
        templates = manifest.get("spec", {}).get("volumeClaimTemplates") or ()
        found += [(owner, claim["spec"].get("storageClassName")) for claim in templates]
    return found


def _disks(manifest: Manifest) -> str:
    """As a text to compare and to show: ``data 4Gi of managed-csi``."""

    def text(claim: Manifest) -> str:
        storage_class = claim["spec"].get("storageClassName")
        size = claim["spec"]["resources"]["requests"]["storage"]
        return f"{claim['metadata']['name']} {size}{f' of {storage_class}' if storage_class else ''}"

    return ", ".join(map(text, manifest["spec"].get("volumeClaimTemplates") or ()))


def _have(known: dict[str, Any]) -> str:
    return f"it has {', '.join(sorted(known))}" if known else "it has none at all"
