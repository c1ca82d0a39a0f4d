"""Admission: how many sandboxes are created at a time, in which order, and how much an owner may have.

Owns the queue of this replica (round-robin over owners, so that a thousand creates of one owner do not delay another's) and its limits, and
the check of quotas, which the store counts for all replicas. Refusals are 429 for the caller's own limits and 503 for the service's, with a
jittered Retry-After. Called by ``create``.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from holdfast_wire.errors import HoldfastError

from gateway.identity.limits import Limits, limits_for
from gateway.identity.principal import member_of, project_of
from gateway.metrics import Metrics
from gateway.model.records import Quota, SandboxSpec
from gateway.placement.errors import PlacementUnavailableError
from gateway.placement.store import PlacementStore
from gateway.settings import AdmissionSettings

ALL_OWNERS = ""
_RETRY_MOST_S = 30
_SMOOTHING = 0.9


class QueuePlace:
    """The place of one create, in the queue and then among those that run. It is held, and released, by a ``with`` block."""

    def __init__(self, admission: Admission, owner: str) -> None:
        self.owner = owner
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._admission = admission
        self.entered_at = asyncio.get_running_loop().time()
        self.waited_s = 0.0
        """How long the create has waited in the queue."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    async def turn(self) -> None:
        """Wait until the create may start. Raises HoldfastError ``overloaded`` if that takes too long."""
        if self.admitted.done():
            return
        try:
            async with asyncio.timeout(self._admission.settings.queue_wait_s):
                await self.admitted
        except TimeoutError:
            self.waited_s = asyncio.get_running_loop().time() - self.entered_at
            self.leave()
            message = f"the create waited {self.waited_s:.0f} s in the queue without being started; {self._admission.waiting} others wait"
            raise self._admission.refused("overloaded", message, "queue") from None

    def leave(self) -> None:
        """Leave the queue, or report that the create has ended. May be repeated."""
        self._admission.left(self)


class Admission:
    """The queue of creates. One per replica."""

    def __init__(self, settings: AdmissionSettings, metrics: Metrics) -> None:
        self.settings = settings
        self._metrics = metrics
        self._creating: dict[QueuePlace, float] = {}
        self._creating_of: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[QueuePlace]] = OrderedDict()
        self.waiting = 0
        self._took_s = 1.0

    @property
    def running(self) -> int:
        return len(self._creating)

    def enter(self, owner: str) -> QueuePlace:
        """A place for one create.

        Raises ``quota_exceeded`` if the owner's part of the queue is full, ``overloaded`` if the whole queue is.
        """
        settings = self.settings
        mine = self._waiting.get(owner)
        if self.waiting >= settings.queue:
            raise self.refused("overloaded", "too many creates are queued", "queue")
        if mine is not None and len(mine) >= settings.owner_queue:
            raise self.refused("quota_exceeded", f"{len(mine)} of your creates are queued already", "queue")
        place = QueuePlace(self, owner)
        self._waiting.setdefault(owner, deque()).append(place)
        self.waiting += 1
        self._next()
        return place

    def left(self, place: QueuePlace) -> None:
        began = self._creating.pop(place, None)
        if began is not None:
            self._creating_of[place.owner] -= 1
            if not self._creating_of[place.owner]:
                del self._creating_of[place.owner]
            took_s = asyncio.get_running_loop().time() - began
            self._took_s = self._took_s * _SMOOTHING + took_s * (1 - _SMOOTHING)
        elif place in (mine := self._waiting.get(place.owner, deque())):
            mine.remove(place)
            self._dropped(place.owner, mine)
        self._next()

    def refused(self, code: str, message: str, what: str) -> HoldfastError:
        """Count a create that is refused because of ``what``; returns its error, with the time after which to retry."""
        self._metrics.count("creates_refused_total", code=code, what=what)
        ahead_s = self._took_s * self.waiting / self.settings.concurrent_creates
        after_s = min(math.ceil(max(ahead_s, 1.0) * random.uniform(1.0, 2.0)), _RETRY_MOST_S)  # noqa: S311  spreads retries
        return HoldfastError(code, message, detail={"retry_after_s": after_s})

    def _next(self) -> None:
        """Start queued creates while the limit permits it, round-robin over their owners."""
        for _ in range(len(self._waiting)):
            if len(self._creating) >= self.settings.concurrent_creates:
                break
            owner, mine = next(iter(self._waiting.items()))
            self._waiting.move_to_end(owner)
            if self._creating_of[owner] < self.settings.owner_concurrent_creates:
                place = mine.popleft()
                self._dropped(owner, mine)
                self._creating[place] = now = asyncio.get_running_loop().time()
                place.waited_s = now - place.entered_at
                self._creating_of[owner] += 1
                if not place.admitted.done():
                    place.admitted.set_result(None)

    def _dropped(self, owner: str, mine: deque[QueuePlace]) -> None:
        self.waiting -= 1
        if not mine:
            del self._waiting[owner]


