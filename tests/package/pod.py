"""A container as in a cluster, without a cluster: the bundle in a root file system, the agent as its first process.

Owns `Pod` and starting it in fresh mount, pid, ipc and uts namespaces; the network stays the machine's, so that the SDK reaches the agent
over loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import AsyncSandbox
from holdfast_server.embed import free_port
from holdfast_wire.bundle import agent_command
from holdfast_wire.proof import agent_token

from tests.support.front import Front, sdk_on
from tests.support.until import until_async

TOKEN = agent_token("a deployment's secret", "sb-1", "0123456789abcdef")
POD_UID = "4be0643f-1d98-573b-97cd-ca98a65347dd"
IMAGE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/", "IMAGE_SAYS": "hello"}


@dataclass
class Pod:
    """``env`` is what the image and the pod give beside the agent's settings; ``uid`` is group and user."""

    root: Path
    bundle: Path
    uid: int = 0
    read_only: bool = False
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=lambda: dict(IMAGE_ENV))
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}#{POD_UID}"

    def start(self, argv: Sequence[str] | None = None) -> None:
        self.port = self.port or free_port()
        settings = {
            "HOLDFAST_AGENT_LISTEN": f"tcp://127.0.0.1:{self.port}",
            "HOLDFAST_AGENT_TOKEN": TOKEN,
            "HOLDFAST_AGENT_SANDBOX_ID": "sb-1",
            "HOLDFAST_AGENT_INCARNATION": "0123456789abcdef",
            "HOLDFAST_AGENT_POD_UID": POD_UID,
            **self.settings,
        }
        spec = {
            "root": str(self.root),
            "bundle": str(self.bundle),
            "uid": self.uid,
            "read_only": self.read_only,
            "cwd": self.cwd,
            "argv": list(argv or agent_command()),
            "env": {**self.env, **settings},
        }
        unshare = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL"]
        command = [*unshare, sys.executable, str(Path(__file__).with_name("enter.py")), json.dumps(spec)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)

    async def ready(self) -> None:
        """Wait until the agent answers on its port."""
        await until_async(self._answers, deadline_s=60, what="the agent to answer")

    async def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            assert self.process.stderr is not None
            raise AssertionError(f"the agent ended with {self.process.returncode}: {self.process.stderr.read().decode()}")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: agent\r\n\r\n")
            return (await reader.read(64)).startswith(b"HTTP/1.1 200")
        finally:
            writer.close()

    @property
    def agent_pid(self) -> int:
        """The agent's pid as this machine sees it."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def kill(self) -> bytes:
        """End everything and return what the agent printed."""
        assert self.process is not None
        if self.process.poll() is None:
            try:
                os.kill(self.agent_pid, signal.SIGKILL)  # and all of its namespace with it
            except (IndexError, OSError):
                self.process.kill()
        _, printed = self.process.communicate(timeout=20)
        return printed


@asynccontextmanager
async def running(pod: Pod) -> AsyncIterator[AsyncSandbox]:
    """Start a pod and yield its sandbox as the SDK sees it."""
    async with running_with_front(pod) as (sandbox, _):
        yield sandbox


@asynccontextmanager
async def running_with_front(pod: Pod, **options: float) -> AsyncIterator[tuple[AsyncSandbox, Front]]:
    pod.start()
    try:
        await pod.ready()
        async with sdk_on(pod.endpoint, TOKEN, **options) as pair:
            yield pair
    finally:
        await asyncio.to_thread(pod.kill)
