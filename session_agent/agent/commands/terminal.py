"""The channel kind ``terminal``: a program on a pseudo-terminal, with a name by which clients can attach again.

Owns the pseudo-terminal, its size and its scrollback; ``process`` has the life of the program. A client that attaches gets the last
``SCROLLBACK_BYTES`` (``terminal_replay``), the program is made to redraw, and new output follows. A connected client that reads slowly
blocks the program; without connected clients the oldest output is dropped.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import ID_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import ExitStatus
from session_agent.agent.output.pipes import PipeReader
from session_agent.agent.output.records import Record
from session_agent.agent.output.spool import Spool
from session_agent.agent.process.fork import Stdio
from session_agent.agent.process.processes import kill_signal
from session_agent.agent.process.start_errors import CannotExecuteError
from session_agent.agent.request import params as read
from session_agent.agent.session.channels import Channel
from session_agent.agent.session.delivery import Presenter, RecordHandler

from .launch import find_shell, launch_from, shell_words
from .process import Process
from .terminal_replay import replay
from .window import MOST_BUFFERED_BYTES, MOST_CELLS, TERM, Keyboard, open_pty, set_size, window_size

SCROLLBACK_BYTES = 256 * 1024
_SHELLS = frozenset({"bash", "sh", "dash", "ash", "zsh", "ksh", "fish"})
_WIGGLE_S = 0.1
"""How long a temporary size is set, so that a program notices the change."""


def open_terminal(context: AgentContext, channel: Channel) -> TerminalHandler:
    """Attach to the terminal of this name, or start it, unless ``create`` is false. Raises ``HoldfastError``.

    An attach without a size leaves that of the terminal.
    """
    params = channel.params
    name = read.text(params, "name", None) or read.text(params, "id", None) or f"terminal-{os.urandom(6).hex()}"
    if len(name.encode()) > ID_BYTES:
        raise HoldfastError("invalid_argument", f"a terminal's name must have at most {ID_BYTES} bytes")
    size = window_size(params)
    terminal = context.terminals.get(name)
    if terminal is None and not read.boolean(params, "create", True):
        raise HoldfastError("command_not_found", f"there is no terminal {name!r:.140}")
    if terminal is None:
        if len(context.terminals) >= context.limits.terminals:
            raise HoldfastError("session_limit", f"{len(context.terminals)} terminals are open in this sandbox")
        return TerminalHandler(channel, Terminal(context, name, params, size), created=True)
    assert isinstance(terminal, Terminal)
    resized = ("rows" in params or "cols" in params) and terminal.resize(*size)
    past, cut = terminal.past()
    handler = TerminalHandler(channel, terminal, created=False, past=replay(past, cut=cut))
    if not resized:
        terminal.redraw(force=cut)
    return handler


def _shell(context: AgentContext, *, login: bool) -> list[str]:
    kind, path = find_shell(context, "auto")
    return [*shell_words(path), *(["--login" if kind == "bash" else "-l"] if login else []), "-i"]


class Terminal(Process):
    """A program on a PTY. It keeps itself in ``context.terminals`` until its exit is known."""

    KIND, KILLED, ERRORS = "terminal", "cancelled", (1, "\r\n")

    def __init__(self, context: AgentContext, name: str, params: dict[str, Any], size: tuple[int, int]) -> None:
        launch = launch_from(context, params, term=TERM)
        argv = read.texts(params, "argv") or _shell(context, login=read.boolean(params, "login", False))
        timeout_s = read.number(params, "timeout_s", None)
        self.spool = Spool(context.budget, tail=True, limit_bytes=SCROLLBACK_BYTES)
        text = " ".join(argv)
        super().__init__(context, Record(name, b"", self.spool, "terminal", text))
        if context.records.journal is not None:
            context.records.journal.began(self.record, text, size)
        self.name = name
        self._wiggle: asyncio.TimerHandle | None = None
        self._size = size
        self._prompts = os.path.basename(argv[0]) in _SHELLS and all(
            word.startswith("--") or (word.startswith("-") and "c" not in word) for word in argv[1:]
        )
        self._master, slave = open_pty(*size)
        try:
            if launch.uid is not None:
                os.fchown(slave, launch.uid, -1)
            self._spawn(argv, launch, Stdio(slave, slave, slave), tty=True)
        except CannotExecuteError as error:
            os.close(self._master)
            self._cannot_execute(error)
            return
        except BaseException:
            os.close(self._master)
            raise
        finally:
            os.close(slave)
        self.record.info = {"pid": self.pid}
        context.groups.join(self.pid)
        self._sink = Keyboard(os.dup(self._master))
        self._sources = [PipeReader(self._master, 1, self.spool, arrived=self.record.notify, ended=self._source_ended)]
        context.terminals[name] = self
        self._go(timeout_s, watch=True)

    @property
    def works(self) -> bool:
        """Whether a program other than a shell at its prompt is in the foreground."""
        try:
            return self._status is None and (not self._prompts or os.tcgetpgrp(self._master) != self.pid)
        except OSError:
            return True

    @property
    def _is_open(self) -> bool:
        """Whether any process still has the pseudo-terminal open."""
        return any(source.open for source in self._sources)

    def resize(self, rows: int, columns: int) -> bool:
        """Change the size; the kernel sends SIGWINCH to the program. False if it had that size already."""
        changed = (rows, columns) != self._size
        journal = self._context.records.journal
        if changed and journal is not None:
            journal.resized(self.name, rows, columns)
        self._size = (rows, columns)
        self._restore_size()
        if changed:  # and once more later: a line editor may just now restore the size that it read at its start
            self._wiggle = self._context.loop.call_later(_WIGGLE_S, self._restore_size)
        return changed

    def typed(self, data: bytes) -> None:
        """A client sends these keys."""
        journal = self._context.records.journal
        if journal is not None and data:
            journal.input(self.name, data)

    def past(self) -> tuple[bytes, bool]:
        """The last output so far, and whether earlier output is missing."""
        held = self.spool.held(1)
        tail = held[-SCROLLBACK_BYTES:]
        return tail, len(tail) < self.spool.size

    def redraw(self, *, force: bool) -> None:
        """Make a full-screen program redraw. Many do so only if the size has changed: with ``force`` it changes for ``_WIGGLE_S``."""
        if not self._is_open:
            return
        if force and self._wiggle is None:
            rows, columns = self._size
            set_size(self._master, rows + 1, columns)  # larger, not smaller, so that no program discards a line
            self._wiggle = self._context.loop.call_later(_WIGGLE_S, self._restore_size)
        elif not force:
            self.signal("WINCH")

    def _restore_size(self) -> None:
        """Set the size that a client requested last."""
        if self._wiggle is not None:
            self._wiggle.cancel()
            self._wiggle = None
        if self._is_open:
            set_size(self._master, *self._size)

    def clients_changed(self) -> None:
        """A client attached or detached: block the program on slow clients only while one is connected."""
        self.spool.tail = not any(reader.attached() for reader in self.spool.readers)
        self.spool.taken()

    # Process ----------------------------------------------------------------------------------------------------

    def _send_signal(self, number: int) -> None:
        """To the foreground process group."""
        if self._is_open:
            try:
                kill_signal(os.tcgetpgrp(self._master), number)
            except OSError:
                pass

    def _end_streams(self) -> None:
        """The kernel sends SIGHUP to processes left in the foreground; others continue, as after `docker exec -t`."""
        for source in self._sources:
            source.drain(MOST_BUFFERED_BYTES)

    def _release(self) -> None:
        super()._release()
        if self._wiggle is not None:
            self._wiggle.cancel()
        if self._context.terminals.get(self.name) is self:
            del self._context.terminals[self.name]
        self.spool.release()  # no other client can attach any more

    def _store(self, exit_status: ExitStatus) -> None:
        self.spool.released = True  # only the present clients read the rest
        self.record.owner = None
        self.record.exit_status = exit_status
        self._context.records.ended(self.record, exit_status)
        self.record.notify()

    def _fail(self, error: HoldfastError) -> None:
        journal = self._context.records.journal
        if journal is not None:
            journal.withdrawn(self.record)
        self.record.owner = None
        self.record.error = error
        self.record.notify()


class TerminalHandler(RecordHandler):
    """Serves one client of a terminal."""

    KIND = "terminal"

    def __init__(self, channel: Channel, terminal: Terminal, *, created: bool, past: bytes = b"") -> None:
        self._terminal = terminal
        info = {"pid": terminal.pid, "name": terminal.name, "created": created}
        start = 0 if created else terminal.spool.size
        super().__init__(channel, Presenter(channel, terminal.record, {1: start}, info=info, preface=past))
        terminal.clients_changed()
        self._pump()

    def write(self, data: bytes, eof: bool) -> None:
        """Keys."""
        self._terminal.typed(data)
        super().write(data, eof)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size."""
        if 0 < rows <= MOST_CELLS and 0 < columns <= MOST_CELLS:
            self._terminal.resize(rows, columns)

    def writable(self) -> None:
        """Credit returned, or the client attached or detached."""
        self._terminal.clients_changed()
        self._pump()

    def drop(self) -> None:
        """Stop using the channel; the program keeps running."""
        super().drop()
        self._terminal.clients_changed()
