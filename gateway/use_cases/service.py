"""The parts of one gateway replica, and the lookup of a sandbox by its owner and name.

Owns no state that must survive the replica. Names belong to owners: ``owned`` is the one place where a name becomes the id of a sandbox, so
no request reaches another owner's, on any route.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets as secrets_
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from holdfast_wire.errors import HoldfastError

from gateway.agents.dial import Dialled, dial
from gateway.agents.dial_queue import DialQueue
from gateway.agents.kept_connections import KeptConnections
from gateway.agents.port_connections import PortConnections
from gateway.agents.traced_calls import TracedCalls
from gateway.audit.log import AuditLog
from gateway.identity.principal import Identities, member_of
from gateway.memory_reservation import MemoryReservations
from gateway.metrics import Metrics
from gateway.model.names import ids_of
from gateway.model.records import Cause, Entry, Record, SandboxSpec, Tombstone
from gateway.placement.change_feed import ChangeFeed
from gateway.placement.errors import RebuildingError
from gateway.placement.recent_records import RecentRecords
from gateway.placement.store import PlacementStore
from gateway.pools import PoolsFile
from gateway.recordings.files import files_of
from gateway.recordings.recorder import Recorder
from gateway.runtimes.base import PortSockets, Runtime
from gateway.sessions.attach import Attach
from gateway.sessions.registry import AttachedSessions
from gateway.sessions.tickets import Ticket
from gateway.settings import Settings
from gateway.tenants.copy import TenantCopy
from gateway.tenants.file import TenantFile
from gateway.tenants.rates import Rates
from gateway.tracing import TracedSpans, spans_of

from .admission import Admission, Quotas
from .background import BackgroundTasks, Removals
from .command_ids import new_command_id

_WHERE: Final = {"memory": "with its processes in memory", "disk": "with its files on disk"}


class CommandIds(Protocol):
    """The command id of an exec without an idempotency key; a face may recognise repeated ones (``faces.orchard``)."""

    def __call__(self, record: Record, body: dict[str, Any], waits: bool, connected: Callable[[], bool]) -> AbstractContextManager[str]:
        """The id, as a context that lasts until the exec is answered.

        The arguments are the sandbox, the request's fields, whether the exec waits, and a function that returns whether its client is still
        connected.
        """
        ...


def new_command_ids(record: Record, body: dict[str, Any], waits: bool, connected: Callable[[], bool]) -> AbstractContextManager[str]:
    """See ``CommandIds``: a new id for every exec."""
    return contextlib.nullcontext(new_command_id())


class Gateway:
    """The parts of one replica."""

    def __init__(
        self, settings: Settings, store: PlacementStore, runtime: Runtime, identities: Identities, secrets: tuple[str, ...]
    ) -> None:
        self.settings = settings
        self.store = store
        self.recent_records = RecentRecords(store.steps)
        self.feed = ChangeFeed(store)
        self.runtime = runtime
        self.tenants = TenantCopy(store, identities, TenantFile(settings.tenants_file) if settings.tenants_file else None)
        """Who sends a request, and what is in use by whom. Includes ``identities``."""
        self.secrets = secrets
        """Accepted for tickets and agents. The first signs tickets and derives agents' tokens."""
        self.metrics = Metrics()
        self.memory = MemoryReservations(settings.rest.reserved_bytes)
        self.attached = AttachedSessions(settings.relay)
        self.dials = DialQueue()
        self.spans = spans_of(settings.tracing)
        dials = (self.dial, self.ready, settings.relay.dial_timeout_s)
        self.agents = TracedCalls(self.spans, *dials) if isinstance(self.spans, TracedSpans) else KeptConnections(*dials)
        self.preview_agents = KeptConnections(self.dial, self.ready, settings.relay.dial_timeout_s)
        """Apart from ``agents``: a large answer of a preview must not delay commands."""
        self.ports = PortConnections(self.preview_agents, runtime.connect_port if isinstance(runtime, PortSockets) else None)
        self.attach = Attach(settings.relay, lambda: self.secrets, self.attached, self.dial, self.ready, self.metrics, self.spans)
        self.background = BackgroundTasks()
        self.removals = Removals(self.background)
        self.pools = PoolsFile(settings.pools_file)
        self.admission = Admission(settings.admission, self.metrics)
        self.quotas = Quotas(settings.admission, store, self.admission, lambda: self.tenants.tenants.limits)
        self.audit = AuditLog(settings.audit, self.metrics, settings.replica, required=settings.audit_required)
        self.audited: dict[tuple[str, str], Any] = {}
        """The sandboxes that are followed for the audit log, by id and incarnation (``audited``)."""
        self.rates = Rates(store, self.metrics)
        self.command_ids: CommandIds = new_command_ids
        self.recorder = Recorder(
            settings.recordings,
            files_of(settings.recordings.place),
            store,
            self.agents,
            self.ready,
            self.background,
            f"{settings.replica}-{secrets_.token_hex(8)}",
        )
        self.followed: Counter[str] = Counter()
        """How many sandboxes the streams of events follow, each stream counted, by owner."""
        self.started_at = time.monotonic()
        self.was_ready = False
        """Whether ``/readyz`` ever answered that all parts are available."""
        self.logged_readiness: tuple[set[str], bool] = (set(), False)
        """What was last logged about readiness: the parts that are unavailable, and whether this gateway was still starting."""
        self.creations: dict[tuple[str, str], asyncio.Task[Record]] = {}
        """Creations in this replica by id and incarnation: an id may be created again while its previous incarnation still is."""
        self.in_creation: dict[tuple[str, str], SandboxSpec] = {}
        """What they create, by the same keys."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage of a create, and make it a span. A stage that fails is not counted."""
        begun = time.monotonic()
        with self.spans.span(f"create.{name}"):
            yield
        self.metrics.observe("create_stage_seconds", time.monotonic() - begun, stage=name)

    async def dial(self, placed: Record | Ticket) -> Dialled:
        """Dial the sandbox's agent, after waiting in the queue of dials. Raises ``DialError``."""
        async with self.dials.place(member_of(placed.owner)):
            return await dial(placed.endpoint, self.secrets, placed.sandbox_id, placed.incarnation, self.settings.relay.dial_timeout_s)

    async def owned(self, owner: str, name: str, step: Callable[[str], Awaitable[Entry]]) -> Record | Tombstone:
        """The answer of ``step``, a step of the store, for the id of the owner's sandbox of this name.

        Raises ``sandbox_not_found``, or ``placement_unavailable`` while that is not known.
        """
        for sandbox_id in ids_of(owner, name):
            entry = await step(sandbox_id)
            if entry is None and not await self.store.knows(sandbox_id):
                raise RebuildingError
            if entry is not None and entry.owner == owner:
                return entry
        raise HoldfastError("sandbox_not_found", f"there is no sandbox {name!r}")

    async def record(self, owner: str, name: str) -> Record:
        """The owner's sandbox. Raises ``sandbox_not_found`` or ``sandbox_gone``."""
        return live(await self.owned(owner, name, self.store.get))

    async def ready(self, owner: str, name: str) -> Record:
        """The owner's sandbox, if it has an endpoint. Also raises ``sandbox_not_ready`` or ``sandbox_failed``."""
        return reachable(await self.record(owner, name))

    async def aclose(self) -> None:
        """End the work of this replica, then close its store and runtime."""
        self.attached.draining = True
        await self.background.aclose()
        await self.tenants.aclose()
        await self.audit.aclose()
        await self.recorder.aclose()
        self.agents.close()
        self.ports.close()
        self.preview_agents.close()
        await self.runtime.aclose()
        await self.store.aclose()


