"""Makes the recordings of one replica: it follows their sandboxes and writes what they report.

Owns which replica makes a recording (a lease in placement), the memory of what is not written yet, the limits of size and age, and the
gaps. No command waits for it, nor for the store: what exceeds the memory is dropped, and the recording says how much. Called by use cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.agents.activity_channels import ENDED, ActivityChannel
from gateway.agents.kept_connections import KeptConnections
from gateway.model.names import ids_of
from gateway.model.records import Entry, Record, Tombstone
from gateway.placement.errors import PlacementUnavailableError
from gateway.placement.store import PlacementStore
from gateway.settings import RecordingSettings

from . import retention
from .files import RecordingFiles, name_of, recording_id
from .lines import line, note, position

log = logging.getLogger("gateway.recordings")

_LEASE_S: Final = 15.0
_RENEW_S: Final = 3.0
_TAKEN: Final = 100
_HELD_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one recording that wait for the store."""
_RETRY_S: Final = 5.0
_SWEEP_S: Final = 3600.0
_TRIM_S: Final = 60.0
_PARENT_S: Final = 2.0
_PARENT_POLL_S: Final = 0.05
_CONTENT: Final = ("output", "input")


class Starter(Protocol):
    """Starts a task that the replica owns."""

    def start(self, work: Any, name: str) -> asyncio.Task[Any]: ...


class _Recording:
    """One recording in progress: its lines until they are written."""

    def __init__(self, member: str, name: str, limit_bytes: int) -> None:
        self.member = member
        """Its name in placement."""
        self.name = name
        """Its name in the store."""
        self.waiting: list[bytes] = []
        self.waiting_bytes = 0
        self.lost_bytes = 0
        self.size_bytes = 0
        """Written so far, or waiting."""
        self.begins_line = True
        self.end: dict[str, Any] | None = None
        self.task: asyncio.Task[Any] | None = None
        self.commands = 0
        self._limit_bytes = limit_bytes
        self._full = 0

    def add(self, facts: list[dict[str, Any]], epoch: str) -> None:
        for fact in facts:
            kind = fact["type"]
            if self.size_bytes > self._limit_bytes and (kind in _CONTENT or self.size_bytes > 2 * self._limit_bytes):
                level = 1 if kind in _CONTENT else 2
                if self._full < level:
                    self._full = level
                    self.put(note("gap", message=f"the recording has reached its limit of {self._limit_bytes} bytes"))
                continue
            self.commands += kind == "command_ended"
            self.put(line(fact, epoch))

    def put(self, data: bytes) -> None:
        """Add a line, unless too much waits for the store."""
        if self.waiting_bytes + len(data) > _HELD_BYTES:
            self.lost_bytes += len(data)
            return
        if self.lost_bytes:
            gap = note("gap", message="the store of recordings did not answer", lost_bytes=self.lost_bytes)
            self.lost_bytes = 0
            self.put(gap)
        self.waiting.append(data)
        self.waiting_bytes += len(data)
        self.size_bytes += len(data)


