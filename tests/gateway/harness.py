"""The harness of the gateway's tests: a served gateway in this process, a runtime in memory, an agent that the test scripts.

Redis is real. The runtime in memory passes the runtimes' conformance suite; the scripted agent answers the dial with
a real proof and then sends whatever bytes a test gives it, so it can also play a hostile agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn
from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import DIAL_HEADER, PROOF_HEADER, agent_token, answer_dial
from holdfast_wire.websocket_frames import BINARY, CLOSE, server_frame
from websockets.asyncio.client import ClientConnection, connect
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.utils import apply_mask

from gateway.__main__ import server_config
from gateway.identity.keys import Keys
from gateway.model.names import id_of
from gateway.model.options import Egress
from gateway.model.records import Cause, Record, SandboxSpec
from gateway.placement.store import PlacementStore
from gateway.runtimes.base import CreateRequest, Event, SandboxEnded, SandboxStatus, Synced
from gateway.settings import (
    AdmissionSettings,
    ConnectionSettings,
    PlacementSettings,
    RecordingSettings,
    RelaySettings,
    RestSettings,
    Settings,
)
from gateway.use_cases.service import Gateway

SECRET = "s" * 64
ADA, BOB = "hf_" + "a" * 32, "hf_" + "b" * 32
DEADLINE_S = 60.0


def id_of_adas(name: str) -> str:
    """The id of ada's sandbox of this name: what the store and the runtime call it."""
    return id_of("ada", name)


class MemoryRuntime:
    """Keeps sandboxes as records only. ``endpoint`` is the endpoint of each; ``refuse`` is raised by the next create."""

    def __init__(self, endpoint: str = "unix:///nowhere") -> None:
        self.endpoint = endpoint
        self.present: dict[str, SandboxStatus] = {}
        self.deleted: list[str] = []
        self.orders: list[CreateRequest] = []
        self.allowed: dict[str, Egress] = {}
        self.refuse: HoldfastError | None = None
        self.hold: asyncio.Event | None = None
        self.began_at: float | None = None
        self._watchers: list[asyncio.Queue[Event]] = []

    async def create(self, order: CreateRequest, timeout_s: float) -> str:
        self.orders.append(order)
        if self.hold is not None:
            await self.hold.wait()
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error
        other = self.present.get(order.spec.sandbox_id)
        if other is not None and other.incarnation == order.spec.incarnation:
            return other.endpoint
        if other is not None:
            raise HoldfastError("sandbox_exists", "it is there")
        if order.spec.image == "unknown-image":
            raise HoldfastError("image_not_found", "there is no such image")
        self._make(order.spec)
        return self.endpoint

    async def adopt(self, spare_id: str, order: CreateRequest, timeout_s: float) -> str:
        if self.present.pop(spare_id, None) is None:
            raise HoldfastError("sandbox_not_found", "the spare no longer exists")
        self.orders.append(order)
        self._make(order.spec)
        return self.endpoint

    async def set_egress(self, sandbox_id: str, incarnation: str, egress: Egress) -> None:
        if sandbox_id not in self.present or self.present[sandbox_id].incarnation != incarnation:
            raise HoldfastError("sandbox_not_found", "there is no such sandbox")
        self.allowed[sandbox_id] = egress

    def add(self, sandbox_id: str, incarnation: str = "1" * 16, **more: Any) -> SandboxStatus:
        """``more`` are fields of the status or of the specification."""
        status = {name: more.pop(name) for name in ("created_at", "state", "cause", "adopted", "paused") if name in more}
        return self._make(SandboxSpec(sandbox_id, **{"owner": "ada", "incarnation": incarnation, "image": "host"} | more), **status)

    def _make(self, spec: SandboxSpec, **status: Any) -> SandboxStatus:
        present = SandboxStatus(spec, self.endpoint, **{"created_at": time.time()} | status)
        self.present[spec.sandbox_id] = present
        return present

    def lose(self, sandbox_id: str, cause: Cause) -> None:
        """The sandbox fails by itself."""
        present = self.present[sandbox_id]
        self.present[sandbox_id] = replace(present, state="failed", cause=cause)
        self._publish(SandboxEnded(sandbox_id, present.incarnation, cause))

    def restart(self) -> None:
        """Behave as a node that was killed and restarted: all sandboxes are gone, and the watch reports it."""
        self.present.clear()
        self.began_at = time.time()
        self._publish(Synced(self.began_at))

    async def delete(self, sandbox_id: str, incarnation: str | None = None) -> bool:
        existing = self.present.get(sandbox_id)
        if existing is not None and incarnation not in (None, existing.incarnation):
            return False
        self.deleted.append(sandbox_id)
        present = self.present.pop(sandbox_id, None)
        if present is not None:
            self._publish(SandboxEnded(sandbox_id, present.incarnation, Cause("deleted", "caller")))
        return present is not None

    async def get(self, sandbox_id: str) -> list[SandboxStatus]:
        return [self.present[sandbox_id]] if sandbox_id in self.present else []

    async def list_all(self) -> list[SandboxStatus]:
        return list(self.present.values())

    async def list_watched(self) -> list[SandboxStatus]:
        return await self.list_all()

    async def watch(self) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event] = asyncio.Queue(1000)
        self._watchers.append(queue)
        yield Synced(self.began_at)
        while True:
            yield await queue.get()

    async def collect(self) -> int:
        return 0

    async def doctor(self) -> list[dict[str, Any]]:
        return [{"name": "memory", "ok": True, "detail": "", "fix": ""}]

    async def ping(self) -> None:
        pass

    async def spares(self) -> dict[str, int]:
        return {"ready": 2, "wanted": 4}

    async def room(self) -> dict[str, int]:
        return {"free": 3 << 30, "promised": 1 << 30, "left": 1 << 30}

    async def largest(self) -> tuple[float, int] | None:
        return None

    async def stats(self) -> dict[str, Any]:
        specs = [one.spec for one in self.present.values()]
        return {
            "sandboxes": len(specs),
            "cpu_total": 4.0,
            "memory_total": 8 << 30,
            "cpu_requested": sum(spec.cores for spec in specs),
            "memory_requested": sum(spec.memory_bytes for spec in specs),
        }

    async def aclose(self) -> None:
        pass

    def _publish(self, event: Event) -> None:
        for queue in self._watchers:
            queue.put_nowait(event)


