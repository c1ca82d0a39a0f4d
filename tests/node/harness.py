"""A real node process for tests, and a client of its RPC. Every wait has a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from session_agent.node.settings import NodeSettings
from tests.support.until import until

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
ENTRY = "tests.node.entry:serve"


BOMB = """
import os, signal
children = 0
try:
    while True:
        if os.fork() == 0:
            os.closerange(0, 3)
            signal.pause()
        children += 1
except OSError:
    print(children)
"""


class RefusedError(Exception):
    """The node answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]
        self.error = error


@dataclass
class NodeClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ids: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    async def connect(cls, path: str) -> NodeClient:
        return cls(*await asyncio.open_unix_connection(path, limit=1 << 22))

    async def send(self, op: str, **body: Any) -> int:
        number = next(self.ids)
        self.writer.write(json.dumps({"id": number, "op": op, **body}).encode() + b"\n")
        await self.writer.drain()
        return number

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            line = await self.reader.readline()
        assert line, "the node closed the connection"
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def call(self, op: str, **body: Any) -> dict[str, Any]:
        """One request, its answer; use one client per concurrent call. Images are those of the owner of the sandboxes."""
        if op.startswith("image"):
            body = {"owner": "test", **body}
        number = await self.send(op, **body)
        answer = await self.receive()
        assert answer["id"] == number
        if not answer["ok"]:
            raise RefusedError(answer["error"])
        return answer

    async def create(self, sandbox_id: str, image: str = "host", **body: Any) -> dict[str, Any]:
        request = {"incarnation": "0" * 16, "token": "ab" * 32, "cpu": 1, "memory": 256 << 20, "env": {}, "labels": {}}
        return await self.call("create", **(request | {"sandbox_id": sandbox_id, "image": image, "owner": "test"} | body))

    async def next_event(self, kind: str) -> dict[str, Any]:
        while True:
            event: dict[str, Any] = (await self.receive())["event"]
            if event["type"] == kind:
                return event

    def close(self) -> None:
        self.writer.close()


async def ask(endpoint: str, op: str, **body: Any) -> Any:
    """One request to the test agent of the sandbox at *endpoint*."""
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_unix_connection(endpoint.removeprefix("unix://"), limit=1 << 22)
        try:
            writer.write(json.dumps({"op": op, **body}).encode() + b"\n")
            data = await reader.read()
        finally:
            writer.close()
    return json.loads(data) if data else None


async def run(endpoint: str, *argv: str, text: str = "") -> dict[str, Any]:
    result: dict[str, Any] = await ask(endpoint, "run", argv=list(argv), input=text)
    return result


@dataclass
class Node:
    """A node process that is not bound to an event loop, so that several tests may share it."""

    data: Path
    environment: Mapping[str, str]
    python: str = sys.executable
    user: int | None = None
    process: subprocess.Popen[bytes] | None = None
    clients: list[NodeClient] = field(default_factory=list)

    @property
    def socket(self) -> str:
        return self.environment.get("HOLDFAST_NODE_SOCKET", str(self.data / "node.sock"))

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.data.with_name(self.data.name + ".log")

    def start(self) -> None:
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        identity: dict[str, Any] = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        environment = {**base, "HOLDFAST_DATA": str(self.data), **self.environment}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "session_agent.node"], cwd=REPOSITORY, env=environment, stderr=log, **identity
            )
        until(self._started_or_exited, deadline_s=DEADLINE_S, what=lambda: f"the node to serve: {self.log.read_text()}")
        assert self.process.poll() is None, f"the node did not start: {self.log.read_text()}"

    def _started_or_exited(self) -> bool:
        assert self.process
        return "serving on" in self.log.read_text() or self.process.poll() is not None

    async def client(self) -> NodeClient:
        client = await NodeClient.connect(self.socket)
        self.clients.append(client)
        return client

    async def stop(self, number: int = signal.SIGTERM) -> int:
        self.close_clients()
        return await asyncio.to_thread(self.end, number)

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def close_clients(self) -> None:
        for client in self.clients:
            client.close()
        self.clients.clear()


@contextlib.asynccontextmanager
async def node(data: Path, **environment: str) -> AsyncIterator[Node]:
    made = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY, **environment})
    made.start()
    try:
        yield made
    finally:
        if made.process and made.process.poll() is None:
            await made.stop()
        made.close_clients()
        if made.process and made.process.returncode == -signal.SIGKILL:
            shutil.rmtree(NodeSettings(str(data), "").run_dir)
