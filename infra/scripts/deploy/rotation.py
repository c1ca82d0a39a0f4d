"""Replaces the signing secret of a deployment while sessions run.

Owns the order. An agent accepts a token made from the secret of the time of its start. So all gateways first accept the new secret, then
use it, and forget the former one once no sandbox made with it is left: each gateway always accepts the sandboxes and tickets of all others.
After an interruption the same command continues. Called by ``__main__``.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable

from infra.scripts.deploy.keys import KEYS, read_secret, write_secret
from infra.scripts.deploy.kubectl import SANDBOXES, SYSTEM, DeployError, Kubectl, moment

OTHERS = "other-secrets"
SINCE = "holdfast.dev/secret-since"
"""Annotation of the Secret: since when no sandbox is created with another secret, in whole seconds since the epoch."""
RESTARTED = "holdfast.dev/restarted-at"
_MOST = 3
_KNATIVE = "services.serving.knative.dev"
_GATEWAY, _CONTROLLER = "holdfast-gateway", "holdfast-controller"
# A waiting spare is adopted with its existing token, and then gets a new one.
_MADE = "app.kubernetes.io/component=sandbox,!holdfast.dev/pool"

Report = Callable[[str], None]


def rotate(cluster: Kubectl, timeout_s: int, report: Report) -> None:
    """Change to a new secret, while the former one is still accepted. Restarts all gateways twice; sessions resume."""
    present = _present(cluster)
    others = present[OTHERS]
    if len(others) >= _MOST:
        raise DeployError("the previous rotation is not finished; run python -m infra.scripts.deploy rotate-secret --finish")
    new = secrets.token_urlsafe(48)
    _annotate(cluster, {SINCE: None})
    write_secret(cluster, KEYS, {OTHERS: _lines([new, *others])})
    report("restarting the gateways, which then accept the new secret")
    restart(cluster, timeout_s)
    write_secret(cluster, KEYS, {"secret": new, OTHERS: _lines([present["secret"][0], *others])})
    report("restarting the gateways, which then sign with the new secret")
    restart(cluster, timeout_s)
    _annotate(cluster, {SINCE: str(int(time.time()))})
    report("rotated; once all present sandboxes have ended, run python -m infra.scripts.deploy rotate-secret --finish")


def finish(cluster: Kubectl, timeout_s: int, report: Report) -> None:
    """Remove the former secrets. Raises ``DeployError`` while there are sandboxes that would be lost."""
    present = cluster.get("secret", KEYS, "--namespace", SYSTEM) or {}
    since = ((present.get("metadata") or {}).get("annotations") or {}).get(SINCE)
    if not _present(cluster)[OTHERS]:
        raise DeployError("there is nothing to finish: one secret is in use")
    if since is None:
        raise DeployError("the rotation was interrupted; run python -m infra.scripts.deploy rotate-secret")
    pods = (cluster.get("pods", "--namespace", SANDBOXES, "--selector", _MADE) or {}).get("items") or []
    old = [pod for pod in pods if moment(pod["metadata"]["creationTimestamp"]) <= float(since)]
    if old:
        raise DeployError(f"{len(old)} sandboxes were created with a former secret and would be lost: wait until they have ended")
    write_secret(cluster, KEYS, {OTHERS: ""})
    restart(cluster, timeout_s)
    report("the former secret is removed")


def replace(cluster: Kubectl, timeout_s: int, report: Report) -> None:
    """Change to a new secret at once: the former one is no longer accepted, and every present sandbox is lost."""
    _present(cluster)
    write_secret(cluster, KEYS, {"secret": secrets.token_urlsafe(48), OTHERS: ""})
    restart(cluster, timeout_s)
    report("replaced; sandboxes that were created before cannot be reached any more: delete them")


def restart(cluster: Kubectl, timeout_s: int) -> None:
    """Restart gateways and controllers, a few at a time, so that they read the Secret again, and wait until all have restarted."""
    deployments = [_CONTROLLER]
    if _on_knative(cluster):
        annotations = {RESTARTED: str(int(time.time()))}
        patch = json.dumps({"spec": {"template": {"metadata": {"annotations": annotations}}}})
        cluster.run("patch", _KNATIVE, _GATEWAY, "--namespace", SYSTEM, "--type", "merge", "--patch", patch)
        made = cluster.get(_KNATIVE, _GATEWAY, "--namespace", SYSTEM) or {"metadata": {"generation": 1}}
        seen = f"--for=jsonpath={{.status.observedGeneration}}={made['metadata']['generation']}"
        for condition in (seen, "--for=condition=Ready"):
            cluster.run("wait", f"{_KNATIVE}/{_GATEWAY}", "--namespace", SYSTEM, condition, f"--timeout={timeout_s}s")
    else:
        deployments.append(_GATEWAY)
    for name in deployments:
        cluster.run("rollout", "restart", f"deployment/{name}", "--namespace", SYSTEM)
    for name in deployments:
        cluster.run("rollout", "status", f"deployment/{name}", "--namespace", SYSTEM, f"--timeout={timeout_s}s")


def _on_knative(cluster: Kubectl) -> bool:
    try:
        return cluster.get(_KNATIVE, _GATEWAY, "--namespace", SYSTEM) is not None
    except DeployError:
        return False  # a cluster without Knative does not know the kind


def _present(cluster: Kubectl) -> dict[str, list[str]]:
    found = {name: read_secret(cluster, KEYS, name).splitlines() for name in ("secret", OTHERS)}
    if not found["secret"]:
        raise DeployError(f"there is no secret in {KEYS} of namespace {SYSTEM}: deploy first")
    return found


def _annotate(cluster: Kubectl, annotations: dict[str, str | None]) -> None:
    patch = json.dumps({"metadata": {"annotations": annotations}})
    cluster.run("patch", "secret", KEYS, "--namespace", SYSTEM, "--type", "merge", "--patch", patch)


def _lines(values: list[str]) -> str:
    return "".join(f"{value}\n" for value in dict.fromkeys(values))
