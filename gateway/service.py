"""The parts of one gateway replica, and the lookup of a sandbox for its owner.

Owns no state that must survive the replica. Another owner's sandbox is indistinguishable from one that does not exist, here and therefore
on every route.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection

from gateway.admission import Admission, Quotas
from gateway.agents.dial import Dialled, dial
from gateway.agents.dial_queue import DialQueue
from gateway.background import BackgroundTasks, Removals
from gateway.http.bounded_protocol import AUTHENTICATED
from gateway.model.records import Cause, Entry, Record, SandboxSpec, Tombstone
from gateway.placement.errors import RebuildingError
from gateway.placement.store import PlacementStore
from gateway.pools import PoolsFile
from gateway.runtimes.base import Runtime
from gateway.sessions.registry import AttachedSessions
from gateway.sessions.tickets import Ticket

from .auth import Keys, key_of
from .memory_reservation import MemoryReservations, reserve_for
from .metrics import Metrics
from .settings import Settings

PROGRAM_HEADER = "X-Holdfast-Program"
_PROGRAM_CHARACTERS = 64


class AgentCalls(Protocol):
    """Requests to agents: ``agents.kept_connections``."""

    def call(self, record: Record, *, own: bool = False) -> AbstractAsyncContextManager[Any]:
        """An ``AgentCall``."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Gateway:
    """The parts of one replica."""

    def __init__(self, settings: Settings, store: PlacementStore, runtime: Runtime, keys: Keys, secrets: tuple[str, ...]) -> None:
        self.settings = settings
        self.store = store
        self.runtime = runtime
        self.keys = keys
        self.secrets = secrets
        """Accepted for tickets and agents. The first signs tickets and derives agents' tokens."""
        self.metrics = Metrics()
        self.memory = MemoryReservations(settings.rest.reserved_bytes)
        self.attached = AttachedSessions(settings.relay)
        self.dials = DialQueue()
        self.agents: AgentCalls
        """Set by ``app.Application``: the relay shares this class and must not import the session core."""
        self.background = BackgroundTasks()
        self.removals = Removals(self.background)
        self.pools = PoolsFile(settings.pools_file)
        self.admission = Admission(settings.admission, self.metrics)
        self.quotas = Quotas(settings.admission, store, self.admission)
        self.started_at = time.monotonic()
        self.was_ready = False
        """Whether ``/readyz`` ever answered that all parts are available."""
        self.logged_readiness: tuple[set[str], bool] = (set(), False)
        """What was last logged about readiness: the parts that are unavailable, and whether this gateway was still starting."""
        self.creations: dict[tuple[str, str], asyncio.Task[Record]] = {}
        """Creations in this replica by id and incarnation: an id may be created again while its previous incarnation still is."""
        self.in_creation: dict[tuple[str, str], SandboxSpec] = {}
        """What they create, by the same keys."""

    async def dial(self, placed: Record | Ticket) -> Dialled:
        """Dial the sandbox's agent, after waiting in the queue of dials. Raises ``DialError``."""
        async with self.dials.place(placed.owner):
            return await dial(placed.endpoint, self.secrets, placed.sandbox_id, placed.incarnation, self.settings.relay.dial_timeout_s)

    def owner(self, connection: HTTPConnection) -> str:
        """The owner of the request's key. Raises HoldfastError ``key_missing`` or ``key_invalid``."""
        owner = self.keys.owner_of(key_of(connection.headers))
        if (authenticated := connection.scope.get(AUTHENTICATED)) is not None:
            authenticated()
        reserve_for(owner)
        return owner

    def check_origin(self, connection: HTTPConnection) -> None:
        """Refuse an upgrade from a web page that is neither of this host nor of an allowed origin. Raises ``origin_refused``."""
        origin = connection.headers.get("origin")
        if origin is None or origin in self.settings.allowed_origins:
            return
        if origin.partition("://")[2].lower() != connection.headers.get("host", "").lower():
            raise HoldfastError("origin_refused", "pages of this origin may not open sessions")

    async def owned(self, entry: Entry, owner: str, sandbox_id: str) -> Record | Tombstone:
        """The entry, if it belongs to the owner. Raises ``sandbox_not_found``, or ``placement_unavailable`` while that is not known."""
        if entry is None and not await self.store.knows(sandbox_id):
            raise RebuildingError
        if entry is None or entry.owner != owner:
            raise HoldfastError("sandbox_not_found", f"there is no sandbox {sandbox_id!r}")
        return entry

    async def record(self, owner: str, sandbox_id: str) -> Record:
        """The owner's sandbox. Raises ``sandbox_not_found`` or ``sandbox_gone``."""
        return live(await self.owned(await self.store.get(sandbox_id), owner, sandbox_id))

    async def ready(self, owner: str, sandbox_id: str) -> Record:
        """The owner's sandbox, if it has an endpoint. Also raises ``sandbox_not_ready`` or ``sandbox_failed``."""
        return reachable(await self.record(owner, sandbox_id))


