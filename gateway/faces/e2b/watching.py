"""Watching directories: as a stream, and as a watcher whose events a client fetches.

Owns the translation of changes into E2B's events, and the watchers of this replica. A watcher is memory of one replica: behind several of
them a client has to come to the same one, or use the stream.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final
from weakref import WeakKeyDictionary

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request

from gateway.faces.table import gateway_of, parts
from gateway.identity.principal import member_of
from gateway.model.names import ids_of, name_of
from gateway.use_cases.service import Gateway
from gateway.use_cases.watches import Change, watching

from .actors import text_of
from .connect_rpc import Message, server_stream, unary
from .filesystem import Tree, tree_of
from .targets import ready_record, sandbox_of

_MOST_WATCHERS: Final = 64
"""Of one sandbox."""
_MOST_OF_OWNER: Final = 1024
_MOST_OF_REPLICA: Final = 4096
_KEPT_S: Final = 60.0
"""How long a watcher that has ended keeps its last events and its error for the client."""
_MOST_EVENTS: Final = 10_000
"""Events that wait for a client."""
_QUIET_S: Final = 0.02
_MOST_WAIT_S: Final = 0.5
"""A client that asks just after a change gets it: its events are complete when none has come for ``_QUIET_S``."""
_TYPES: Final = {"created": "EVENT_TYPE_CREATE", "deleted": "EVENT_TYPE_REMOVE", "modified": "EVENT_TYPE_WRITE"}


class _Watcher:
    """One watcher, and its events that were not fetched yet."""

    def __init__(self, key: tuple[str, str], owner: str) -> None:
        self.key = key
        """The sandbox and its incarnation."""
        self.owner = owner
        self.task: asyncio.Task[Any] | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.events: deque[Message] = deque()
        self.error: HoldfastError | None = None
        self.latest = 0.0
        """When the latest event came."""

    async def run(self, tree: Tree, path: str, message: Message) -> None:
        clock = asyncio.get_running_loop().time
        try:
            async with watching(tree.gateway, tree.record, path, recursive=message.get("recursive") is True) as changes:
                self.opened.set_result(None)
                async for event in _events(tree, path, changes, with_entry=message.get("includeEntry") is True):
                    self.latest = clock()
                    if len(self.events) >= _MOST_EVENTS:
                        raise _lost()
                    self.events.append(event)
        except HoldfastError as error:
            self.error = error
            if not self.opened.done():
                self.opened.set_exception(error)


_watchers: WeakKeyDictionary[Gateway, dict[str, _Watcher]] = WeakKeyDictionary()
"""The watchers of each gateway by their ids."""


async def _watch_dir(request: Request, message: Message) -> AsyncGenerator[Message]:
    tree, path = await _watched(request, message)
    async with watching(tree.gateway, tree.record, path, recursive=message.get("recursive") is True) as changes:
        yield {"start": {}}
        async for event in _events(tree, path, changes, with_entry=message.get("includeEntry") is True):
            yield {"filesystem": event}


async def _create_watcher(request: Request, message: Message) -> Message:
    tree, path = await _watched(request, message)
    watchers = _watchers.setdefault(tree.gateway, {})
    watcher_id, watcher = (
        f"w{secrets.token_hex(10)}",
        _Watcher((tree.record.sandbox_id, tree.record.incarnation), member_of(tree.record.owner)),
    )
    _check_room(watchers, watcher)
    watchers[watcher_id] = watcher
    watcher.task = tree.gateway.background.start(watcher.run(tree, path, message), f"watcher of {tree.record.sandbox_id}")
    forget = asyncio.get_running_loop().call_later
    watcher.task.add_done_callback(lambda _: forget(_KEPT_S, watchers.pop, watcher_id, None))
    try:
        await asyncio.shield(watcher.opened)
    except BaseException:
        watcher.task.cancel()
        watchers.pop(watcher_id, None)
        raise
    return {"watcherId": watcher_id}


def _check_room(watchers: dict[str, _Watcher], new: _Watcher) -> None:
    """Raises ``session_limit``."""
    of_sandbox = sum(one.key == new.key for one in watchers.values())
    of_owner = sum(one.owner == new.owner for one in watchers.values())
    for count, most, whose in (
        (of_sandbox, _MOST_WATCHERS, "a sandbox"),
        (of_owner, _MOST_OF_OWNER, "an owner"),
        (len(watchers), _MOST_OF_REPLICA, "this replica"),
    ):
        if count >= most:
            raise HoldfastError("session_limit", f"{whose} has at most {most} watchers", hint="stop those that are not needed")


async def _get_watcher_events(request: Request, message: Message) -> Message:
    await ready_record(request)
    watcher = _watcher_of(request, message)
    clock = asyncio.get_running_loop().time
    begun = clock()
    while (now := clock()) < begun + _MOST_WAIT_S and now < max(begun, watcher.latest) + _QUIET_S:
        await asyncio.sleep(_QUIET_S / 4)
    events = list(watcher.events)
    watcher.events.clear()
    if not events and watcher.error is not None:
        raise watcher.error
    return {"events": events}


async def _remove_watcher(request: Request, message: Message) -> Message:
    watcher = _watcher_of(request, message)
    _watchers[gateway_of(request)].pop(text_of(message, "watcherId"), None)
    if watcher.task is not None:
        watcher.task.cancel()
    return {}


def _watcher_of(request: Request, message: Message) -> _Watcher:
    """Raises ``command_not_found`` for a watcher that is not of this sandbox."""
    gateway, principal = parts(request)
    watcher_id = text_of(message, "watcherId")
    found = _watchers.get(gateway, {}).get(watcher_id)
    if found is None or found.key[0] not in _ids(request, principal.owner):
        raise HoldfastError("command_not_found", f"watcher with id {watcher_id[:100]} not found", hint="")
    return found


async def _watched(request: Request, message: Message) -> tuple[Tree, str]:
    """The directory that the message names. Raises ``not_a_directory``."""
    tree = await tree_of(request)
    path = tree.actor.path(text_of(message, "path", required=False))
    found = await tree.stat(path)
    if found.get("type") != "directory":
        raise HoldfastError("not_a_directory", f"path {path[:200]} not a directory", hint="")
    return tree, path


async def _events(tree: Tree, top: str, changes: AsyncGenerator[Change], *, with_entry: bool) -> AsyncGenerator[Message]:
    async for change in changes:
        if change.kind == "overflow":
            raise _lost()
        if change.kind == "moved":
            yield {"name": _relative(change.path, top), "type": "EVENT_TYPE_RENAME"}
            yield await _event(tree, top, change.to, "EVENT_TYPE_CREATE", with_entry)
        elif change.kind == "deleted":
            yield {"name": _relative(change.path, top), "type": _TYPES["deleted"]}
        else:
            kind = "EVENT_TYPE_CHMOD" if change.attributes else _TYPES[change.kind]
            yield await _event(tree, top, change.path, kind, with_entry)


async def _event(tree: Tree, top: str, path: str, kind: str, with_entry: bool) -> Message:
    event: Message = {"name": _relative(path, top), "type": kind}
    if with_entry:
        try:
            event["entry"] = await tree.info(path)
        except HoldfastError as error:
            if error.code not in ("file_not_found", "not_a_directory", "permission_denied"):
                raise
    return event


def _relative(path: str, top: str) -> str:
    return posixpath.relpath(path, top) if path.startswith("/") and top.startswith("/") else path


def _lost() -> HoldfastError:
    return HoldfastError("io_error", "changes were lost; list the directory again, and watch it anew", hint="")


def _ids(request: Request, owner: str) -> set[str]:
    return set(ids_of(owner, name_of(owner, sandbox_of(request))))


watch_dir = server_stream(_watch_dir, {"keepalive": {}})
create_watcher = unary(_create_watcher)
get_watcher_events = unary(_get_watcher_events)
remove_watcher = unary(_remove_watcher)
