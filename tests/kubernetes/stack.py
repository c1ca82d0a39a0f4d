"""A gateway and a controller as processes, with a Redis of their own, whose sandboxes are pods of the cluster that KUBECONFIG names.

Owns the processes and what they are told; the namespace is `cluster`'s. Ends everything it started.
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
    """`url` and `key` are what a client needs."""

    def __init__(self, url: str, key: str, settings: KubernetesSettings) -> None:
        self.url = url
        self.key = key
        self.settings = settings


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
        "HOLDFAST_DATA": str(folder),
        "HOLDFAST_NAMESPACE": settings.namespace,
        "HOLDFAST_BUNDLE_IMAGE": settings.bundle_image,
        "HOLDFAST_BUNDLE_INJECTION": settings.bundle_injection,
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
    processes = []
    try:
        for module in ("gateway", "gateway.controller"):
            with (folder / f"{module}.log").open("wb") as log:
                processes.append(subprocess.Popen([sys.executable, "-m", module], env=environment, stdout=log, stderr=log))
        url = f"http://127.0.0.1:{port}"
        until(lambda: _ready(url), deadline_s=READY_S, what=lambda: f"the gateway: {(folder / 'gateway.log').read_text()[-2000:]}")
        yield ClusterStack(url, key, settings)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(30)
        redis.stop()


def _ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    return False
