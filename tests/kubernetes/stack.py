"""A gateway and a controller as processes, with their own Redis, whose sandboxes are pods of the cluster that KUBECONFIG names.

Owns the processes and their environment; `cluster` owns the namespace. Ends everything that it started.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from gateway.runtimes.kubernetes.settings import KubernetesSettings
from tests.support.redis_server import RedisServer
from tests.support.until import until

READY_S = 60.0


class ClusterStack:
    """`url` and `key` are what a client needs; `processes` by module."""

    def __init__(self, url: str, key: str, settings: KubernetesSettings, redis: RedisServer, folder: Path, env: dict[str, str]) -> None:
        self.url = url
        self.key = key
        self.settings = settings
        self.redis = redis
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder
        self._env = env

    def spawn(self, module: str) -> None:
        with (self._folder / f"{module}.log").open("ab") as log:
            self.processes[module] = subprocess.Popen([sys.executable, "-m", module], env=self._env, stdout=log, stderr=log)

    def kill(self, module: str) -> None:
        """As `kill -9`."""
        process = self.processes.pop(module)
        process.kill()
        process.wait(30)


@contextlib.contextmanager
def cluster_stack(folder: Path, settings: KubernetesSettings) -> Iterator[ClusterStack]:
    key, secret = f"hf_{secrets.token_hex(16)}", secrets.token_hex(32)
    (folder / "keys").write_text(f"ada {hashlib.sha256(key.encode()).hexdigest()}\n")
    (folder / "secret").write_text(secret)
    (folder / "secret").chmod(0o600)
    redis = RedisServer(folder)
    redis.start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "HOLDFAST_RUNTIME": "kubernetes",
        "KUBECONFIG": settings.kubeconfig,
        "HOLDFAST_DATA": str(folder),
        "HOLDFAST_NAMESPACE": settings.namespace,
        "HOLDFAST_BUNDLE_IMAGE": settings.bundle_image,
        "HOLDFAST_BUNDLE_INJECTION": settings.bundle_injection,
        "HOLDFAST_SANDBOX_PROFILE": settings.sandbox_profile,
        "HOLDFAST_CLUSTER_CIDRS": ",".join(settings.cluster_cidrs),
        "HOLDFAST_CPU_REQUEST_SHARE": str(settings.cpu_request_share),
        "HOLDFAST_UNSCHEDULABLE_PATIENCE_S": "3",
        "HOLDFAST_PULL_PATIENCE_S": "5",
        "HOLDFAST_REDIS_URL": redis.url,
        "HOLDFAST_KEYS_FILE": str(folder / "keys"),
        "HOLDFAST_SECRET_FILE": str(folder / "secret"),
        "HOSTNAME": f"test-{os.getpid()}",
        "PORT": str(port),
    }
    url = f"http://127.0.0.1:{port}"
    stack = ClusterStack(url, key, settings, redis, folder, environment)
    try:
        for module in ("gateway", "gateway.controller"):
            stack.spawn(module)
        until(lambda: _ready(url), deadline_s=READY_S, what=lambda: f"the gateway: {(folder / 'gateway.log').read_text()[-2000:]}")
        yield stack
    finally:
        for process in stack.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in stack.processes.values():
            process.wait(30)
        redis.stop()


def _ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    return False
