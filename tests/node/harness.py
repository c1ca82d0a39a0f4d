"""A real node process for tests, and a client of its RPC. Everything waits on events, with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0
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
        """One request, its answer; use one client per concurrent call."""
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
    data: Path
    environment: Mapping[str, str]
    python: str = sys.executable
    user: int | None = None
    process: asyncio.subprocess.Process | None = None
    clients: list[NodeClient] = field(default_factory=list)
    output: bytearray = field(default_factory=bytearray)
    drain: asyncio.Task[None] | None = None

    @property
    def socket(self) -> str:
        return str(self.data / "node.sock")

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    async def start(self) -> None:
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        extra: dict[str, Any] = {}
        if self.user is not None:
            extra = {"user": self.user, "group": self.user, "extra_groups": []}
        self.process = await asyncio.create_subprocess_exec(
            self.python, "-m", "session_agent.node",
            cwd=REPOSITORY, env={**base, "HOLDFAST_DATA": str(self.data), **self.environment},
            stderr=asyncio.subprocess.PIPE, **extra,
        )  # fmt: skip
        assert self.process.stderr
        async with asyncio.timeout(DEADLINE_S):
            while line := await self.process.stderr.readline():
                self.output += line
                if b"serving on" in line:
                    break
            else:
                raise AssertionError(f"the node did not start: {self.output.decode()}")
        self.drain = asyncio.get_running_loop().create_task(self._drain(), name="node output")

    async def _drain(self) -> None:
        assert self.process
        assert self.process.stderr
        while part := await self.process.stderr.read(65536):
            self.output += part

    async def client(self) -> NodeClient:
        client = await NodeClient.connect(self.socket)
        self.clients.append(client)
        return client

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        async with asyncio.timeout(DEADLINE_S):
            status = await self.process.wait()
            if self.drain:
                await self.drain
        for client in self.clients:
            client.close()
        self.clients.clear()
        return status


@contextlib.asynccontextmanager
async def node(data: Path, **environment: str) -> AsyncIterator[Node]:
    made = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY, **environment})
    await made.start()
    try:
        yield made
    finally:
        if made.process and made.process.returncode is None:
            await made.stop()
