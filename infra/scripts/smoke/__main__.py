"""``python -m infra.scripts.smoke``: try a deployment, from here or from inside its cluster.

Owns how the deployment is reached (an address, a port forwarded by kubectl, or a pod in the cluster), the rollouts that ``--rolling`` makes
while sessions are at work, and what is printed. Exit status 0 if every requested sandbox has done every step and every requested rollout
has happened; a report that shows less is a failure, even if it counts none. ``episodes`` owns the steps. Called by `make smoke`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infra.scripts.deploy.kubectl import SYSTEM, DeployError, Kubectl
from infra.scripts.smoke import episodes

IMAGE = "busybox:stable"
"""The image that this and the acceptance test use unless another is named, so that a cluster needs one."""
_SERVICE = "service/holdfast-gateway"
_INSIDE = f"http://holdfast-gateway.{SYSTEM}.svc"
_GATEWAYS = "app.kubernetes.io/component=gateway"
_PYTHON = "/opt/holdfast/bin/python"
_BESIDE = ("--namespace", "default")
"""Where the pod of ``--in-cluster`` runs."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m infra.scripts.smoke", description="Create sandboxes, use them, delete them; print how long each step took."
    )
    way = parser.add_argument_group("URL of the service (default: HOLDFAST_URL, else a port forwarded by kubectl)")
    way.add_argument("--url", default=os.environ.get("HOLDFAST_URL", ""))
    way.add_argument("--api-key", default=os.environ.get("HOLDFAST_API_KEY", ""), help="default: HOLDFAST_API_KEY")
    way.add_argument("--in-cluster", action="store_true", help="run as a pod in the cluster, through the Service of the gateways")
    way.add_argument("--context", default="")
    way.add_argument("--kubectl", default=os.environ.get("KUBECTL", "kubectl"))
    what = parser.add_argument_group("what to do")
    what.add_argument("--image", default=IMAGE, help=f"image of the sandboxes (default: {IMAGE})")
    what.add_argument("--count", type=int, default=1, metavar="N", help="sandboxes at a time (default: 1)")
    what.add_argument("--cpu", default="100m")
    what.add_argument("--memory", default="256Mi")
    what.add_argument("--folder", default="/tmp", help="a folder that every user of the image can write to (default: /tmp)")
    what.add_argument(
        "--network", choices=("blocked", "open"), default="blocked", help="open where the cluster enforces no network policies"
    )
    what.add_argument("--ready", default="120", metavar="S", help="longest wait for a sandbox (default: 120)")
    what.add_argument(
        "--rolling", type=int, default=0, metavar="N", help="restart all gateways N times while sessions are at work; implies --in-cluster"
    )
    what.add_argument("--timeout", type=int, default=600, metavar="S", help="longest wait for the whole (default: 600)")
    options = parser.parse_args(arguments)
    if options.count < 1 or options.rolling < 0:
        parser.error("--count must be at least 1, --rolling at least 0")
    if not options.api_key:
        raise DeployError("no API key: set HOLDFAST_API_KEY; `python -m infra.scripts.deploy key add OWNER` makes one")
    return options


def task(options: argparse.Namespace) -> list[str]:
    """The arguments of ``episodes``."""
    arguments = ["--until-signal"] if options.rolling else []
    for name in ("image", "count", "cpu", "memory", "folder", "network", "ready"):
        arguments += [f"--{name}", str(getattr(options, name))]
    return arguments


@contextlib.contextmanager
def forwarded(cluster: Kubectl) -> Iterator[str]:
    """A local address that reaches one gateway of the Service."""
    command = cluster.command("port-forward", "--namespace", SYSTEM, _SERVICE, ":80")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found is None:
                raise DeployError(f"kubectl port-forward {_SERVICE}: {line.strip() or 'ended'}")
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()


Disturb = Callable[[], int]
"""A function that disturbs running sessions; returns the number of disturbances."""
AtWork = Callable[[subprocess.Popen[str]], int]
"""The same, given the program whose output is read."""


def in_cluster(options: argparse.Namespace, cluster: Kubectl, disturb: Disturb | None = None) -> dict[str, Any]:
    """Run ``episodes`` as a pod, while the gateways are rolled out or ``disturb`` runs. Its report."""
    gateway = cluster.get("deployment/holdfast-gateway", "--namespace", SYSTEM)
    if gateway is None:
        raise DeployError(f"there is no deployment holdfast-gateway in namespace {SYSTEM}")
    container = gateway["spec"]["template"]["spec"]["containers"][0]
    name = f"holdfast-smoke-{secrets.token_hex(3)}"
    objects = _pod(name, options, container["image"], container.get("imagePullPolicy", "IfNotPresent"))
    try:
        cluster.apply(objects)
        _until_started(cluster, name, options)

        def at_work(_logs: subprocess.Popen[str]) -> int:
            rollouts = disturb() if disturb else _roll(options, cluster)
            _stop(cluster, name)
            return rollouts

        return _report_of(cluster.command("logs", "--follow", name, *_BESIDE), options, at_work)
    finally:
        cluster.run("delete", "pod,secret", name, *_BESIDE, "--ignore-not-found", "--wait=false")