@dataclass(frozen=True, slots=True)
class Counted:
    """Whose sandboxes are counted: in the store by ``usage``, for people by ``subject``."""

    usage: str
    subject: str
    quota: Quota


def counted_for(settings: AdmissionSettings, limits: Mapping[str, Limits], spec: SandboxSpec) -> list[Counted]:
    """Every quota that holds for a sandbox: of its owner, its project, its key and of the service."""
    member, found = member_of(spec.owner), []
    own = settings.owner_quota
    for subject, held in limits_for(limits, member, project_of(spec.owner), spec.key_id):
        quota = Quota(held.sandboxes, held.cores, held.memory_bytes)
        if subject.startswith("owner:"):
            own = quota or own
        elif quota:
            found.append(Counted(f"={subject}", subject, quota))
    if own:
        found.insert(0, Counted(member, f"owner:{member}", own))
    if settings.quota:
        found.append(Counted(ALL_OWNERS, "service", settings.quota))
    return found


class Quotas:
    """Quotas of owners, projects, keys and the service. The store counts the sandboxes. Does nothing if no quota is set."""

    def __init__(
        self,
        settings: AdmissionSettings,
        store: PlacementStore,
        admission: Admission,
        limits: Callable[[], Mapping[str, Limits]] = dict,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._store = store
        self._admission = admission

    async def reserve(self, spec: SandboxSpec) -> list[str]:
        """Count a sandbox; returns the usages that it was added to.

        Raises ``quota_exceeded`` for the quota of its owner, project or key, and ``no_capacity`` for that of all owners.
        """
        counted: list[str] = []
        for one in self._counted(spec):
            usage = await self._store.reserve(one.usage, spec, one.quota)
            if usage.outcome == "over":
                await self.release(counted, spec.sandbox_id)
                raise self._over(one, usage.sandboxes, usage.cores, usage.memory_bytes)
            if usage.outcome == "fresh":
                counted.append(one.usage)
        return counted

    async def release(self, owners: list[str], sandbox_id: str) -> None:
        """Stop counting a sandbox for these owners. Never raises: the controller corrects the count if this fails."""
        try:
            for owner in owners:
                await self._store.release(owner, sandbox_id)
        except PlacementUnavailableError:
            pass

    async def ended(self, spec: SandboxSpec) -> None:
        """Stop counting a sandbox that has ended."""
        await self.release([one.usage for one in self._counted(spec)], spec.sandbox_id)

    def _counted(self, spec: SandboxSpec) -> list[Counted]:
        return counted_for(self._settings, self._limits(), spec)

    def _over(self, of: Counted, sandboxes: int, cores: float, memory: int) -> HoldfastError:
        quota = of.quota
        pairs = (
            ("sandboxes", "sandboxes", sandboxes, quota.sandboxes, "{:g} sandboxes"),
            ("cores", "cores", cores, quota.cores, "{:g} cores"),
            ("memory_bytes", "bytes of memory", memory, quota.memory_bytes, "{:,.0f} bytes of memory"),
        )
        name, what, asked, most, shown = next(pair for pair in pairs if pair[3] is not None and pair[2] > pair[3])
        if of.usage == ALL_OWNERS:
            return self._admission.refused("no_capacity", f"this service holds at most {shown.format(most)}", "service")
        kind, _, whose = of.subject.partition(":")
        who, its = ("you", "your") if kind == "owner" else (f"the {kind} {whose}", "its")
        message = f"with this sandbox {who} would have {shown.format(asked)}, and {its} quota is {shown.format(most)}"
        error = self._admission.refused("quota_exceeded", message, what)
        error.detail["limit"] = {"subject": of.subject, "name": name, "most": most, "used": asked}
        return error
