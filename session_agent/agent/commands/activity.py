"""The channel kind ``activity``: what happens in the sandbox, in order, for a gateway that follows or records it.

Owns the position of each reader, how entries become output, and the samples of use. ``output.journal`` has the entries. A reader that reads
slowly, or has no credit, delays nothing: what it misses is an entry ``gap``. Its channel does not count as use of the sandbox.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgpack
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDOUT, Closed, Failed, Opened, Output
from holdfast_wire.limits import DATA_BYTES, JOURNAL_BYTES, JOURNAL_LINGER_S, JOURNAL_MEMORY_SHARE, KIB

from session_agent.agent.context import AgentContext
from session_agent.agent.output.journal import Entry, Journal
from session_agent.agent.request import params as read
from session_agent.agent.session.channels import Channel, Handler

from .usage import ports, usage

_FLUSH_S: Final = 0.05
"""How long entries are collected before they are sent."""
_PAUSE_S: Final = 0.25
_PAUSE_CONTENT_S: Final = 1.0
"""From one message to the next, for a stream of events and for a recording, which needs fewer messages rather than early ones: where many
commands run, messages would otherwise take longer than what is in them."""
_EARLY_BYTES: Final = 256 * KIB
"""With so much in the journal, which is limited, the next message follows after ``_FLUSH_S``."""
_MARGIN_S: Final = 2.0
"""How much more than ``age_s`` is sent: clocks differ, and facts take a moment to arrive. So some come twice."""
_BATCH_BYTES: Final = 32 * KIB
_CONTENT: Final = ("output", "input", "resized")
_SETTLE_S: Final = 1.0
_SETTLE_POLL_S: Final = 0.01


def open_activity(context: AgentContext, channel: Channel) -> Handler:
    """``activity {after?, epoch?, age_s?, content?, usage_s?}``: Opened{epoch, next, missing}, Output = entries, until Close.

    With ``sync`` it ends at once, after what other such channels have not sent yet has arrived at their gateways.
    """
    if read.boolean(channel.params, "sync", False):
        return _Settling(context, channel)
    return _Activity(context, channel)


def _journal(context: AgentContext, *, content: bool) -> Journal:
    """The journal, which begins with the commands that run."""
    records, memory = context.records, context.settings.memory_bytes
    journal = records.journal
    if journal is None:
        journal = records.journal = Journal(min(JOURNAL_BYTES, memory // JOURNAL_MEMORY_SHARE) if memory else JOURNAL_BYTES)
        fresh = True
    else:
        fresh = content and not journal.content
    journal.content = journal.content or content
    if fresh:
        running = [record for record in records.running() if record.kind]
        for record in running + [terminal.record for terminal in context.terminals.values()]:
            journal.found(record)
    return journal


class _Activity(Handler):
    """One reader of the journal."""

    def __init__(self, context: AgentContext, channel: Channel) -> None:
        params = channel.params
        self._context = context
        self._channel = channel
        self._content = read.boolean(params, "content", False)
        existed = context.records.journal
        recorded = existed is not None and existed.content
        self._journal = journal = _journal(context, content=self._content)
        after, age_s = read.integer(params, "after", None), read.number(params, "age_s", None)
        missing = False
        if after is not None and read.text(params, "epoch", "") == journal.epoch and after < journal.next:
            self._position = after
        elif after is not None:  # with 0 from the beginning of what is recorded, else of another journal
            self._position = journal.first - 1
            missing = after != 0 or not recorded or journal.first > 1
        elif age_s is not None and existed is not None:
            since = time.time() - age_s - _MARGIN_S
            self._position = next((entry["n"] - 1 for _, entry in journal.entries if entry["t"] >= since), journal.next - 1)
            missing = journal.dropped_at >= since or journal.began_at > since + 2 * _MARGIN_S
        else:
            self._position, missing = journal.first - 1 if existed is None else journal.next - 1, age_s is not None
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._flushed_at = float("-inf")
        self._early_at = journal.noted_bytes + _EARLY_BYTES
        """With so many bytes noted in the journal, the next message is early."""
        self._gone = False
        self._sizes: dict[str, tuple[int, int]] = {}
        self._ports: list[int] = []
        self._usage_s = read.number(params, "usage_s", None)
        self._sampling: asyncio.TimerHandle | None = None
        journal.readers[self.wake] = None
        channel.send(Opened(channel.number, {"epoch": journal.epoch, "next": self._position + 1, "missing": missing}))
        self.wake()
        if self._usage_s:
            self._usage_s = max(self._usage_s, 0.2)
            self._sample()

    def wake(self) -> None:
        """There are new entries."""
        early = self._journal.noted_bytes > self._early_at
        if self._gone or (self._timer is not None and not early):
            return
        at = self._context.loop.time() + _FLUSH_S
        if early:
            self._early_at = self._journal.noted_bytes + _EARLY_BYTES
        else:
            at = max(at, self._flushed_at + (_PAUSE_CONTENT_S if self._content else _PAUSE_S))
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._context.loop.call_at(at, self.flush)

    def flush(self) -> None:
        """Send what there is room for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        channel = self._channel
        while not self._gone and channel.attached:
            if not self._unsent:
                batch = b"".join(self._packed())
                if not batch:
                    return
                self._flushed_at = self._context.loop.time()
                self._early_at = self._journal.noted_bytes + _EARLY_BYTES
                self._unsent = [batch[at : at + DATA_BYTES] for at in range(0, len(batch), DATA_BYTES)]
            room = channel.room()
            if room <= 0:
                return  # ``writable`` continues
            piece = self._unsent[0]
            if len(piece) > room:
                self._unsent[0] = piece[room:]
                piece = piece[:room]
            else:
                del self._unsent[0]
            try:
                channel.send(Output(channel.number, STDOUT, piece))
            except HoldfastError as error:
                if error.code != "queue_full":
                    raise
                self._unsent.insert(0, piece)
                return

    def _packed(self) -> Iterator[bytes]:
        """The next entries, packed, about ``_BATCH_BYTES`` of them."""
        journal, size = self._journal, 0
        if self._position < journal.first - 1:
            lost = journal.first - 1 - self._position
            self._position = journal.first - 1
            yield msgpack.packb({"n": self._position, "t": time.time(), "type": "gap", "lost": lost})
        for _, entry in islice(journal.entries, self._position + 1 - journal.first, None):
            self._position = entry["n"]
            if self._content or entry["type"] not in _CONTENT:
                packed = msgpack.packb(entry if self._content else _facts(entry), unicode_errors="replace")
                yield packed
                size += len(packed)
                if size >= _BATCH_BYTES:
                    break
        journal.taken = max(journal.taken, self._position)

    def _sample(self) -> None:
        """Add the use of the sandbox, the ports, and how much the commands have written."""
        assert self._usage_s is not None
        self._sampling = self._context.loop.call_later(self._usage_s, self._sample)
        if not self._channel.attached or self._unsent:
            return
        if found := usage():
            self._extra("usage", found)
        listening = ports()
        if listening != self._ports:
            self._ports = listening
            self._extra("ports", {"ports": listening})
        sizes = {record.command_id: record.spool.sizes() for record in self._running()}
        for command_id, size in sizes.items():
            if any(size) and self._sizes.get(command_id) != size:
                self._extra("progress", {"id": command_id, "stdout_bytes": size[0], "stderr_bytes": size[1]})
        self._sizes = sizes

    def _running(self) -> list[Any]:
        running = [record for record in self._context.records.running() if record.kind]
        return running + [terminal.record for terminal in self._context.terminals.values()]

    def _extra(self, kind: str, facts: Entry) -> None:
        """Send what is no entry: it has no position of its own, and a reader that continues does not get it again."""
        self._unsent.append(msgpack.packb({"t": time.time(), "type": kind, **facts}, unicode_errors="replace"))
        self.wake()

    def writable(self) -> None:
        """Credit returned, or the gateway attached or detached."""
        if self._channel.attached:
            self.flush()
        else:
            self.drop()  # this gateway, or another one, opens another channel and continues from its position

    def close(self, detach: bool) -> None:
        """The gateway follows no longer."""
        self.drop()
        self._channel.send(Closed(self._channel.number, {}))

    def drop(self) -> None:
        """Stop reading; without another reader the journal ends soon."""
        if self._gone:
            return
        self._gone = True
        for timer in (self._timer, self._sampling):
            if timer is not None:
                timer.cancel()
        self._journal.readers.pop(self.wake, None)
        if not self._journal.readers:
            self._context.loop.call_later(JOURNAL_LINGER_S, _end, self._context, self._journal)

    def settled(self) -> bool:
        """Whether all entries have arrived at the gateway."""
        self.flush()
        return self._gone or (not self._unsent and self._position >= self._journal.next - 1 and self._channel.settled)