def gateway_of(connection: HTTPConnection) -> Gateway:
    gateway: Gateway = connection.scope["app"].gateway
    return gateway


def authenticated(connection: HTTPConnection) -> tuple[Gateway, str]:
    """The gateway, and the owner of the request's key. Raises as ``Gateway.owner``."""
    gateway = gateway_of(connection)
    return gateway, gateway.owner(connection)


def sandbox_request(connection: HTTPConnection) -> tuple[Gateway, str, str]:
    """The gateway, the owner of the request's key, and the id of the sandbox in the path. Raises as ``Gateway.owner``."""
    return *authenticated(connection), connection.path_params["sandbox_id"]


async def ready_sandbox(connection: HTTPConnection) -> tuple[Gateway, Record]:
    """The gateway, and the owner's sandbox that the request's path names. Raises as ``Gateway.owner`` and ``Gateway.ready``."""
    gateway, owner, sandbox_id = sandbox_request(connection)
    return gateway, await gateway.ready(owner, sandbox_id)


def program_of(connection: HTTPConnection) -> str:
    """The random id by which a program names itself in its requests; "" if it does not."""
    return connection.headers.get(PROGRAM_HEADER, "")[:_PROGRAM_CHARACTERS]


def live(entry: Record | Tombstone) -> Record:
    if isinstance(entry, Tombstone):
        raise _ended("sandbox_gone", f"sandbox {entry.sandbox_id!r} has ended", entry.cause)
    return entry


def _ended(code: str, message: str, cause: Cause) -> HoldfastError:
    error = EndedError(code, f"{message}: {cause.message or cause.reason}", fault=cause.fault, reason=cause.reason)
    error.by = cause.by
    return error


class EndedError(HoldfastError):
    """The sandbox has ended. ``by``: the program that deleted it."""

    by = ""


def for_reader(error: HoldfastError, connection: HTTPConnection) -> HoldfastError:
    """``error`` as the program that reads it has to take it: a deletion is the caller's own doing only in the program that deleted the
    sandbox. For any other program, which did not expect it, it is a fault of the infrastructure. Clients that do not name their program
    get the error as it is."""
    reader = program_of(connection)
    if isinstance(error, EndedError) and error.reason == "deleted" and error.fault == "caller" and reader and error.by != reader:
        message = f"{error.message} (another client or an operator, not this program)"
        return HoldfastError(
            error.code, message, hint="create a new sandbox", fault="infrastructure", reason="deleted", detail=error.detail
        )
    return error


def reachable(record: Record) -> Record:
    if record.status == "pending":
        raise HoldfastError("sandbox_not_ready", f"sandbox {record.sandbox_id!r} is still being created")
    if record.status == "failed":
        cause = record.cause
        assert cause is not None
        code = "sandbox_failed" if record.ready_at is None else "sandbox_gone"
        raise _ended(code, f"sandbox {record.sandbox_id!r} has failed", cause)
    return record
