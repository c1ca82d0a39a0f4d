"""What happens in the sandboxes that a stream of events follows: the facts that their agents report, and the pulls of images.

Owns which sandboxes of the owner are followed, from the first look to their end, how many, and the form of the facts. All of it stops with
the stream. ``agents.activity_channels`` follows one sandbox. Called by ``events``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Failed, Output
from holdfast_wire.limits import PATH_BYTES

from gateway.agents.activity_channels import ENDED, ActivityChannel
from gateway.identity.principal import member_of
from gateway.model.records import Record, Tombstone
from gateway.placement.change_feed import Follower
from gateway.runtimes.base import PullProgress

from .service import Gateway

MOST_FOLLOWED: Final = 256
"""Most sandboxes whose activity one stream follows."""
_MOST_OF_OWNER: Final = 1024
_MOST_OF_REPLICA: Final = 4096
"""How many sandboxes all streams follow, each stream counted; those of one owner a quarter of that."""
_PULLS_S: Final = 1.0
_AGAIN_S: Final = 5.0
_BEGIN_S: Final = 2.0
"""How long a new stream waits until it follows the sandboxes that there are."""
_CHANGES: Final = ("created", "modified", "deleted", "moved", "overflow")
_MOST_CHANGES: Final = 100
_BUFFER_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Activity:
    """What a stream wants besides the lives of sandboxes. ``usage_s``: interval of samples; ``files``: a directory in each sandbox."""

    sandboxes: bool = True
    usage_s: float | None = None
    files: str = ""
    pulls: bool = False


class Followed:
    """Of one stream. ``passes`` decides by its filter; ``age_s``: continue a stream that had everything so long ago."""

    def __init__(
        self,
        gateway: Gateway,
        follower: Follower,
        wanted: Activity,
        passes: Callable[[Record | Tombstone], bool],
        age_s: float | None,
    ) -> None:
        self._gateway = gateway
        self._follower = follower
        self._member = member_of(follower.owner)
        self._wanted = wanted
        self._passes = passes
        self._age_s = age_s
        self._tasks: dict[tuple[str, str], list[asyncio.Task[Any]]] = {}
        self._refused = False
        self._opening: set[asyncio.Future[Any]] = set()
        """Until the sandboxes are followed that there were at the beginning."""
        self._pulls: asyncio.Task[Any] | None = None

    async def begin(self) -> None:
        """Follow the sandboxes that there are."""
        if self._wanted.pulls and isinstance(self._gateway.runtime, PullProgress):
            self._pulls = self._gateway.background.start(self._follow_pulls(self._gateway.runtime), "progress of pulls")
        if not self._wanted.sandboxes:
            return
        cursor: str | None = None
        while True:
            page = await self._gateway.store.list_owned(self._follower.owner, cursor=cursor, limit=1000)
            self.changed(page.records)
            cursor = page.cursor
            if cursor is None or self._refused:
                break
        self._age_s = None  # what is found later begins later
        if self._opening:
            await asyncio.wait(self._opening, timeout=_BEGIN_S)  # then a client that has its first position misses nothing

    def changed(self, entries: Iterable[Record | Tombstone]) -> None:
        """Sandboxes have changed: follow those that are ready now."""
        for entry in entries if self._wanted.sandboxes else ():
            key = (entry.sandbox_id, entry.incarnation)
            if not isinstance(entry, Record) or entry.status != "ready" or entry.paused or key in self._tasks or not self._passes(entry):
                continue
            if (refusal := self._refusal()) is not None:
                if not self._refused:
                    self._refused = True
                    message = f"{refusal}; name those that you want"
                    self._follower.add_facts([{"type": "gap", "message": message}])
                return
            self._refused = False
            start, age_s = self._gateway.background.start, self._age_s
            self._gateway.followed[self._member] += 1
            begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._opening.add(begun)
            tasks = [start(self._follow(entry, age_s, begun), f"activity of {entry.sandbox_id}")]
            if self._wanted.files:
                tasks.append(start(self._follow_files(entry), f"changes of files of {entry.sandbox_id}"))
            self._tasks[key] = tasks
            tasks[0].add_done_callback(lambda _, key=key: self._left(key))  # type: ignore[misc]

    def _refusal(self) -> str | None:
        """Why no other sandbox can be followed; None if one can."""
        followed = self._gateway.followed
        if len(self._tasks) >= MOST_FOLLOWED:
            return f"a stream follows the activity of at most {MOST_FOLLOWED} sandboxes"
        if followed[self._member] >= _MOST_OF_OWNER:
            return f"the streams of one owner follow the activity of at most {_MOST_OF_OWNER} sandboxes, each stream counted"
        if followed.total() >= _MOST_OF_REPLICA:
            return f"the streams of this replica follow the activity of at most {_MOST_OF_REPLICA} sandboxes"
        return None

    def close(self) -> None:
        """Follow nothing any more."""
        for task in [*(task for tasks in self._tasks.values() for task in tasks), *([self._pulls] if self._pulls else [])]:
            task.cancel()

    def _left(self, key: tuple[str, str]) -> None:
        followed = self._gateway.followed
        followed[self._member] -= 1
        if not followed[self._member]:
            del followed[self._member]
        for task in self._tasks.pop(key):
            task.cancel()

    async def _follow(self, record: Record, age_s: float | None, begun: asyncio.Future[Any]) -> None:
        gateway, name = self._gateway, record.name
        channel = ActivityChannel(
            gateway.agents,
            lambda: gateway.ready(record.owner, name),
            incarnation=record.incarnation,
            usage_s=self._wanted.usage_s,
            age_s=age_s,
            opened=lambda: self._opened(begun),
        )
        try:
            async for facts in channel.facts():
                self._add(record, facts, channel.epoch)
        except HoldfastError as error:
            if error.code not in ENDED:
                raise
        finally:
            self._opened(begun)

    def _opened(self, begun: asyncio.Future[Any]) -> None:
        self._opening.discard(begun)
        if not begun.done():
            begun.set_result(None)

    def _add(self, record: Record, facts: list[dict[str, Any]], journal: str) -> None:
        about = {"sandbox_id": record.name, "claimed": True}
        self._follower.add_facts([{**about, "journal": journal, **_renamed(fact)} for fact in facts])

    async def _follow_files(self, record: Record) -> None:
        """The changes below a directory, as long as it exists."""
        gateway = self._gateway
        while True:
            try:
                found = await gateway.ready(record.owner, record.name)
                async with gateway.agents.call(found) as call:
                    call.open("watch", {"path": self._wanted.files, "recursive": True})
                    changes = msgpack.Unpacker(raw=False, max_buffer_size=_BUFFER_BYTES, unicode_errors="replace")
                    async for fact in call.facts():
                        if isinstance(fact, Output):
                            changes.feed(fact.data)
                            self._files_changed(record, list(changes))
                        elif isinstance(fact, Closed | Failed):
                            break
            except HoldfastError as error:
                if error.code in ENDED:
                    return
            except (ValueError, msgpack.UnpackException, RecursionError):
                pass  # no report
            await asyncio.sleep(_AGAIN_S)

    def _files_changed(self, record: Record, reported: list[Any]) -> None:
        changes = [change for one in reported if (change := _change(one)) is not None]
        for begin in range(0, len(changes), _MOST_CHANGES):
            facts = {"type": "files_changed", "time": time.time(), "changes": changes[begin : begin + _MOST_CHANGES]}
            self._follower.add_facts([{"sandbox_id": record.name, "claimed": True, **facts}])

    async def _follow_pulls(self, runtime: PullProgress) -> None:
        """The pulls of the owner that are under way, when they have got on."""
        before: list[dict[str, Any]] | None = None
        while True:
            try:
                pulls = await runtime.pulls(self._follower.owner)
            except HoldfastError:
                pulls = before or []  # the runtime is away for a moment
            if before is None:
                before = [one for one in pulls if one["state"] in ("done", "failed")]
            changed = [one for one in pulls if one not in before]
            before = pulls
            if changed:
                self._follower.add_facts([{"type": "pull", "time": time.time(), **one} for one in changed])
            await asyncio.sleep(_PULLS_S)


def _renamed(fact: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in fact.items() if name not in ("id", "n", "command", "data")}
    if "id" in fact:
        found["command_id"] = fact["id"]
    if fact["type"] == "gap" and "message" not in found:
        found["message"] = "more happened in the sandbox than its agent could keep"
    return found


def _change(reported: Any) -> dict[str, Any] | None:
    """One change of a file, None for what is none."""
    if not isinstance(reported, dict) or reported.get("type") not in _CHANGES or not isinstance(reported.get("path"), str):
        return None
    change: dict[str, Any] = {"type": reported["type"], "path": reported["path"][:PATH_BYTES]}
    if isinstance(reported.get("to"), str):
        change["to"] = reported["to"][:PATH_BYTES]
    return change | ({"directory": True} if reported.get("directory") is True else {})
