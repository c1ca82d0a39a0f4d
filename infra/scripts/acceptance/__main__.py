"""``python -m infra.scripts.acceptance``: test a deployment, with faults, on the cluster that KUBECONFIG names.

Owns the order of the steps, the faults and the command line. Exit status 0 if at least one step passed and none failed; steps that were not
run are listed with their reason. Writes acceptance.json. Called by `make acceptance`. It creates an API key of its own and removes it at
the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import AuthenticationError, SandboxClient

from infra.scripts.acceptance import burst, inside
from infra.scripts.acceptance.outcome import NotRunError, Result, Step, StepError, line, passed, take, verdict, write
from infra.scripts.deploy import __main__ as deploying
from infra.scripts.deploy import keys
from infra.scripts.deploy.kubectl import SANDBOXES, SYSTEM, Kubectl
from infra.scripts.smoke import __main__ as smoking

_KEY_S = 150
"""A Secret that is mounted is read again by the kubelet within about a minute, by the gateway soon after."""
_KNOWN_IN_A_ROW = 12
_LEFT_S = 30.0
"""How long after a step its pods may take to go: less than the heartbeat limit of its sandboxes, which would hide that one was left."""
_LOOK_S = 1.0
_AT_WORK_S = 10.0
"""How long sessions continue after a fault."""
STEPS = ("deploy", "doctor", "smoke", "isolation", "images", "burst", "rolling", "faults")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m infra.scripts.acceptance", description="Test a deployment, with faults.")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"some of {','.join(STEPS)}, in this order")
    parser.add_argument("--overlay", default="", help="deploy this overlay first (default: test what is deployed)")
    parser.add_argument("--url", default="", help="URL of the service (default: a port forwarded by kubectl)")
    parser.add_argument("--api-key", default=os.environ.get("HOLDFAST_API_KEY", ""), help="API key (default: a temporary one)")
    parser.add_argument("--image", default=smoking.IMAGE, help=f"image of the sandboxes and bare pods (default: {smoking.IMAGE})")
    parser.add_argument("--cpu", default="100m", help="cpu of each sandbox; with much less an agent starts slowly (default: 100m)")
    parser.add_argument("--images", default="", metavar="NAME=IMAGE,…", help="images to test, each with a name for the report")
    parser.add_argument("--count", type=int, default=100, metavar="N", help="sandboxes of the burst (default: 100)")
    parser.add_argument("--sessions", type=int, default=5, metavar="N", help="sessions at work under faults (default: 5)")
    parser.add_argument("--api-away", default="", metavar="COMMAND", help="stops and restarts the API server (default: no such step)")
    parser.add_argument("--timeout", type=int, default=600, metavar="S", help="longest wait for a step (default: 600)")
    parser.add_argument("--output", type=Path, default=Path("acceptance.json"))
    parser.add_argument("--context", default="")
    parser.add_argument("--kubectl", default=os.environ.get("KUBECTL", "kubectl"))
    options = parser.parse_args(arguments)
    options.wanted = [one for one in options.steps.split(",") if one]
    if unknown := sorted(set(options.wanted) - set(STEPS)):
        parser.error(f"no such step: {', '.join(unknown)}")
    if not options.wanted or options.count < 1 or options.sessions < 1:
        parser.error("--steps must name at least one step, --count and --sessions must be at least 1")
    return options


class AcceptanceTest:
    """One run on one deployment."""

    def __init__(self, options: argparse.Namespace, cluster: Kubectl) -> None:
        self.options = options
        self.cluster = cluster
        self.results: list[Result] = []
        self.where = ["--kubectl", options.kubectl, "--context", options.context]

    def take(self, name: str, step: Step) -> None:
        self.results.append(take(name, step))
        print(line(self.results[-1]), flush=True)

    def deploy(self) -> dict[str, Any]:
        if not self.options.overlay:
            if self.cluster.get("deployment/holdfast-gateway", "--namespace", SYSTEM) is None:
                raise StepError("nothing is deployed: name an overlay with --overlay")
            raise NotRunError("the existing deployment is tested as it is; --overlay deploys one")
        if deploying.main([*self.where, "apply", self.options.overlay]) != 0:
            raise StepError("the deploy failed, see above")
        return {"detail": self.options.overlay}

    @contextlib.contextmanager
    def key(self) -> Iterator[str]:
        """The API key to try with."""
        if self.options.api_key:
            yield self.options.api_key
            return
        owner = f"acceptance-{secrets.token_hex(3)}"
        made = keys.add(self.cluster, owner)
        try:
            yield made
        finally:
            keys.remove(self.cluster, owner)

    def sandbox(self, **more: Any) -> dict[str, Any]:
        """The arguments with which each sandbox is created. After a killed test run its sandboxes are deleted within a minute."""
        size = {"image": self.options.image, "cpu": self.options.cpu, "memory": "64Mi", "ready_timeout_s": float(self.options.timeout)}
        return {**size, "lifetime_s": 3600, "heartbeat_timeout_s": 60, "labels": {"purpose": "acceptance"}, **more}

    def with_key(self, url: str, key: str) -> None:
        """Run the steps that need a key. They remove everything that they create."""
        _until_known(url, key)
        with SandboxClient(url, key) as client:
            for group, name, step in self.steps(client, url, key):
                if group in self.options.wanted:
                    self.take(name, partial(self.leaving_nothing, step))

    def leaving_nothing(self, step: Step) -> dict[str, Any]:
        """Run the step. Raises ``StepError`` if pods that it created are still there some time afterwards."""
        before = self.pods()
        figures = step()
        end = time.monotonic() + _LEFT_S
        while left := sorted(self.pods() - before):
            if time.monotonic() >= end:
                raise StepError(f"left behind after {_LEFT_S:g} s: {len(left)} pods, among them {', '.join(left[:5])}")
            time.sleep(_LOOK_S)
        return figures

    def pods(self) -> set[str]:
        """The names of the pods of sandboxes, without spares, and of the bare pods of the comparison."""
        found: set[str] = set()
        for selector in ("app.kubernetes.io/component=sandbox,!holdfast.dev/pool", "holdfast.dev/bare"):
            found |= set(self.cluster.run("get", "pods", "--namespace", SANDBOXES, "--selector", selector, "--output", "name").split())
        return found

    def steps(self, client: SandboxClient, url: str, key: str) -> Iterator[tuple[str, str, Step]]:
        """Yields for each step the entry of ``STEPS`` that it belongs to, its name, and its function."""
        options = self.options
        yield "doctor", "doctor", lambda: inside.doctor(client)
        yield "smoke", "smoke", lambda: self.smoke(url, key)
        yield "isolation", "isolation", lambda: inside.isolation(client, self.sandbox(), self.api_server())
        for name, image in _images(options.images).items():
            yield "images", f"image: {name}", partial(inside.use, client, self.sandbox(image=image))
        yield "images", "image: as root", lambda: inside.root(client, self.sandbox())
        yield "images", "image: read-only root", lambda: inside.read_only(client, self.cluster, self.sandbox())
        yield "burst", f"{options.count} at once", lambda: self.burst(client)
        yield "rolling", "rolling", lambda: self.smoke(url, key, "--rolling", "2")
        for name, fault in self.faults().items():
            yield "faults", f"fault: {name}", partial(self.under, key, fault)
        yield "faults", "fault: API server away", lambda: self.api_away(url, key)

    def smoke(self, url: str, key: str, *more: str) -> dict[str, Any]:
        options = self.smoke_options(key, *more)
        report = smoking.in_cluster(options, self.cluster) if options.rolling else smoking.run_episodes(options, url)
        return _judged(report, options)

    def smoke_options(self, key: str, *more: str) -> argparse.Namespace:
        what = ["--image", self.options.image, "--count", str(self.options.sessions), "--cpu", self.options.cpu, "--memory", "64Mi"]
        # A late sandbox is reported with its own error, before the time limit of the whole step.
        waits = ["--ready", str(self.options.timeout * 0.8), "--timeout", str(self.options.timeout)]
        return smoking.parse(["--api-key", key, *self.where, *what, *waits, *more])

    def under(self, key: str, fault: Callable[[], None]) -> dict[str, Any]:
        """Run sessions in the cluster while ``fault`` happens once, and check every command of each session."""
        options = self.smoke_options(key, "--rolling", "1")

        def disturb() -> int:
            fault()
            time.sleep(_AT_WORK_S)
            return 1

        return _judged(smoking.in_cluster(options, self.cluster, disturb), options)

    def faults(self) -> dict[str, Callable[[], None]]:
        return {
            "FLUSHALL": lambda: self.system("exec", "holdfast-redis-0", "--", "redis-cli", "FLUSHALL"),
            "controllers killed": lambda: self.killed("controller", everything=True),
            "a gateway killed": lambda: self.killed("gateway", everything=False),
            "Redis killed": lambda: self.killed("redis", everything=True),
        }

    def system(self, *words: str) -> None:
        self.cluster.run(words[0], "--namespace", SYSTEM, *words[1:])

    def killed(self, component: str, *, everything: bool) -> None:
        """Kill pods of a component without a grace period; returns once their replacements are ready."""
        selector = f"app.kubernetes.io/component={component}"
        found = self.cluster.run("get", "pods", "--namespace", SYSTEM, "--selector", selector, "--output", "name").split()
        if not found:
            raise StepError(f"there is no {component} to kill")
        self.system("delete", *(found if everything else found[:1]), "--grace-period=0", "--force")
        kind = "statefulset" if component == "redis" else "deployment"
        self.system("rollout", "status", f"{kind}/holdfast-{component}", f"--timeout={self.options.timeout}s")

    def api_away(self, url: str, key: str) -> dict[str, Any]:
        if not self.options.api_away:
            raise NotRunError("only you know how to stop this cluster's API server: --api-away COMMAND")
        if not self.options.url:
            raise NotRunError("kubectl's forwarded port goes through the API server: --url names an address that does not")
        options = self.smoke_options(key, "--rolling", "1")
        return _judged(smoking.run_episodes(options, url, self.options.api_away), options)

    def api_server(self) -> str:
        service = self.cluster.get("service/kubernetes", "--namespace", "default") or {}
        return f"{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"

    def burst(self, client: SandboxClient) -> dict[str, Any]:
        ours = burst.sandboxes(client, self.sandbox(), self.options.count)
        return burst.compare(ours, burst.bare(self.cluster, self.sandbox(), self.options.count))


def _judged(report: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    report = smoking.judged(report, options)
    if report["failed"]:
        raise StepError(f"{report['failed']} failures: {'; '.join(report['failures'][:5])}")
    command = report["steps"]["command"]
    return {"commands": command["n"], "p50_ms": command["p50_ms"], "max_ms": command["max_ms"]}


def _images(text: str) -> dict[str, str]:
    return dict(one.split("=", 1) for one in text.split(",")) if text else dict(inside.IMAGES)


def _until_known(url: str, key: str) -> None:
    """Wait until all gateways behind ``url`` accept the key: each rereads its Secret by itself, and a connection reaches any one."""
    end = time.monotonic() + _KEY_S
    known = 0
    while known < _KNOWN_IN_A_ROW:
        try:
            with SandboxClient(url, key) as client:
                client.list_sandboxes()
            known += 1
        except AuthenticationError:
            known = 0
            if time.monotonic() > end:
                raise
            time.sleep(1)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    cluster = Kubectl(options.kubectl, options.context)
    acceptance = AcceptanceTest(options, cluster)
    began = time.time()
    try:
        cluster.reachable()
        if "deploy" in options.wanted:
            acceptance.take("deploy", acceptance.deploy)
        if not any(one.word == "failed" for one in acceptance.results) and options.wanted != ["deploy"]:
            with acceptance.key() as key, contextlib.nullcontext(options.url) if options.url else smoking.forwarded(cluster) as url:
                acceptance.with_key(url, key)
    except Exception as error:  # noqa: BLE001 - what was found so far is still reported
        acceptance.results.append(Result("acceptance test", "failed", f"{type(error).__name__}: {error}", round(time.time() - began, 1)))
        print(line(acceptance.results[-1]), flush=True)
    known = {name: str(value) for name, value in vars(options).items() if name != "api_key"}
    write(options.output, acceptance.results, {"began": began, "options": known})
    print(f"\n{verdict(acceptance.results)} ({options.output})")
    return 0 if passed(acceptance.results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
