"""The channel kind ``watch``: events for changes in a directory or a directory tree.

Owns which directories are watched and the translation of kernel events: new directories are watched and their entries reported, the two
events of a move become one, and lost events are reported. Little is read ahead of the client: while it reads nothing, nothing is read from
the kernel, whose queue then overflows and reports that. Used through ``transfers``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed
from holdfast_wire.limits import DATA_BYTES
from holdfast_wire.paths import shown

from session_agent.agent.context import AgentContext
from session_agent.agent.files.file_user import acting
from session_agent.agent.files.transfers import Outgoing, Source
from session_agent.agent.request.params import boolean
from session_agent.agent.request.paths import absolute, path_fields, path_param, start_of
from session_agent.agent.session.channels import Channel, Handler

from . import inotify
from .listing import packed

MOST_DIRECTORIES = 100_000
"""Most directories that one ``watch`` channel watches."""
_PAIR_S = 0.01
"""How long to wait for the second event of a move."""
_PAIR_EVENTS = 64
"""How many events may be between the two events of a move."""
_MOST_REPORTED = 10_000
"""Names found in new directories that are remembered, because the kernel may report them again; further ones may be reported twice."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENAMETOOLONG)
"""Errors for which a directory is skipped: it was removed, or the user has no permission."""


def open_watch(context: AgentContext, channel: Channel) -> Handler:
    """``watch {path, recursive?, attributes?, user?}``: Opened{directories}, Output(1) = event maps, back to back; Closed{} at its end."""
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    events = _changes(path, boolean(params, "recursive", False), boolean(params, "attributes", False))
    return Watching(channel, events, path, context, acting(context, params)[0])


class Watching(Outgoing):
    """Sends events until the client closes the channel."""

    AHEAD_BYTES: ClassVar = DATA_BYTES

    def close(self, detach: bool) -> None:
        self._abort(Closed(self._channel.number, {}))


class _Node:
    """One watched directory; ``reported`` are names that were found in it when it was new."""

    __slots__ = ("children", "name", "parent", "reported", "watch")

    def __init__(self, name: str, parent: _Node | None) -> None:
        self.name = name
        self.parent = parent
        self.children: dict[str, _Node] = {}
        self.reported: set[str] = set()
        self.watch = -1

    def path(self, name: str = "") -> str:
        parts = [name] if name else []
        node: _Node | None = self
        while node is not None:
            parts.append(node.name)
            node = node.parent
        return "/".join(reversed(parts)).replace("//", "/", 1)


def _changes(path: str, recursive: bool, attributes: bool) -> Source:
    """The events of a directory, one file in it, or all below it, as maps, until the directory is removed."""
    with contextlib.closing(WatchedTree(start_of(path), recursive, attributes)) as tree:
        yield {"directories": tree.open()}
        while True:
            yield from packed(tree.waiting())
            if tree.ended:
                return {}
            yield tree.inotify.descriptor