def live(entry: Record | Tombstone) -> Record:
    """The record of an entry. Raises ``sandbox_gone`` with the cause of a tombstone."""
    if isinstance(entry, Tombstone):
        raise _ended("sandbox_gone", f"sandbox {entry.name!r} has ended", entry.cause)
    return entry


def _ended(code: str, message: str, cause: Cause) -> HoldfastError:
    error = EndedError(code, f"{message}: {cause.message or cause.reason}", fault=cause.fault, reason=cause.reason)
    error.by = cause.by
    return error


class EndedError(HoldfastError):
    """The sandbox has ended. ``by``: the program that deleted it."""

    by = ""


def for_reader(error: HoldfastError, reader: str) -> HoldfastError:
    """``error`` as the program ``reader`` that reads it has to take it.

    A deletion is the caller's own doing only in the program that deleted the sandbox. For any other program, which did not expect it, it is
    a fault of the infrastructure. Clients that do not name their program ("") get the error as it is.
    """
    if isinstance(error, EndedError) and error.reason == "deleted" and error.fault == "caller" and reader and error.by != reader:
        message = f"{error.message} (another client or an operator, not this program)"
        return HoldfastError(
            error.code, message, hint="create a new sandbox", fault="infrastructure", reason="deleted", detail=error.detail
        )
    return error


def reachable(record: Record) -> Record:
    """The record of a ready sandbox. Raises ``sandbox_not_ready``, ``sandbox_paused``, or the cause of its failure."""
    if record.paused and record.status == "ready":
        raise HoldfastError("sandbox_paused", f"sandbox {record.name!r} is paused {_WHERE[record.paused]}", reason="paused")
    return settled(record)


def settled(record: Record) -> Record:
    """The record of a ready sandbox, which may be paused. Raises ``sandbox_not_ready``, or the cause of its failure."""
    if record.status == "pending":
        raise HoldfastError("sandbox_not_ready", f"sandbox {record.name!r} is still being created")
    if record.status == "failed":
        cause = record.cause
        assert cause is not None
        code = "sandbox_failed" if record.ready_at is None else "sandbox_gone"
        raise _ended(code, f"sandbox {record.name!r} has failed", cause)
    return record
