"""Checks of a cluster: what a deployment needs, whether it is there, and how to fix it.

Owns the read-only checks. Whether the network enforces policies is probed with pods in ``network_probe``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gateway.runtimes.kubernetes.api.client import Api, ApiError, ApiUnreachableError
from gateway.runtimes.kubernetes.pods.profiles import STANDARDS, no_user_namespaces
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from . import injection, network_probe, node_probes

Check = dict[str, Any]

_PROFILES = {
    "userns": "the image's own user, root included, in a user namespace of the pod",
    "root": "the image's own user, root included, without a user namespace: its root is the node's, but for its capabilities",
    "restricted": "user 1000 where nothing else is set, no capabilities, setuid programs do not work",
}
_OLDEST = (1, 28)
_REVIEWS = "authorization.k8s.io/v1"
_RIGHTS: tuple[tuple[str, str, str], ...] = (
    *(("", "pods", verb) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(("networking.k8s.io", "networkpolicies", verb) for verb in ("create", "get", "list", "patch", "delete")),
    *(("apps", "daemonsets", verb) for verb in ("create", "get", "list", "delete")),
    *(("", "events", verb) for verb in ("list", "watch")),
)


async def checks(api: Api, settings: KubernetesSettings) -> list[Check]:
    """All checks. A check that cannot be carried out counts as failed, and the others are still carried out."""
    found: list[Check] = []
    for name, look in _CHECKS:
        try:
            found.append({"name": name, "required": True, "fix": "", **await look(api, settings)})
        except ApiUnreachableError as error:
            return [
                *found,
                {"name": name, **_bad(f"the API server does not answer: {error.text}", "look at KUBECONFIG and the network to it")},
            ]
        except ApiError as error:
            found.append({"name": name, **_bad(f"cannot be determined: {error.text[:300]}", "", required=False)})
    return found


async def _version(api: Api, settings: KubernetesSettings) -> Check:
    answer = await api.get("/version")
    text = f"Kubernetes {answer.get('gitVersion')}"
    return _bad(text, "use Kubernetes 1.28 or newer") if injection.version_of(answer) < _OLDEST else _good(text)


async def _rights(api: Api, settings: KubernetesSettings) -> Check:
    missing = []
    for group, resource, verb in _RIGHTS:
        attributes = {"namespace": settings.namespace, "group": group, "resource": resource, "verb": verb}
        review = {"kind": "SelfSubjectAccessReview", "apiVersion": _REVIEWS, "spec": {"resourceAttributes": attributes}}
        if not (await api.post(f"/apis/{_REVIEWS}/selfsubjectaccessreviews", review)).get("status", {}).get("allowed"):
            missing.append(f"{verb} {resource}")
    if missing:
        return _bad(f"not allowed in {settings.namespace}: {', '.join(missing)}", "apply the roles of infra/k8s")
    return _good(f"all {len(_RIGHTS)} rights in {settings.namespace}")


async def _nodes(api: Api, settings: KubernetesSettings) -> Check:
    try:
        await api.get("/api/v1/nodes", {"limit": "1"}, metadata_only=True)
    except ApiError as error:
        if error.status != 403:
            raise
        fix = "add the component node-stats to the overlay (infra/k8s/components/node-stats)"
        return _bad("nodes may not be read: capacity is not known", fix, required=False)
    return _good("nodes may be read")


async def _namespace(api: Api, settings: KubernetesSettings) -> Check:
    found = await api.find(f"/api/v1/namespaces/{settings.namespace}")
    if found is None:
        return _bad(f"there is no namespace {settings.namespace}", "kubectl apply -k infra/k8s/overlays/…")
    level = (found["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", "")
    wanted = [STANDARDS[settings.sandbox_profile]]
    if settings.sandbox_profile == "restricted" and settings.allow_root:
        wanted.append("baseline")
    if level not in wanted:
        return _bad(
            f"{settings.namespace} enforces {level or 'no'} pod security standard",
            f"label it pod-security.kubernetes.io/enforce={wanted[0]}, which the sandbox profile {settings.sandbox_profile} needs",
        )
    return _good(f"{settings.namespace} enforces the {level} pod security standard")


async def _profile(api: Api, settings: KubernetesSettings) -> Check:
    profile = settings.sandbox_profile
    what = _PROFILES[profile]
    if profile != "userns":
        return _good(f"{profile}: {what}")
    seen = await node_probes.known(api, settings)
    if seen is None or seen.users is None:
        why = "not probed yet" if seen is None else f"whether the nodes support it is not known: {seen.users_why}"
        return _bad(f"{profile}: {what}; {why}", "the controller probes when it starts, and again every minute", required=False)
    if not seen.users:
        return _bad(f"{profile}: {what}; but {seen.users_why}", no_user_namespaces("").hint)
    return _good(f"{profile}: {what}, and a probe pod got a user namespace")


async def _default_deny(api: Api, settings: KubernetesSettings) -> Check:
    body = await api.get(settings.policies_path, {"limit": "500"})
    denied: set[str] = set()
    for policy in body.get("items") or []:
        spec = policy.get("spec") or {}
        if spec.get("podSelector"):
            continue
        types = spec.get("policyTypes") or ["Ingress"]
        denied |= {kind for kind in types if not spec.get(kind.lower())}
    missing = {"Ingress", "Egress"} - denied
    if missing and settings.enforcement != "none":
        text = f"no policy of {settings.namespace} denies {' and '.join(sorted(missing)).lower()} by default"
        return _bad(text, "apply the network policies of infra/k8s")
    if missing:
        return _good("no traffic is denied by default, because HOLDFAST_NETWORK_ENFORCEMENT is none")
    return _good("ingress and egress are denied by default")


async def _bundle(api: Api, settings: KubernetesSettings) -> Check:
    way, found = settings.bundle_injection, await injection.detect(api, settings)
    if way == "image" and found.way == "init":
        return _bad(f"configured as an image volume, but {found.why}", "set HOLDFAST_BUNDLE_INJECTION=init or auto")
    how = "an image volume" if "image" in (way, found.way if way == "auto" else "") else "an init container"
    return _good(f"{settings.bundle_image} by {how}{f': {found.why}' if way == 'auto' and found.why else ''}")


async def _network(api: Api, settings: KubernetesSettings) -> Check:
    if settings.enforcement == "none":
        text = "HOLDFAST_NETWORK_ENFORCEMENT is none: sandboxes that request isolation are refused"
        return _bad(text, "use a cluster whose network enforces policies", required=False)
    seen = await network_probe.known(api, settings)
    if seen is None:
        text = f"HOLDFAST_NETWORK_ENFORCEMENT is {settings.enforcement!r}, not probed yet"
        return _bad(text, "the controller probes when it starts", required=False)
    if not seen.holds:
        text = f"HOLDFAST_NETWORK_ENFORCEMENT is {settings.enforcement!r}, but {seen.detail}"
        return _bad(text, "use a network plugin that enforces policies")
    return _good(f"HOLDFAST_NETWORK_ENFORCEMENT is {settings.enforcement!r}, and {seen.detail}")


_CHECKS: tuple[tuple[str, Callable[[Api, KubernetesSettings], Awaitable[Check]]], ...] = (
    ("cluster", _version),
    ("rights", _rights),
    ("nodes", _nodes),
    ("sandbox namespace", _namespace),
    ("sandbox profile", _profile),
    ("default deny", _default_deny),
    ("agent bundle", _bundle),
    ("network enforcement", _network),
)


def _good(detail: str) -> Check:
    return {"ok": True, "detail": detail}


def _bad(detail: str, fix: str, *, required: bool = True) -> Check:
    return {"ok": False, "detail": detail, "fix": fix, "required": required}
