"""LIST and WATCH of one kind of object, as a reliable stream of changes.

Owns the loop: lists in pages; bookmarks; an expired watch (410) lists again; a silent watch is dropped; a list after a break also reports
what was deleted in between; errors cause jittered back-off. It keeps one projection of each living object and nothing else, so memory is
bounded by the number of objects. The caller interprets the changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import orjson

from gateway.runtimes.base import RuntimeUnavailableError

from .client import Api, ApiError, GoneError, items_of

log = logging.getLogger("gateway.kubernetes")


_SHORT_S = 1.0
_DOUBLINGS = 30
"""Of a pause: a float takes no more than 1023."""
_KINDS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


class Keyed(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


T = TypeVar("T", bound=Keyed)


@dataclass(frozen=True, slots=True)
class Listed:
    """``known`` is complete: after the first changes, and again after those of a break that could not be resumed."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """The current state of an object; ``before`` is None when it is new."""

    object: T
    before: T | None


@dataclass(frozen=True, slots=True)
class Vanished(Generic[T]):
    """The object is gone. ``last`` is its last known state, ``before`` the state before the event that reported the deletion."""

    last: T
    before: T | None = None


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Numbers of one loop, in seconds."""

    page: int = 500
    server_limit_s: int = 240
    """After this the server ends a watch by itself."""
    overdue_s: float = 30.0
    """How much longer to wait for a server that has not ended the watch by then."""
    silence_s: float = 90.0
    """Bookmarks come about every minute: a watch without a byte for this long is closed."""
    backoff_least_s: float = 0.1
    backoff_most_s: float = 15.0


class Watch(Generic[T]):
    """One loop over ``path``. ``project`` reduces an object's JSON; None omits the object.

    ``carry`` copies to the new state of an object what only its previous state shows. ``fields`` is a field selector. Without
    ``history`` only what is written from now on is reported, and none of it is kept: for events, of which a list reads all there are.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        selector: str,
        project: Callable[[dict[str, Any]], T | None],
        settings: WatchSettings,
        carry: Callable[[T, T], T] | None = None,
        *,
        fields: str = "",
        history: bool = True,
    ) -> None:
        self._carry = carry
        self._fields = {"fieldSelector": fields} if fields else {}
        self._history = history
        self._api = api
        self._path = path
        self._selector = selector
        self._project = project
        self._settings = settings
        self._known: dict[str, T] = {}
        self._version = ""
        self._failures = 0
        self._retry = asyncio.Event()
        self.current = False
        """Whether ``known`` follows the server: false before the first list, and while the watch is broken."""

    @property
    def known(self) -> Mapping[str, T]:
        """The projection of every living object, by name."""
        return self._known

    def retry_now(self) -> None:
        """The API server has answered another request: end the back-off pause."""
        self._retry.set()

    async def changes(self) -> AsyncGenerator[Listed | Changed[T] | Vanished[T]]:
        """Until cancelled."""
        while True:
            try:
                if not self._version:
                    for change in await self._list():
                        yield change
                    self.current = True
                    yield Listed()
                    self._failures = 0
                began = asyncio.get_running_loop().time()
                async for found in self._watch():
                    yield found
                if asyncio.get_running_loop().time() - began < _SHORT_S:
                    await self._pause()  # avoids a busy loop where the server ends every watch at once
            except GoneError:
                log.info("the watch of %s is too old: listing again", self._path)
                self._version = ""
                await self._pause()
            except RuntimeUnavailableError as error:
                log.warning("the watch of %s broke: %s", self._path, error.message)
                await self._pause(error.retry_after_s)
            except Exception:  # an event that no API server sends
                log.exception("the watch of %s broke", self._path)
                self._version = ""
                await self._pause()

    async def _list(self) -> list[Changed[T] | Vanished[T]]:
        """List everything and compare with what was known. Raises ``ApiError``; a page that expired starts the list over."""
        if not self._history:
            body = await self._api.get(self._path, {"limit": "1"})
            items_of(body)
            self._version = str(body["metadata"].get("resourceVersion") or "")
            return []
        found: dict[str, T] = {}
        version = ""
        query = {"labelSelector": self._selector, **self._fields}
        async for items, listed in self._api.pages(self._path, query, page=self._settings.page):
            found.update((seen.name, seen) for item in items if (seen := self._project(item)) is not None)
            version = listed
        changes: list[Changed[T] | Vanished[T]] = []
        for name, last in self._known.items():
            now = found.get(name)
            if now is None or now.uid != last.uid:
                changes.append(Vanished(last))
        for name, now in found.items():
            before = self._known.get(name)
            if now != before:
                changes.append(Changed(now, before if before is not None and before.uid == now.uid else None))
        self._known = found
        self._version = version
        return changes

    async def _watch(self) -> AsyncIterator[Changed[T] | Vanished[T]]:
        settings = self._settings
        # The server caches no events, so a watch of them has no bookmarks: it has to end before it counts as silent.
        limit_s = settings.server_limit_s if self._history else min(settings.server_limit_s, max(settings.silence_s * 0.9, 1.0))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(limit_s * random.uniform(0.8, 1.0))),  # noqa: S311 - spreads reconnects
            "labelSelector": self._selector,
            **self._fields,
        }
        end = asyncio.get_running_loop().time() + settings.server_limit_s + settings.overdue_s
        async with self._api.stream(self._path, query, settings.silence_s) as lines:
            self.current = True
            while True:
                try:
                    async with asyncio.timeout_at(end):  # around the reading alone: the consumer of a change may be slow
                        line = await lines.readline()
                    event = orjson.loads(line) if line else None
                except ValueError as error:  # a line longer than the buffer, or a truncated one
                    self._version = ""
                    raise ApiError(500, "Unreadable", f"a watch event cannot be read: {error}") from None
                if event is None:
                    return  # the server ended the watch, as it does periodically
                change = self._apply(event)
                self._failures = 0
                if change is not None:
                    yield change

    def _apply(self, event: dict[str, Any]) -> Changed[T] | Vanished[T] | None:
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            code = item.get("code")
            self._version = ""
            raise GoneError(str(item.get("message"))) if code == 410 else ApiError(int(code or 500), "", str(item.get("message")))
        if kind not in _KINDS:
            raise ApiError(502, "Unreadable", f"a watch event of the kind {kind!r:.40}")
        version = (item.get("metadata") or {}).get("resourceVersion")
        if version:
            self._version = str(version)
        if kind == "BOOKMARK":
            return None
        seen = self._project(item)
        if seen is None:
            return None
        earlier = self._known.get(seen.name)
        if self._carry is not None and earlier is not None and earlier.uid == seen.uid:
            seen = self._carry(seen, earlier)
        if kind == "DELETED":
            return Vanished(seen, self._known.pop(seen.name, None))
        before = self._known.get(seen.name)
        if self._history:
            self._known[seen.name] = seen
        return Changed(seen, before if before is not None and before.uid == seen.uid else None)

    async def _pause(self, least_s: float | None = None) -> None:
        self.current = False
        most = min(self._settings.backoff_least_s * 2.0 ** min(self._failures, _DOUBLINGS), self._settings.backoff_most_s)
        self._failures += 1
        self._retry.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(least_s or 0.0, random.uniform(most / 2, most))):  # noqa: S311
                await self._retry.wait()