class WatchedTree:
    """A directory, one file in it, or all below it. Used by one thread at a time."""

    def __init__(self, path: str, recursive: bool, attributes: bool = False) -> None:
        """``attributes``: tell changes of attributes from those of content."""
        self._path = path
        self._attributes = attributes
        self._recursive = recursive
        self._only: str | None = None
        self.inotify = inotify.Inotify()
        self._nodes: dict[int, _Node] = {}
        self._root = _Node(path, None)
        self._reporting: list[_Node] = []
        self._reported = 0
        self._queue: deque[inotify.Event] = deque()
        self.ended = False
        """Whether the watched directory was removed."""

    def open(self) -> int:
        """Start watching; returns the number of directories. Raises ``session_limit`` for too many, or ``OSError`` for the path."""
        try:
            if not stat.S_ISDIR(os.stat(self._path).st_mode):  # a file may be replaced, so its directory is watched
                directory, self._only = os.path.split(os.path.realpath(self._path))
                self._root.name, self._recursive = directory, False
            os.listdir(self._root.name)  # raises if the user may not read it
            self._watch(self._root)
            for event in self._grown(self._root, report=False):
                if event["type"] == "overflow":
                    raise self._too_many()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise self._too_many() from None
            raise
        return len(self._nodes)

    def close(self) -> None:
        """Stop watching."""
        self.inotify.close()

    # Events ------------------------------------------------------------------------------------------------------

    def waiting(self) -> Iterator[dict[str, Any]]:
        """The events for clients that there are at the moment."""
        last = None
        while not self.ended and self._fill():
            for event in self._meaning(self._queue.popleft()):
                if event["type"] != "modified" or event != last:  # equal events in a row are sent once
                    yield event
                last = event
        for node in self._reporting:
            node.reported.clear()
        self._reporting.clear()
        self._reported = 0

    def _fill(self, patience_s: float = 0.0) -> bool:
        """Whether there is something to translate."""
        if not self._queue or patience_s:
            self._queue += self.inotify.read(patience_s)
        return bool(self._queue)

    def _meaning(self, event: inotify.Event) -> Iterator[dict[str, Any]]:
        mask, node = event.mask, self._nodes.get(event.watch)
        if mask & inotify.OVERFLOW:
            yield _event("overflow", self._path)
            if self._recursive:  # directories may have been created without getting a watch
                yield from self._grown(self._root, report=False)
            return
        if node is None:
            return
        if mask & inotify.IGNORED:
            self._forget(node)
        elif not event.name:
            if node is not self._root:
                return  # the event of its parent directory has the same information
            if mask & (inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT):
                self.ended = True
                yield _event("deleted", self._path, is_directory=self._only is None)
            elif self._only is None and mask & (inotify.MODIFY | inotify.ATTRIB):
                yield self._modified(self._path, mask, is_directory=True)
        elif mask & inotify.MOVED_FROM:
            yield from self._moved(event, node)
        else:
            yield from self._named(event, node)

    def _named(self, event: inotify.Event, node: _Node) -> Iterator[dict[str, Any]]:
        name, mask, is_directory = event.name, event.mask, bool(event.mask & inotify.IS_DIRECTORY)
        if self._only not in (None, name):
            return
        path = self._shown(node, name)
        if mask & (inotify.CREATE | inotify.MOVED_TO):
            if name in node.reported:
                node.reported.discard(name)
                return
            yield _event("created", path, is_directory=is_directory)
            if is_directory and self._recursive and name not in node.children:
                yield from self._new(node, name)
        elif mask & inotify.DELETE:
            node.reported.discard(name)
            self._dropped(node, name)
            yield _event("deleted", path, is_directory=is_directory)
        elif mask & (inotify.MODIFY | inotify.ATTRIB):
            yield self._modified(path, mask, is_directory=is_directory)

    def _modified(self, path: str, mask: int, *, is_directory: bool) -> dict[str, Any]:
        event = _event("modified", path, is_directory=is_directory)
        return event | {"attributes": True} if self._attributes and not mask & inotify.MODIFY else event

    def _moved(self, event: inotify.Event, node: _Node) -> Iterator[dict[str, Any]]:
        """The first event of a move. Without a second one, the target is not watched and the entry counts as deleted."""
        second = self._second(event.cookie)
        target = None if second is None else self._nodes.get(second.watch)
        is_directory = bool(event.mask & inotify.IS_DIRECTORY)
        if second is None or target is None:
            if self._only in (None, event.name):
                self._dropped(node, event.name)
                yield _event("deleted", self._shown(node, event.name), is_directory=is_directory)
            return
        if self._only is not None and self._only not in (event.name, second.name):
            return
        node.reported.discard(event.name)
        moved = node.children.pop(event.name, None)
        self._dropped(target, second.name)
        if moved is not None:
            moved.name, moved.parent = second.name, target
            target.children[second.name] = moved
        yield _event("moved", self._shown(node, event.name), to=self._shown(target, second.name), is_directory=is_directory)
        if is_directory and self._recursive and moved is None:
            yield from self._new(target, second.name)

    def _second(self, cookie: int) -> inotify.Event | None:
        for patience_s in (0.0, _PAIR_S):
            if patience_s and len(self._queue) >= _PAIR_EVENTS:
                return None
            self._fill(patience_s)
            for event in islice(self._queue, _PAIR_EVENTS):
                if event.mask & inotify.MOVED_TO and event.cookie == cookie:
                    self._queue.remove(event)
                    return event
        return None

    def _shown(self, node: _Node, name: str) -> str:
        """The path of an entry as the client named the watched path."""
        return self._path if name == self._only else node.path(name)

    # Directories -------------------------------------------------------------------------------------------------

    def _watch(self, node: _Node) -> None:
        if len(self._nodes) >= MOST_DIRECTORIES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), node.path())
        watch = self.inotify.add(node.path(), follow=node is self._root)
        known = self._nodes.get(watch)
        if known is not None and known is not node and known.parent is not None:
            known.parent.children.pop(known.name, None)  # the directory was moved while events were lost
        if node.watch != watch and self._nodes.get(node.watch) is node:
            del self._nodes[node.watch]  # the name belonged to another directory before
        node.watch = watch
        self._nodes[watch] = node

    def _new(self, parent: _Node, name: str) -> Iterator[dict[str, Any]]:
        """Watch a new directory and report its entries."""
        node = _Node(name, parent)
        try:
            self._watch(node)
        except OSError as error:
            if error.errno not in _GONE:
                yield _event("overflow", node.path())
            return
        parent.children[name] = node
        yield from self._grown(node, report=True)

    def _grown(self, top: _Node, *, report: bool) -> Iterator[dict[str, Any]]:
        """Watch all directories below a watched one."""
        waiting = [top] if self._recursive else []
        while waiting:
            node = waiting.pop()
            try:
                with os.scandir(node.path()) as found:
                    entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
            except OSError:
                continue
            if report:
                self._reporting.append(node)
            for name in node.children.keys() - {name for name, is_directory in entries if is_directory}:
                self._dropped(node, name)
            for name, is_directory in entries:
                if report:
                    if self._reported < _MOST_REPORTED:
                        self._reported += 1
                        node.reported.add(name)
                    yield _event("created", node.path(name), is_directory=is_directory)
                if not is_directory:
                    continue
                inner = node.children.get(name) or _Node(name, node)
                try:
                    self._watch(inner)
                except OSError as error:
                    if error.errno not in _GONE:
                        yield _event("overflow", inner.path())
                        return
                    continue
                node.children[name] = inner
                waiting.append(inner)

    def _dropped(self, parent: _Node, name: str) -> None:
        """A directory was removed: stop watching it and everything below it."""
        gone = parent.children.pop(name, None)
        waiting = [] if gone is None else [gone]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if self._nodes.get(node.watch) is node:
                del self._nodes[node.watch]
                self.inotify.remove(node.watch)

    def _forget(self, node: _Node) -> None:
        """The kernel has removed the watch of this directory."""
        del self._nodes[node.watch]
        node.watch = -1
        if node.parent is not None and node.parent.children.get(node.name) is node:
            del node.parent.children[node.name]

    def _too_many(self) -> HoldfastError:
        hint = "watch a part of it, or raise fs.inotify.max_user_watches of the machine"
        return HoldfastError("session_limit", f"{shown(self._path)} has more directories than can be watched", hint=hint)


def _event(kind: str, path: str, *, to: str | None = None, is_directory: bool = False) -> dict[str, Any]:
    event: dict[str, Any] = {"type": kind, **path_fields("path", path)}
    if to is not None:
        event |= path_fields("to", to)
    return event | ({"directory": True} if is_directory else {})
