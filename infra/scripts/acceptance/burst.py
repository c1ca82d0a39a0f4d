"""Creates many sandboxes at once and as many bare pods of the same image, and compares how long both take.

Owns both bursts and their comparison. The bare pods have the same requests and pass the same admission, so that nodes, kubelet and
container runtime do the same work, except for Holdfast's part: the pod's user namespace, the volume with the bundle, and the agent's start.
"""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from holdfast import Sandbox, SandboxClient, ServiceUnavailableError
from holdfast_wire.rest import parse_cpu

from infra.scripts.acceptance.outcome import NotRunError, StepError
from infra.scripts.deploy.kubectl import SANDBOXES, SYSTEM, Kubectl, moment

_RATIO, _SLACK_S = 1.5, 5.0
"""The last sandbox may take the time of the last bare pod multiplied by the first number, plus the second in seconds."""


def bare(cluster: Kubectl, options: dict[str, Any], count: int) -> list[float]:
    """Seconds until each of ``count`` pods was Ready, by its own status; sorted."""
    run, timeout_s = secrets.token_hex(3), float(options["ready_timeout_s"])
    share = _request_share(cluster)
    pods = [_pod(f"hf-bare-{run}-{number}", run, options, share) for number in range(count)]
    selector = f"holdfast.dev/bare={run}"
    try:
        cluster.apply(pods)
        end = time.monotonic() + timeout_s
        while True:
            items = (cluster.get("pods", "--namespace", SANDBOXES, "--selector", selector) or {}).get("items") or []
            ready = [at for at in map(_ready_s, items) if at is not None]
            if len(ready) >= count:
                return sorted(ready)
            if time.monotonic() > end:
                raise StepError(f"{len(ready)} of {count} bare pods were ready within {timeout_s:g} s")
            time.sleep(0.5)
    finally:
        cluster.run("delete", "pods", "--namespace", SANDBOXES, "--selector", selector, "--grace-period=0", "--force", "--wait=true")


def _request_share(cluster: Kubectl) -> float:
    """The share of its cpu that a sandbox reserves in this deployment."""
    settings = (cluster.get("configmap/holdfast-settings", "--namespace", SYSTEM) or {}).get("data") or {}
    return float(settings.get("HOLDFAST_CPU_REQUEST_SHARE") or 1)


def _ready_s(pod: dict[str, Any]) -> float | None:
    """From the pod's creation to its being Ready, in whole seconds as the cluster notes them."""
    for one in pod.get("status", {}).get("conditions", ()):
        if one.get("type") == "Ready" and one.get("status") == "True":
            return moment(one["lastTransitionTime"]) - moment(pod["metadata"]["creationTimestamp"])
    return None


def sandboxes(client: SandboxClient, options: dict[str, Any], count: int) -> list[float]:
    """Seconds until each of ``count`` sandboxes had answered its first command; sorted.

    Raises the first failure. All sandboxes are kept until the last one is ready, as are the bare pods, so that the node removes no pod
    while it starts others.
    """
    began = time.monotonic()
    made: list[Sandbox] = []

    def one() -> float:
        sandbox = client.create_sandbox(**options)
        made.append(sandbox)
        if (result := sandbox.exec(["echo", "up"], timeout=60)).stdout != "up\n":
            raise StepError(f"a sandbox answered {result.stdout!r}")
        return time.monotonic() - began

    with ThreadPoolExecutor(count) as pool:
        ready = [pool.submit(one) for _ in range(count)]
        wait(ready)
        deleted = [pool.submit(sandbox.delete) for sandbox in made]
    try:
        figures = sorted(one.result() for one in ready)
    except ServiceUnavailableError as error:
        if error.code != "no_capacity":
            raise
        ways = "--count, --cpu, more nodes or HOLDFAST_CPU_REQUEST_SHARE"
        raise NotRunError(f"the nodes have no room for {count} of cpu {options['cpu']} ({ways}): {error}") from None
    for one_deleted in deleted:
        one_deleted.result()
    return figures


def compare(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """The figures. Raises ``StepError`` if Holdfast takes more additional time than it may."""
    figures = {
        "sandboxes": len(ours),
        "first_s": round(ours[0], 1),
        "last_s": round(ours[-1], 1),
        "bare_first_s": round(theirs[0], 1),
        "bare_last_s": round(theirs[-1], 1),
    }
    if ours[-1] > _RATIO * theirs[-1] + _SLACK_S:
        raise StepError(f"the last was ready long after the last bare pod would have been: {figures}")
    return figures


def _pod(name: str, run: str, options: dict[str, Any], share: float) -> dict[str, Any]:
    same = {"cpu": options["cpu"], "memory": options["memory"]}
    reserved = {**same, "cpu": f"{max(round(parse_cpu(options['cpu']) * share * 1000), 1)}m"}
    container = {
        "name": "bare",
        "image": options["image"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
        "resources": {"requests": reserved, "limits": same},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    metadata = {"name": name, "namespace": SANDBOXES, "labels": {"holdfast.dev/bare": run}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
