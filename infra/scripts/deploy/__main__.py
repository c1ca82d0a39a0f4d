"""``python -m infra.scripts.deploy``: apply an overlay and wait for it; keys and the signing secret of a deployment.

Owns the command line and what is printed. Exit status 0 when everything runs, else 1 with the reason. Called by `make deploy`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

import yaml

from infra.scripts.deploy import checks, keys, rotation
from infra.scripts.deploy.kubectl import SYSTEM, DeployError, Kubectl
from infra.scripts.deploy.render import Manifest, marked, render, with_images, with_pull_secret

_LOG_LINES = 5
_WORKLOADS = ("StatefulSet", "Deployment")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m infra.scripts.deploy", description="Put Holdfast on the cluster that kubectl reaches.")
    parser.add_argument("--context", default="", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--kubectl", default=os.environ.get("KUBECTL", "kubectl"), help="path of kubectl")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    apply = commands.add_parser("apply", help="make the secrets that are missing, apply an overlay, wait until it runs")
    apply.add_argument("overlay", help="dev, generic, aks, knative, or a folder of yours")
    apply.add_argument("--registry", default=os.environ.get("REGISTRY", ""), help="registry of the images (default: as in the overlay)")
    apply.add_argument("--tag", default=os.environ.get("TAG", ""), help="tag of the images (default: as in the overlay)")
    mirror, secret = os.environ.get("MIRROR", ""), os.environ.get("PULL_SECRET", "")
    apply.add_argument("--mirror", default=mirror, help="registry of the images of others, which is Redis (default: as in the overlay)")
    apply.add_argument("--pull-secret", default=secret, help="Secret of holdfast and holdfast-sandboxes with which all pods pull")
    apply.add_argument("--redis-url", help="URL of a Redis of yours, for the component redis-managed; stored in a Secret")
    apply.add_argument("--owner", default="admin", help="owner of the first API key (default: admin)")
    apply.add_argument("--key-file", type=Path, help="file for the first API key, readable by you alone (default: print the key)")
    apply.add_argument("--timeout", type=int, default=300, metavar="S", help="longest wait for each workload (default: 300)")
    apply.add_argument("--dry-run", action="store_true", help="let the API server check the manifests, and change nothing")
    apply.add_argument("--print", action="store_true", dest="show", help="print the manifests without asking a cluster")
    key = commands.add_parser("key", help="API keys").add_subparsers(dest="action", required=True, metavar="ACTION")
    key.add_parser("add", help="add an API key, and print it once").add_argument("owner")
    key.add_parser("remove", help="remove API keys").add_argument("which", help="an owner, or the first digits of a key's hash")
    key.add_parser("list", help="list owners and hashes of the API keys")
    rotate = commands.add_parser("rotate-secret", help="replace the signing secret; the former one is accepted until --finish")
    how = rotate.add_mutually_exclusive_group()
    how.add_argument("--finish", action="store_true", help="remove the former secret, once no sandbox that was created with it is left")
    how.add_argument("--now", action="store_true", help="reject the former secret at once, since it leaked; every running sandbox is lost")
    rotate.add_argument("--timeout", type=int, default=600, metavar="S", help="longest wait for each restart (default: 600)")
    return parser.parse_args(arguments)


def apply(options: argparse.Namespace, cluster: Kubectl) -> None:
    manifests = render(cluster, options.overlay)
    with_images(manifests, options.registry, options.tag, options.mirror)
    if options.pull_secret:
        with_pull_secret(manifests, options.pull_secret)
    if options.show:
        print(yaml.safe_dump_all(manifests, sort_keys=False), end="")
        return
    cluster.reachable()
    checks.storage(cluster, manifests)
    checks.disks_stay(cluster, manifests)
    if options.dry_run:
        print(cluster.apply(manifests, dry_run=True), end="")
        return
    cluster.apply([one for one in manifests if one["kind"] == "Namespace"])
    key = keys.ensure(cluster, options.owner, options.redis_url)
    if key is not None:
        _hand_over(key, options)  # before anything can fail: it cannot be had again
    marked(manifests, keys.redis_version(cluster))
    print(cluster.apply(manifests), end="")
    for manifest in checks.in_order_of_need(manifests):
        _wait(cluster, manifest, options.timeout)
    checks.report_nodes(cluster, manifests, print)
    checks.report_left_over(cluster, manifests, print)
    print(f"deployed: {options.overlay}; `make smoke` tries it")


def _hand_over(key: str, options: argparse.Namespace) -> None:
    if options.key_file is None:
        print(f"API key of {options.owner}, shown once: {key}")
        return
    handle = os.open(options.key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(key + "\n")
    print(f"API key of {options.owner}: {options.key_file}")


def _wait(cluster: Kubectl, manifest: Manifest, timeout_s: int) -> None:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    limit = ("--namespace", SYSTEM, f"--timeout={timeout_s}s")
    if manifest["apiVersion"].startswith("serving.knative.dev/"):
        cluster.run("wait", f"services.serving.knative.dev/{name}", "--for=condition=Ready", *limit)
    elif kind in _WORKLOADS:
        print(f"waiting for {kind.lower()}/{name}, at most {timeout_s} s", flush=True)
        try:
            cluster.run("rollout", "status", f"{kind.lower()}/{name}", *limit)
        except DeployError as error:
            component = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
            raise DeployError(f"{error}\n{_why(cluster, component)}") from None
    else:
        return
    print(f"{kind.lower()}/{name} runs")


def _why(cluster: Kubectl, component: str) -> str:
    """Status and conditions of the pods of a component, and the last lines of the log of one that runs and is not ready."""
    found = cluster.get("pods", "--namespace", SYSTEM, "--selector", f"app.kubernetes.io/component={component}") or {}
    found_lines = []
    for pod in found.get("items", ()):
        name, status = pod["metadata"]["name"], pod.get("status", {})
        waiting = [one["state"]["waiting"] for one in status.get("containerStatuses", ()) if "waiting" in one.get("state", {})]
        unmet = [one for one in status.get("conditions", ()) if one.get("status") != "True" and one.get("message")]
        reasons = [f"{one.get('reason', '')}: {one.get('message', '')}" for one in (*waiting, *unmet)]
        found_lines.append(f"  {name}: {status.get('phase')}; {'; '.join(reasons) or 'no reason given'}")
        if unmet and any("running" in one.get("state", {}) for one in status.get("containerStatuses", ())):
            with contextlib.suppress(DeployError):  # the log may not be readable, and is an addition
                log = cluster.run("logs", name, "--namespace", SYSTEM, f"--tail={_LOG_LINES}")
                found_lines += [f"    {line}" for line in log.splitlines()]
    return "\n".join(found_lines) or f"  there is no pod: kubectl describe --namespace {SYSTEM} replicaset shows why"


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    cluster = Kubectl(options.kubectl, options.context)
    try:
        match options.command, getattr(options, "action", ""):
            case "apply", _:
                apply(options, cluster)
            case "key", "add":
                print(keys.add(cluster, options.owner))
            case "key", "remove":
                print("removed:", *keys.remove(cluster, options.which), sep="\n")
            case "key", _:
                print(*keys.lines(cluster), sep="\n")
            case _:
                step = rotation.finish if options.finish else rotation.replace if options.now else rotation.rotate
                step(cluster, options.timeout, print)
    except DeployError as error:
        print(f"deploy: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
