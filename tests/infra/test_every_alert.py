"""Each alert fires once, by the fault that it names, on one stack with a real Prometheus (`make soak`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from holdfast import HoldfastError, SandboxClient
from holdfast_server.embed import free_port

from tests.support.prometheus import ALERTS, Prometheus, prometheus
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack

pytestmark = requires("namespaces", "prometheus", "root")
NAMES = {rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Stacks that are started meanwhile have their data on a file system of 1 GiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(folder)], check=True)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def stopped(stack: Stack, name: str) -> Iterator[None]:
    """A process that does not answer, as behind a lost network."""
    pid = stack.pid(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def repeated(step: Callable[[], Any], pause_s: float = 0.2) -> Iterator[None]:
    """Repeat a step, whatever it raises, in a thread."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(pause_s):
            with contextlib.suppress(Exception):
                step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_each_alert_fires_by_the_fault_that_it_names(tmp_path: Path) -> None:
    port, disk = free_port(), tmp_path / "disk"
    disk.mkdir()
    settings = {"HOLDFAST_METRICS_PORT": str(port), "HOLDFAST_REDIS_TIMEOUT_MS": "600", "HOLDFAST_CONCURRENT_CREATES": "1"}
    seen: set[str] = set()
    with small_disk(disk), running_stack({**settings, "HOLDFAST_AUDIT": "/dev/full"}) as stack:
        address = stack.url.removeprefix("http://")
        with prometheus(tmp_path, {"holdfast-gateway": address, "holdfast-controller": f"127.0.0.1:{port}"}) as watching:
            for name, fault in FAULTS.items():
                fault(stack, watching)
                print(f"{name}: {', '.join(sorted(watching.firing()))}")
                seen |= {name, *watching.firing()}
    assert seen == NAMES


def _audit(stack: Stack, watching: Prometheus) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host"):
        watching.wait_for("HoldfastAuditLost", "HoldfastDiskLow")


def _placement(stack: Stack, watching: Prometheus) -> None:
    def ask() -> None:
        request = urllib.request.Request(f"{stack.url}/sandboxes", headers={"X-API-Key": stack.key})
        urllib.request.urlopen(request, timeout=5).close()

    with stopped(stack, "redis"), repeated(ask):
        watching.wait_for("HoldfastPlacementAway", "HoldfastErrors")


def _controller(stack: Stack, watching: Prometheus) -> None:
    with stopped(stack, "controller"):
        watching.wait_for("HoldfastDown", "HoldfastNoLeader")


def _runtime(stack: Stack, watching: Prometheus) -> None:
    client = SandboxClient(stack.url, stack.key, request_timeout_s=5.0)

    def create() -> None:
        client.create_sandbox("host", ready_timeout_s=5.0).close()

    creates = [repeated(create) for _ in range(4)]
    with stopped(stack, "node"), contextlib.ExitStack() as running:
        for one in creates:
            running.enter_context(one)
        watching.wait_for("HoldfastRuntimeAway", "HoldfastCreatesWait", "HoldfastCreatesFail", deadline_s=120)
    client.close()


def _agent(stack: Stack, watching: Prometheus) -> None:
    with SandboxClient(stack.url, stack.key, connect_timeout_s=3.0) as client, client.create_sandbox("host") as sandbox:
        agents = below(stack.pid("node"))
        assert agents
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        try:
            with repeated(lambda: sandbox.exec(["true"], timeout=1)):
                watching.wait_for("HoldfastAttachFails")
        finally:
            for pid in agents:
                os.kill(pid, signal.SIGCONT)


def below(pid: int) -> list[int]:
    """All processes that descend from this one: those of the node are the agents and what they run."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    found += [int(entry.name), *below(int(entry.name))]
    return found


def _lag(stack: Stack, watching: Prometheus) -> None:
    pid = stack.pid("gateway")

    def hiccup() -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(pid, signal.SIGCONT)

    with repeated(hiccup, 0.3):
        watching.wait_for("HoldfastLoopLag")


def _lost(stack: Stack, watching: Prometheus) -> None:
    with SandboxClient(stack.url, stack.key) as client:
        client.create_sandbox("host")
        for pid in below(stack.pid("node")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        watching.wait_for("HoldfastSandboxesLost")
    with contextlib.suppress(HoldfastError):
        stack.wait_ready()


FAULTS: dict[str, Callable[[Stack, Prometheus], None]] = {
    "HoldfastAuditLost": _audit,
    "HoldfastPlacementAway": _placement,
    "HoldfastDown": _controller,
    "HoldfastLoopLag": _lag,
    "HoldfastAttachFails": _agent,
    "HoldfastRuntimeAway": _runtime,
    "HoldfastSandboxesLost": _lost,
}


def test_every_alert_has_its_fault() -> None:
    assert set(FAULTS) <= NAMES
