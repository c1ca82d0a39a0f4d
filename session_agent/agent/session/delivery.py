"""Sending the facts of a command to a client: Started, Output and Gap, Exited, as fast as the client's credit allows.

Owns that order, and the handlers of channels that send one record. ``Records`` and ``Spool`` hold the data: any number of presenters may
read the same record, and stopping one changes nothing in it. Used by ``command``, ``terminal`` and ``shell.channel``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Exited, Failed, Gap, Output, Started
from holdfast_wire.limits import DATA_BYTES, ITEM_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import refusal
from session_agent.agent.output.records import Record
from session_agent.agent.output.spool import SpoolReader
from session_agent.agent.process.processes import is_signal

from .channels import Channel, Handler


class Presenter:
    """Sends one record to one channel. ``pump`` may be called at any time and repeatedly."""

    __slots__ = ("_channel", "_info", "_preface", "_reader", "_started", "_terse", "finished", "record")

    def __init__(
        self,
        channel: Channel,
        record: Record,
        starts: dict[int, int] | None = None,
        *,
        info: dict[str, Any] | None = None,
        preface: bytes = b"",
        terse: bool = False,
        output: bool = True,
        keep: bool = False,
    ) -> None:
        """``preface`` is sent as stream 1 before the bytes of the spool; ``starts`` are the offsets at which those begin.

        ``terse``: omit Started if another fact follows at once (PROTOCOL §7.2). ``output`` False: send only start and end; this attaches no
        reader to the spool. ``keep``: output stays available to other readers while there is room.
        """
        self._preface = preface
        self._info = info
        self.record = record
        self.finished = False
        self._terse = terse
        self._channel = channel
        self._started = False
        self._reader = record.spool.attach(lambda: channel.attached, starts, keep=keep) if output else None

    def pump(self) -> bool:
        """Send what can be sent. True once Exited was sent, or Failed for a command that was not started."""
        try:
            return self._pump()
        except HoldfastError as error:
            if error.code == "queue_full":
                return False  # the client takes nothing any more, not even facts without bytes: go on when it does
            raise

    def _pump(self) -> bool:
        if self.finished:
            return True
        record, channel, reader = self.record, self._channel, self._reader
        error = record.error
        if error is None and record.exit_status is not None and not record.started and not self._terse:
            error = HoldfastError("cancelled", "the shell ended, or a client cancelled the command, before it began")
        if error is not None:
            if self._terse:  # a refusal, which does not change the shell
                channel.send(Exited(channel.number, record.command_id, refusal(error)))
            else:
                channel.send(Failed(channel.number, error.to_map()))
            self.stop()
            return True
        if not record.started and record.exit_status is None:
            return False
        number = channel.number
        at_end = reader is None or reader.at_end
        # The room is read once; bytes that are sent, with their overhead, are subtracted as in ``halves.SendHalf``.
        room = 0 if at_end and not self._preface else channel.room()
        if not self._started and record.started:
            at_once = record.exit_status is not None if at_end else room > 0
            if not (self._terse and at_once):
                channel.queue(Started(number, record.command_id, record.info if self._info is None else self._info))
            self._started = True
        while self._preface and room > 0:
            size = min(room, DATA_BYTES)
            piece, self._preface = self._preface[:size], self._preface[size:]
            channel.queue(Output(number, 1, piece))
            room = channel.room()
        if reader is not None and room > 0 and not at_end:  # without credit a gap waits too, so that it is reported once
            at_end = self._send_output(reader, room, complete=record.exit_status is not None)
        if record.exit_status is None or self._preface or not at_end:
            channel.wake()
            return False
        channel.send(Exited(number, record.command_id, record.exit_status.result(record.spool, None if reader is None else reader.missed)))
        self.finished = True
        if reader is not None:
            record.spool.received(reader)
        return True

    def _send_output(self, reader: SpoolReader, room: int, *, complete: bool) -> bool:
        """Send as many bytes as ``room`` allows. Returns whether these were all that the spool has."""
        channel = self._channel
        number = channel.number
        while (gap := reader.gap()) is not None:
            channel.queue(Gap(number, gap[0], gap[1]))
        while (piece := reader.take(room)) is not None:
            channel.queue(Output(number, piece[0], piece[1]))
            room -= len(piece[1]) + ITEM_BYTES
            if room <= 0:
                room = channel.room()
        at_end = reader.at_end
        if not (at_end and complete):  # else ``Spool.received`` does this
            self.record.spool.taken()
        return at_end

    def stop(self) -> None:
        """Detach from the spool; the record is not changed."""
        if not self.finished:
            self.finished = True
            if self._reader is not None:
                self.record.spool.detach(self._reader)


class RecordHandler(Handler):
    """Serves a channel that sends one record."""

    KIND: ClassVar = "command"

    def __init__(self, channel: Channel, presenter: Presenter) -> None:
        self._channel = channel
        self._record = presenter.record
        self._presenter = presenter
        self._follower: Callable[[], None] = self._pump
        self._record.followers.append(self._follower)

    def _pump(self) -> None:
        if self._presenter.pump():
            self._unfollow()

    def _unfollow(self) -> None:
        if self._follower in self._record.followers:
            self._record.followers.remove(self._follower)

    def _consumed(self, size_bytes: int) -> None:
        if not self._presenter.finished and size_bytes:
            self._channel.consume(size_bytes)

    def write(self, data: bytes, eof: bool) -> None:
        """Input."""
        owner = self._record.owner
        if owner is None:
            self._channel.consume(len(data))
        else:
            owner.feed(data, eof, self._consumed)

    def signal(self, name: str) -> None:
        """Signal what runs, if it has not ended and the name is known."""
        owner = self._record.owner
        if owner is not None and is_signal(name):
            owner.signal(name)

    def close(self, detach: bool) -> None:
        """Kill what runs, or with ``detach`` leave it running for other clients."""
        if self._presenter.finished:
            return
        if detach:
            self.drop()
            error = HoldfastError("cancelled", f"the client detached; the {self.KIND} goes on", fault="caller")
            self._channel.send(Failed(self._channel.number, error.to_map()))
        elif self._record.owner is not None:
            self._record.owner.cancel()

    def drop(self) -> None:
        """Stop using the channel."""
        self._presenter.stop()
        self._unfollow()


class CommandHandler(RecordHandler):
    """A channel of kind ``command`` or ``follow``."""

    def __init__(
        self, context: AgentContext, channel: Channel, record: Record, starts: dict[int, int] | None = None, *, output: bool = True
    ) -> None:
        keep = record.lasting or channel.params.get("keep") is True
        super().__init__(channel, Presenter(channel, record, starts, output=output, keep=keep))
        self._context = context
        self._pump()

    def writable(self) -> None:
        """Credit returned, or the client attached or detached."""
        self._record.spool.taken()
        self._pump()

    def delivered(self, command_id: str) -> None:
        """The client has received the result."""
        self._context.records.delivered(command_id, self._context.now())
