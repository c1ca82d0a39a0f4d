"""Checks inside the sandboxes of a deployment: images of several kinds, and what the network lets a sandbox reach.

Owns these checks; how the deployment is reached is ``__main__``'s.
"""

from __future__ import annotations

import secrets
from typing import Any

from holdfast import ImageNotFoundError, ImagePullError, Sandbox, SandboxClient, UnsupportedError

from infra.scripts.acceptance.outcome import NotRunError, StepError
from infra.scripts.deploy.kubectl import SANDBOXES, Kubectl

IMAGES = {
    "static": "busybox:stable",
    "musl": "alpine:3",
    "old glibc": "centos:7",
    "glibc": "debian:stable",
    "user": "redis:7-alpine",
}
"""Images by their special property; ``--images`` names others if these cannot be pulled."""


def made(client: SandboxClient, options: dict[str, Any]) -> Sandbox:
    """A new sandbox. Raises ``NotRunError`` if the nodes cannot pull its image, which is not a failure of the deployment."""
    try:
        return client.create_sandbox(**options)
    except (ImageNotFoundError, ImagePullError) as error:
        raise NotRunError(f"the nodes cannot pull {options['image']}: {error}") from None


def use(client: SandboxClient, options: dict[str, Any]) -> dict[str, Any]:
    """Use one sandbox of an image: a shell that keeps its state, a one-off command, and a file in both directions."""
    with made(client, options) as sandbox:
        who = sandbox.exec(["/bin/sh", "-c", "id -u; exit 3"], timeout=60)
        if who.exit_code != 3:
            raise StepError(f"a one-off command ended with {who.exit_code} {who.stderr!r}")
        with sandbox.shell() as shell:
            shell.run("N=41", timeout=60)
            if (result := shell.run("echo $((N + 1))", timeout=60)).stdout != "42\n":
                raise StepError(f"the sandbox's shell answered {result.stdout!r} {result.stderr!r}")
        content = bytes(range(256)) * 64
        sandbox.files.write("/tmp/holdfast-acceptance", content)
        if sandbox.files.read("/tmp/holdfast-acceptance") != content:
            raise StepError("a file came back changed")
        return {"detail": options["image"], "uid": who.stdout.strip()}


def root(client: SandboxClient, options: dict[str, Any]) -> dict[str, Any]:
    """Use a sandbox that requests user 0."""
    try:
        found = use(client, {**options, "user": 0})
    except UnsupportedError as error:
        raise NotRunError(f"this deployment gives no root: {error}") from None
    if found["uid"] != "0":
        raise StepError(f"the sandbox was created as root and runs as user {found['uid']}")
    return found


def read_only(client: SandboxClient, cluster: Kubectl, options: dict[str, Any]) -> dict[str, Any]:
    """Check the agent on a read-only root file system.

    No request can set this, so the pod of a sandbox is created again with it, outside of Holdfast.
    """
    with made(client, options) as sandbox:
        found = cluster.get("pods", "--namespace", SANDBOXES, "--selector", f"holdfast.dev/name={sandbox.id}") or {}
        if not found.get("items"):
            raise StepError(f"no pod of {SANDBOXES} has the label of {sandbox.id}")
        spec = found["items"][0]["spec"]
    spec.pop("nodeName", None)
    agent = spec["containers"][0]
    agent["securityContext"] = {**agent.get("securityContext", {}), "readOnlyRootFilesystem": True}
    name = f"hf-read-only-{secrets.token_hex(3)}"
    try:
        cluster.apply([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SANDBOXES}, "spec": spec}])
        limit = f"--timeout={options['ready_timeout_s']:g}s"
        cluster.run("wait", f"pod/{name}", "--namespace", SANDBOXES, "--for=condition=Ready", limit)  # its probe: the agent listens
        script = "touch /holdfast-acceptance 2>/dev/null && echo writable || echo read-only"
        shown = cluster.run("exec", name, "--namespace", SANDBOXES, "--container", agent["name"], "--", "/bin/sh", "-c", script).strip()
        if shown != "read-only":
            raise StepError(f"the root file system of the sandbox is {shown}")
    finally:
        cluster.run("delete", "pod", name, "--namespace", SANDBOXES, "--ignore-not-found", "--grace-period=0", "--force")
    return {"detail": "a pod made again from a sandbox's, with a read-only root: its agent listens"}


def isolation(client: SandboxClient, options: dict[str, Any], target: str) -> dict[str, Any]:
    """A sandbox that requested isolation cannot reach ``target`` (host:port), or is refused if the cluster cannot isolate it."""
    host, _, port = target.rpartition(":")
    try:
        sandbox = made(client, {**options, "block_network": True})
    except UnsupportedError as error:
        return {"detail": f"the cluster cannot isolate sandboxes from the network: {error}"}
    with sandbox:
        has = sandbox.exec(["/bin/sh", "-c", "command -v nc || command -v bash"], timeout=60)
        if has.exit_code != 0:
            raise NotRunError(f"{options['image']} has neither nc nor bash to try with")
        tried = f"if command -v nc >/dev/null; then nc -w 3 {host} {port} </dev/null; else timeout 3 bash -c '</dev/tcp/{host}/{port}'; fi"
        if sandbox.exec(["/bin/sh", "-c", tried], timeout=60).exit_code == 0:
            raise StepError(f"the sandbox is isolated from the network and reached {target}")
    return {"detail": f"could not reach {target}"}


def doctor(client: SandboxClient) -> dict[str, Any]:
    """The deployment's own checks."""
    checks = client.doctor()
    bad = [f"{one['name']}: {one['detail']}" for one in checks if one.get("required") and not one.get("ok")]
    if not checks or bad:
        raise StepError("; ".join(bad) or "holdfast doctor checked nothing")
    return {"detail": f"{len(checks)} checks"}
