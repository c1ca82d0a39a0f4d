"""The channel kind ``watch``: events for changes in a directory or a directory tree.

Owns sending them as the client's credit allows, and when the next ones are read from the kernel; ``watched_tree`` produces them. File
system work runs one step at a time on a thread, as for transfers.
"""

from __future__ import annotations

from collections import deque

from holdfast_wire.frames import Closed, Failed

from session_agent.agent.context import AgentContext
from session_agent.agent.files.file_user import Actor, acting
from session_agent.agent.request.params import boolean
from session_agent.agent.request.paths import absolute, path_param, start_of
from session_agent.agent.session.channels import Channel, Handler

from .transfers import Transfer
from .watched_tree import WatchedTree


def open_watch(context: AgentContext, channel: Channel) -> Handler:
    """``watch {path, recursive?: false, user?}``: Opened{directories}, Output(1) = event maps, back to back; Closed{} when it is gone."""
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    tree = WatchedTree(start_of(path), boolean(params, "recursive", False))
    return Watching(channel, tree, acting(context, params)[0])


class Watching(Transfer):
    """Sends the events of a tree to the client, as its credit allows."""

    def __init__(self, channel: Channel, tree: WatchedTree, actor: Actor | None) -> None:
        self._tree = tree
        self._ahead: deque[bytes] = deque()
        self._more = False
        self._listening = False
        super().__init__(channel, tree, actor)

    def close(self, detach: bool) -> None:
        self._abort(Closed(self._channel.number, {}))

    def _pump(self) -> None:
        if self._over or not self._ready:
            return
        channel = self._channel
        self._send_ahead(self._ahead)
        if self._ahead or self._busy or self._listening:
            return
        if self._tree.ended and not self._more:
            self._end(Closed(channel.number, {}))
        elif channel.room() > 0 and not channel.is_memory_full:
            if self._more:
                self._read()
            else:
                self._listening = True
                self._loop.add_reader(self._tree.descriptor, self._readable)

    def _readable(self) -> None:
        self._stop_listening()
        self._read()

    def _read(self) -> None:
        self._step(self._tree.take, self._taken)

    def _taken(self, taken: tuple[list[bytes], bool]) -> None:
        pieces, self._more = taken
        if pieces:
            self._ahead.append(b"".join(pieces))
        self._pump()

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._tree.descriptor)

    def _end(self, fact: Closed | Failed) -> None:
        self._stop_listening()
        self._tree.close()
        super()._end(fact)

    def _abort(self, last: Closed | Failed | None) -> None:
        self._stop_listening()
        self._ahead.clear()
        super()._abort(last)