def _end(context: AgentContext, journal: Journal) -> None:
    """End the journal, unless something reads it again."""
    if not journal.readers and context.records.journal is journal:
        context.records.journal = None
        journal.content = False


def _facts(entry: Entry) -> Entry:
    """An entry without the content of a command."""
    if "output" in entry or "command" in entry:
        return {name: value for name, value in entry.items() if name not in ("output", "command")}
    return entry


class _Settling(Handler):
    """Ends when the other channels have sent everything, and it has arrived."""

    def __init__(self, context: AgentContext, channel: Channel) -> None:
        self._context = context
        self._channel = channel
        self._until = context.now() + _SETTLE_S
        self._timer: asyncio.TimerHandle | None = None
        journal = context.records.journal
        channel.send(Opened(channel.number, {} if journal is None else {"epoch": journal.epoch, "next": journal.next}))
        self._check()

    def _check(self) -> None:
        journal = self._context.records.journal
        readers: list[Any] = [] if journal is None else [wake.__self__ for wake in journal.readers]  # type: ignore[attr-defined]
        waiting = sum(not reader.settled() for reader in readers)  # each of them sends
        if not waiting or self._context.now() >= self._until:
            self._timer = None
            self._channel.send(Closed(self._channel.number, {}))
        else:
            self._timer = self._context.loop.call_later(_SETTLE_POLL_S, self._check)

    def close(self, detach: bool) -> None:
        if self._timer is not None:
            self.drop()
            self._channel.send(Failed(self._channel.number, HoldfastError("cancelled", "the request was cancelled").to_map()))

    def drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