@dataclass
class Served:
    """A gateway that answers at ``url``."""

    gateway: Gateway
    server: uvicorn.Server
    url: str
    store: PlacementStore
    runtime: MemoryRuntime
    done: asyncio.Task[None]

    def client(self, key: str | None = ADA) -> httpx.AsyncClient:
        headers = {"X-API-Key": key} if key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=DEADLINE_S, trust_env=False, verify=False)

    def attach(self, sandbox_id: str, key: str | None = ADA, **headers: str) -> connect:
        if key:
            headers["X-API-Key"] = key
        url = f"ws{self.url.removeprefix('http')}/sandboxes/{sandbox_id}/session"
        return connect(
            url,
            additional_headers={name.replace("_", "-"): text for name, text in headers.items()},
            compression=None,
            ping_interval=None,
            proxy=None,
            user_agent_header=None,
            max_size=None,
        )

    async def place(self, sandbox_id: str, endpoint: str, owner: str = "ada", incarnation: str = "1" * 16) -> Record:
        """A ready sandbox whose agent is at ``endpoint``."""
        spec = SandboxSpec(sandbox_id=sandbox_id, owner=owner, incarnation=incarnation, image="host")
        await self.store.create(spec, fingerprint=sandbox_id)
        record = await self.store.mark_ready(sandbox_id, incarnation, endpoint)
        assert isinstance(record, Record)
        return record


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve(
    redis_url: str,
    folder: Path,
    relay: RelaySettings | None = None,
    rest: RestSettings | None = None,
    admission: AdmissionSettings | None = None,
    connections: ConnectionSettings | None = None,
    more: dict[str, Any] | None = None,
) -> AsyncIterator[Served]:
    """A gateway on a free port, with the keys of ada and bob, and with long timeouts for Redis, because the machine may be busy.

    ``more`` are further fields of ``Settings``.
    """
    keys = folder / "keys"
    keys.write_text("".join(f"{name} {hashlib.sha256(key.encode()).hexdigest()}\n" for name, key in (("ada", ADA), ("bob", BOB))))
    settings = Settings(
        data_dir=folder,
        keys_file=keys,
        placement=PlacementSettings(redis_url=redis_url, step_timeout_s=60.0, connect_timeout_s=60.0),
        connections=connections or ConnectionSettings(),
        relay=relay or RelaySettings(),
        rest=rest or RestSettings(),
        admission=admission or AdmissionSettings(),
        **{"recordings": RecordingSettings(place=str(folder / "recordings"), flush_s=0.05), **(more or {})},
    )
    store, runtime = PlacementStore(settings.placement), MemoryRuntime()
    await store.set_marker("g", term=1)  # as a controller does after its first pass
    gateway = Gateway(settings, store, runtime, Keys(keys), (SECRET,))
    listener = socket.create_server(("127.0.0.1", 0))
    config = server_config(settings, gateway)
    config.setup_event_loop = lambda: None  # type: ignore[method-assign]
    server = _Server(config)
    done = asyncio.create_task(server.serve(sockets=[listener]), name="gateway under test")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    served = Served(gateway, server, url, store, runtime, done)
    try:
        async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient(trust_env=False, verify=False) as client:
            while True:
                try:
                    await client.get(f"{url}/healthz")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0)
        yield served
    finally:
        server.should_exit = True
        server.config.timeout_graceful_shutdown = 1
        await done