class Recorder:
    """One per replica. ``find`` is the record of a ready sandbox by owner and name."""

    def __init__(
        self,
        settings: RecordingSettings,
        files: RecordingFiles | None,
        store: PlacementStore,
        agents: KeptConnections,
        find: Callable[[str, str], Awaitable[Record]],
        background: Starter,
        replica: str,
    ) -> None:
        self.files = files
        self._settings = settings
        self._store = store
        self._agents = agents
        self._find = find
        self._background = background
        self._replica = replica
        self._recordings: dict[str, _Recording] = {}
        self._flushing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._retry_at = 0.0
        self._trimmed_at: dict[str, float] = {}
        """When an owner's limit was last looked at, by the owner's folder."""

    def __len__(self) -> int:
        return len(self._recordings)

    async def begin(self, record: Record, reached: tuple[str, int] | None = None) -> None:
        """Record a new sandbox, from before its first command on; waits a moment until its agent reports.

        ``record`` has the endpoint. The recording of a branch begins with what its parent's has: it waits a moment until that has the
        position ``reached`` of the parent's journal, which another replica may be writing.
        """
        assert self.files is not None
        spec = record.spec
        recording = self._new(spec.owner, spec.name, spec.incarnation)
        meta = {
            "recording_id": recording_id(spec.name, spec.incarnation), "sandbox_id": spec.name, "image": spec.image,
            "labels": spec.labels, "group": spec.group or None, "parent": spec.parent or None, "turn": spec.turn,
            "created_at": record.created_at, "started_at": time.time(),
        }  # fmt: skip
        with contextlib.suppress(PlacementUnavailableError):  # it is renewed soon
            await self._store.hold_recordings(self._replica, [recording.member], _LEASE_S, 0)
        try:
            async with asyncio.timeout(self._settings.begin_s):  # a store that hangs must not hold up the create
                if spec.parent:
                    await self._continue_parent(recording.name, spec.owner, spec.parent, reached)
                await asyncio.to_thread(self.files.write, recording.name, "meta.json", orjson.dumps(meta))
                await asyncio.to_thread(self.files.append, recording.name, note("recording_started", sandbox_id=spec.name))
        except Exception as error:  # noqa: BLE001  as in ``_write``
            log.warning("recording %s: %s", recording.name, error)
            recording.put(note("gap", message="the store of recordings did not answer at the beginning"))
        begun = asyncio.Event()
        self._start(recording, record, None, begun.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.begin_s):
                await begun.wait()

    def _new(self, owner: str, sandbox: str, incarnation: str) -> _Recording:
        member = orjson.dumps([owner, sandbox, incarnation]).decode()
        return _Recording(member, name_of(owner, recording_id(sandbox, incarnation)), self._settings.limit_bytes)

    def _start(self, recording: _Recording, record: Record, after: tuple[str, int] | None, begun: Callable[[], None]) -> None:
        self._recordings[recording.member] = recording
        work = self._follow(recording, record, after, begun)
        recording.task = self._background.start(work, f"recording of {record.sandbox_id}")

    async def _continue_parent(self, name: str, owner: str, parent: str, reached: tuple[str, int] | None) -> None:
        """Copy the parent's recording so far."""
        source = await asyncio.to_thread(self._latest, name_of(owner), parent)
        if source is None:
            return
        until = asyncio.get_running_loop().time() + _PARENT_S
        while True:
            await self._flush()
            if await asyncio.to_thread(self._has, source, reached) or asyncio.get_running_loop().time() >= until:
                break
            await asyncio.sleep(_PARENT_POLL_S)
        await asyncio.to_thread(self._copy, name, source, note("branched", parent=parent, recording_id=source.rpartition("/")[2]))

    def _latest(self, folder: str, sandbox: str) -> str | None:
        """The name of the sandbox's latest recording."""
        assert self.files is not None
        files = self.files
        found = [f"{folder}/{one}" for one in files.names(folder) if one.rpartition(".")[0] == sandbox]
        return max(found, key=lambda one: (files.read(one, "meta.json") or b"", one), default=None)

    def _has(self, name: str, reached: tuple[str, int] | None) -> bool:
        """Whether a recording has a position of its sandbox's journal, or follows another journal."""
        assert self.files is not None
        if reached is None or reached[1] <= 0:
            return True
        stored = position(self.files.tail(name))
        return stored is not None and (stored[0] != reached[0] or stored[1] >= reached[1])

    def _copy(self, name: str, source: str, end: bytes) -> None:
        assert self.files is not None
        for piece in self.files.lines(source):
            self.files.append(name, piece)
        self.files.append(name, b"\n" + end)

    async def _follow(self, recording: _Recording, record: Record, after: tuple[str, int] | None, begun: Callable[[], None]) -> None:
        found: list[Record] = [record]

        async def find() -> Record:
            return found.pop() if found else await self._find(record.owner, record.name)

        channel = ActivityChannel(self._agents, find, incarnation=record.incarnation, content=True, opened=begun)
        if after is not None:
            channel.epoch, channel.position = after
        try:
            async for facts in channel.facts():
                recording.add(facts, channel.epoch)
                self._changed.set()
        except HoldfastError as error:
            if error.code not in ENDED:
                raise
            self._ended(recording, error.reason, error.fault, error.message)
        finally:
            begun()

    def _ended(self, recording: _Recording, reason: str | None, fault: str, message: str) -> None:
        recording.put(note("sandbox_ended", reason=reason, fault=fault, message=message))
        recording.end = {"ended_at": time.time(), "reason": reason, "fault": fault, "message": message}
        self._changed.set()

    # Writing ---------------------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write what there is, until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._settings.flush_s)
            self._changed.clear()
            await self._flush()

    async def _flush(self) -> None:
        """Write all that waits, in one step on a thread; what fails waits for the next one."""
        async with self._flushing:
            if self.files is None or asyncio.get_running_loop().time() < self._retry_at:
                self._changed.set()
                return
            batch = [
                (recording, b"".join(recording.waiting), recording.end, len(recording.waiting))
                for recording in self._recordings.values()
                if recording.waiting or recording.end is not None
            ]
            if not batch:
                return
            written, error = await asyncio.to_thread(self._write, [(one.name, data, end, one.commands) for one, data, end, _ in batch])
            for recording, data, end, count in batch[:written]:
                del recording.waiting[:count]
                recording.waiting_bytes -= len(data)
                if end is not None:
                    self._recordings.pop(recording.member, None)
                    with contextlib.suppress(PlacementUnavailableError):
                        await self._store.end_recording(recording.member)
            if error is not None:
                log.warning("the store of recordings does not answer: %s", error)
                self._retry_at = asyncio.get_running_loop().time() + _RETRY_S
                self._changed.set()

    def _write(self, batch: list[tuple[str, bytes, dict[str, Any] | None, int]]) -> tuple[int, Exception | None]:
        """How many were written, and why the next one was not. A line that was written and failed later comes twice."""
        assert self.files is not None
        for number, (name, data, end, commands) in enumerate(batch):
            try:
                if data:
                    self.files.append(name, data)
                if end is not None:
                    self.files.write(name, "end.json", orjson.dumps(end | {"commands": commands}))
                    self._trim(name.partition("/")[0])
            except Exception as error:  # noqa: BLE001  packages for object stores raise errors of their own
                return number, error
        return len(batch), None

    # Leases ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the leases of this replica, take recordings whose replica is gone, and remove old ones, until cancelled."""
        if self.files is None:
            return
        swept_at = -_SWEEP_S
        while True:
            with contextlib.suppress(PlacementUnavailableError):
                await self._share()
            now = asyncio.get_running_loop().time()
            if now - swept_at >= _SWEEP_S:
                swept_at = now
                await asyncio.to_thread(self._sweep)
            await asyncio.sleep(_RENEW_S)

    async def _share(self) -> None:
        lost, taken = await self._store.hold_recordings(self._replica, list(self._recordings), _LEASE_S, _TAKEN)
        for member in lost:  # this replica was away for a while
            recording = self._recordings.pop(member, None)
            if recording is not None and recording.task is not None:
                recording.task.cancel()
        for member in taken:
            if member not in self._recordings:
                await self._take(member)

    async def _take(self, member: str) -> None:
        """Go on with a recording of a replica that is gone."""
        assert self.files is not None
        owner, sandbox, incarnation = orjson.loads(member)
        recording = self._new(owner, sandbox, incarnation)
        try:
            tail = await asyncio.to_thread(self.files.tail, recording.name)
            recording.size_bytes = await asyncio.to_thread(self.files.size, recording.name)
        except Exception as error:  # noqa: BLE001  as in ``_write``
            log.warning("recording %s: %s", recording.name, error)
            return  # the lease expires, and it is taken again
        if tail and not tail.endswith(b"\n"):
            recording.put(b"\n")
        entry = await self._entry(owner, sandbox)
        if isinstance(entry, Record) and entry.incarnation == incarnation and entry.status != "failed":
            self._start(recording, entry, position(tail) or ("", 0), lambda: None)
            return
        self._recordings[member] = recording
        recording.put(note("gap", message="the gateway that recorded this sandbox ended before it"))
        cause = entry.cause if isinstance(entry, Tombstone | Record) and entry.incarnation == incarnation else None
        if cause is None:
            self._ended(recording, "unknown", "infrastructure", "the sandbox has ended")
        else:
            self._ended(recording, cause.reason, cause.fault, cause.message)

    async def _entry(self, owner: str, sandbox: str) -> Entry:
        """What placement has of the owner's sandbox of this name."""
        for sandbox_id in ids_of(owner, sandbox):
            entry = await self._store.get(sandbox_id)
            if entry is not None and entry.owner == owner:
                return entry
        return None

    def _sweep(self) -> None:
        """Remove what is older than recordings are kept, and what is over the limit of its owner."""
        assert self.files is not None
        oldest = time.time() - self._settings.kept_s
        try:
            for folder in self.files.names(""):
                retention.expire(self.files, folder, oldest)
                self._trim(folder)
        except Exception as error:  # noqa: BLE001  as in ``_write``
            log.warning("old recordings were not removed: %s", error)

    def _trim(self, folder: str) -> None:
        """Keep an owner's limit. At most once in a while: it reads what the store has of the owner."""
        now = time.monotonic()
        if self.files is None or not self._settings.owner_bytes or now - self._trimmed_at.get(folder, -_TRIM_S) < _TRIM_S:
            return
        self._trimmed_at[folder] = now
        if removed := retention.trim(self.files, folder, self._settings.owner_bytes):
            log.info("%d recordings of an owner were removed: all of them had over %d bytes", removed, self._settings.owner_bytes)

    async def aclose(self) -> None:
        """Write what there is, and leave the recordings to other replicas."""
        members = list(self._recordings)
        await self._flush()
        with contextlib.suppress(PlacementUnavailableError):
            for member in members:
                await self._store.leave_recording(self._replica, member)