def _pod(name: str, options: argparse.Namespace, image: str, policy: str) -> list[dict[str, Any]]:
    metadata = {"name": name, "namespace": _BESIDE[1], "labels": {"app.kubernetes.io/component": "smoke"}}
    text = Path(episodes.__file__).read_text()
    container = {
        "name": "smoke",
        "image": image,
        "imagePullPolicy": policy,
        "command": [_PYTHON, "-c", text.replace("$", "$$"), *task(options)],  # the kubelet reads $$ as one
        "env": [
            {"name": "HOLDFAST_URL", "value": options.url or _INSIDE},
            {"name": "HOLDFAST_API_KEY", "valueFrom": {"secretKeyRef": {"name": name, "key": "key"}}},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"key": options.api_key}}
    return [secret, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}]


def _report_of(command: list[str], options: argparse.Namespace, at_work: AtWork, **more: Any) -> dict[str, Any]:
    """What a program reports that runs ``episodes`` or shows its output. ``at_work`` is called once all sessions are at work."""
    lines, happened = [], 0
    end = time.monotonic() + options.timeout
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more) as process:
        limit = threading.Timer(options.timeout, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if line.strip() == episodes.AT_WORK:
                    happened = at_work(process)
        finally:
            limit.cancel()
            process.terminate()
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and {"failed", "failures", "steps"} <= found.keys():
                return {**found, **({"rollouts": happened} if options.rolling else {})}
    if time.monotonic() >= end:
        raise DeployError(f"{options.count} sandboxes had not done every step within {options.timeout} s (--timeout)")
    raise DeployError(f"the smoke pod ended without a report: {''.join(lines).strip()[-2000:]}")


def _stop(cluster: Kubectl, name: str) -> None:
    """Have the pod's sessions finish. One whose sessions have all failed ends by itself: then its report has the reason."""
    try:
        cluster.run("exec", name, *_BESIDE, "--", _PYTHON, "-c", "import os; os.kill(1, 15)")
    except DeployError as error:
        try:
            cluster.run("wait", f"pod/{name}", *_BESIDE, "--for=jsonpath={.status.phase}=Failed", "--timeout=10s")
        except DeployError:
            raise error from None


def _until_started(cluster: Kubectl, name: str, options: argparse.Namespace) -> None:
    """kubectl can wait for a pod to be ready, or to be over, but not for either."""
    deadline = time.monotonic() + min(options.timeout, 120)
    while True:
        pod = cluster.get("pod", name, *_BESIDE) or {}
        if pod.get("status", {}).get("phase", "Pending") != "Pending":
            return
        if time.monotonic() > deadline:
            raise DeployError(f"the smoke pod does not start: {json.dumps(pod.get('status', {}).get('containerStatuses', []))}")
        time.sleep(0.5)


def _roll(options: argparse.Namespace, cluster: Kubectl) -> int:
    """Replace every gateway, and wait until those that were there have drained and gone. How often that was done."""
    limit = f"--timeout={options.timeout}s"
    for number in range(options.rolling):
        before = cluster.run("get", "pods", "--namespace", SYSTEM, "--selector", _GATEWAYS, "--output", "name").split()
        if not before:
            raise DeployError("there is no gateway to restart")
        cluster.run("rollout", "restart", "deployment/holdfast-gateway", "--namespace", SYSTEM)
        cluster.run("rollout", "status", "deployment/holdfast-gateway", "--namespace", SYSTEM, limit)
        cluster.run("wait", *before, "--namespace", SYSTEM, "--for=delete", limit)
        print(f"rollout {number + 1} of {options.rolling}: {len(before)} gateways drained and gone", file=sys.stderr)
    return int(options.rolling)


def run_episodes(options: argparse.Namespace, url: str, disturbance: str = "") -> dict[str, Any]:
    """Run ``episodes`` as a process; with ``--rolling`` the command ``disturbance`` runs while sessions are at work. Its report."""

    def at_work(process: subprocess.Popen[str]) -> int:
        status = subprocess.run(["sh", "-c", disturbance], check=False, timeout=options.timeout).returncode
        process.terminate()
        return int(status == 0)

    environment = {**os.environ, "HOLDFAST_URL": url, "HOLDFAST_API_KEY": options.api_key}
    return _report_of([sys.executable, episodes.__file__, *task(options)], options, at_work, env=environment)


def judged(report: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The report with what it lacks among its failures: a step that not every sandbox has done, a rollout that did not happen."""
    wanted = episodes.WORK_STEPS if options.rolling else episodes.STEPS
    lacking = [one for one in episodes.unmet(report["steps"], options.count, wanted) if one not in report["failures"]]
    if (done := report.get("rollouts", 0)) != options.rolling:
        lacking.append(f"{done} of {options.rolling} rollouts happened")
    return {**report, "failed": report["failed"] + len(lacking), "failures": [*report["failures"], *lacking]}


def show(report: dict[str, Any]) -> None:
    for step, figures in report["steps"].items():
        print(f"  {step:<14} n={figures['n']:<6} p50 {figures['p50_ms']:>9.1f} ms   max {figures['max_ms']:>9.1f} ms")
    if "rollouts" in report:
        print(f"  rollouts       {report['rollouts']}")
    for failure in report["failures"]:
        print(f"  FAILED  {failure}")
    print(f"smoke: {'failed' if report['failed'] else 'passed'}, {report['failed']} failures")


def main(arguments: list[str]) -> int:
    try:
        options = parse(arguments)
        cluster = Kubectl(options.kubectl, options.context)
        if options.in_cluster or options.rolling:
            report = in_cluster(options, cluster)
        elif options.url:
            report = run_episodes(options, options.url)
        else:
            with forwarded(cluster) as url:
                report = run_episodes(options, url)
    except (DeployError, OSError, subprocess.TimeoutExpired) as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 1
    report = judged(report, options)
    show(report)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