Behaviour = Callable[["Connection"], Awaitable[None]]


@dataclass(eq=False)
class Connection:
    """One upgraded connection at the scripted agent, with raw bytes in both directions."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def message(self) -> bytes:
        """The next message. A Close is answered and ends the connection."""
        first, payload = await self.frame()
        if first == CLOSE:
            await self.send(server_frame(CLOSE, payload))
            raise ConnectionError("closed")
        return payload

    async def frame(self) -> tuple[int, bytes]:
        """First byte and unmasked payload of the next frame from the client."""
        head = await self.reader.readexactly(2)
        size = head[1] & 0x7F
        if size == 126:
            size = int.from_bytes(await self.reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await self.reader.readexactly(8), "big")
        assert head[1] & 0x80, "a client masks its frames"
        mask = await self.reader.readexactly(4)
        data = await self.reader.readexactly(size)
        if mask != bytes(4):
            data = apply_mask(data, mask)
        return head[0], data

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


@dataclass
class ScriptedAgent:
    """Listens on a Unix socket, proves itself as the agent of ``sandbox_id``, then runs ``behave`` on each connection."""

    behave: Behaviour
    sandbox_id: str = "sb-1"
    incarnation: str = "1" * 16
    secret: str = SECRET
    proof: str | None = None
    """If set, accept every dial and send this as the proof."""
    answer: bytes | None = None
    """If set, send these bytes instead of an upgrade."""
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="hf-agent-"))
    connections: list[Connection] = field(default_factory=list)
    _server: asyncio.Server | None = None

    @property
    def endpoint(self) -> str:
        return f"unix://{self.folder}/agent.sock"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, f"{self.folder}/agent.sock")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            connection.writer.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.folder}/agent.sock")
        os.rmdir(self.folder)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.answer is not None:
                writer.write(self.answer)
                await writer.drain()
                writer.close()
                return
            protocol = ServerProtocol()
            protocol.receive_data(head)
            (request,) = protocol.events_received()
            assert isinstance(request, Request)
            response = protocol.accept(request)
            token = agent_token(self.secret, self.sandbox_id, self.incarnation)
            proof = self.proof if self.proof is not None else answer_dial(token, request.headers[DIAL_HEADER])
            if proof is None:
                response = protocol.reject(403, "refused")
            else:
                response.headers[PROOF_HEADER] = proof
            protocol.send_response(response)
            writer.write(b"".join(protocol.data_to_send()))
            if proof is None:
                writer.close()
                return
            connection = Connection(reader, writer)
            self.connections.append(connection)
            await self.behave(connection)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def echo(connection: Connection) -> None:
    """Send every message back."""
    while True:
        await connection.send(server_frame(BINARY, await connection.message()))


async def silent(connection: Connection) -> None:
    """Read and send nothing."""
    while await connection.reader.read(65536):
        pass


async def closed_with(connection: ClientConnection) -> tuple[int, str]:
    """Wait until the other side has closed; return its code and reason."""
    async with asyncio.timeout(DEADLINE_S):
        await connection.wait_closed()
    return connection.close_code or 0, connection.close_reason or ""
