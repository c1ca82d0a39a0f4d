"""Terminals: a program on a PTY of its own, with a size, a scrollback, and a life beyond one client.

Owns the PTY, resizing and re-attaching by name; the program itself is ``process``'s. A client that attaches is shown the last
``SCROLLBACK_BYTES`` (``terminal_replay``), what runs is made to draw itself again, then comes what follows. A connected client that reads
slowly makes the program wait; without clients the oldest output is dropped. ``open_terminal`` is the channel kind.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Failed
from holdfast_wire.limits import ID_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import Ending
from session_agent.agent.output.pipes import PipeReader, PipeWriter
from session_agent.agent.output.records import Record
from session_agent.agent.output.spool import Spool
from session_agent.agent.process.fork import CannotExecuteError, Launch, Stdio
from session_agent.agent.process.processes import is_signal, kill_signal
from session_agent.agent.request import params as read
from session_agent.agent.session.channels import Channel, Handler
from session_agent.agent.session.delivery import Presenter

from .launch import find_shell, launch_from, shell_words
from .process import Process
from .terminal_replay import replay
from .window import MOST_CELLS, TERM, window_size

SCROLLBACK_BYTES = 256 * 1024
_SHELLS = frozenset({"bash", "sh", "dash", "ash", "zsh", "ksh", "fish"})
_WIGGLE_S = 0.1
"""How long a temporary size is kept, so that a program notices it."""
_END_OF_INPUT = b"\x04"


def open_terminal(context: AgentContext, channel: Channel) -> TerminalHandler:
    """Attach to the terminal of this name, or start it. Raises ``HoldfastError``."""
    params = channel.params
    name = read.text(params, "name", None) or read.text(params, "id", None) or f"terminal-{os.urandom(6).hex()}"
    if len(name.encode()) > ID_BYTES:
        raise HoldfastError("invalid_argument", f"a terminal's name has at most {ID_BYTES} bytes")
    rows, columns = window_size(params)
    terminal = context.terminals.get(name)
    assert terminal is None or isinstance(terminal, Terminal)
    created = terminal is None
    if terminal is None:
        if len(context.terminals) >= context.limits.terminals:
            raise HoldfastError("session_limit", f"{len(context.terminals)} terminals are open in this sandbox")
        launch = launch_from(context, params, term=TERM)
        argv = read.texts(params, "argv") or _shell(context, login=read.boolean(params, "login", False))
        timeout_s = read.number(params, "timeout_s", None)
        terminal = Terminal(context, name, argv, launch, rows, columns, timeout_s)
    else:
        resized = terminal.resize(rows, columns)
        past, cut = terminal.past()
        handler = TerminalHandler(channel, terminal, created=False, past=replay(past, cut=cut))
        if not resized:
            terminal.redraw(force=cut)
        return handler
    return TerminalHandler(channel, terminal, created=created)


def _shell(context: AgentContext, *, login: bool) -> list[str]:
    kind, path = find_shell(context, "auto")
    return [*shell_words(path), *(["--login" if kind == "bash" else "-l"] if login else []), "-i"]


class Terminal(Process):
    """A program on a PTY. It keeps itself in ``context.terminals`` until its exit is known."""

    KIND, KILLED, ERRORS = "terminal", "cancelled", (1, "\r\n")

    def __init__(
        self,
        context: AgentContext,
        name: str,
        argv: list[str],
        launch: Launch,
        rows: int,
        columns: int,
        timeout_s: float | None,
    ) -> None:
        self.spool = Spool(context.budget, tail=True, limit_bytes=SCROLLBACK_BYTES)
        super().__init__(context, Record(name, b"", self.spool))
        self.name = name
        self._wiggle: asyncio.TimerHandle | None = None
        self._size = (rows, columns)
        self._prompts = os.path.basename(argv[0]) in _SHELLS and all(
            word.startswith("--") or (word.startswith("-") and "c" not in word) for word in argv[1:]
        )
        try:
            self._master, slave = os.openpty()
        except OSError as error:
            raise HoldfastError(
                "spawn_failed", f"no pseudo-terminal is available: {error.strerror}", hint="the sandbox needs /dev/ptmx and /dev/pts"
            ) from None
        try:
            _prepare(self._master, slave, launch, rows, columns)
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
        context.groups.join(self.pid)
        self._sink = PipeWriter(os.dup(self._master))
        self._sources = [PipeReader(self._master, 1, self.spool, arrived=self.record.notify, ended=self._source_ended)]
        context.terminals[name] = self
        self._go(timeout_s, watch=True)

    @property
    def works(self) -> bool:
        """Whether something runs in it besides a shell that waits at its prompt."""
        try:
            return self._status is None and (not self._prompts or os.tcgetpgrp(self._master) != self.pid)
        except OSError:
            return True

    @property
    def _is_open(self) -> bool:
        """Whether the PTY is: not after its last holder is gone."""
        return any(source.open for source in self._sources)

    def write(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Keys. The end of input is typed, as Ctrl-D is."""
        if self._sink is None or not self._sink.open:
            consumed(len(data))
            return
        if data:
            self._sink.feed(data, False, consumed)
        if eof:
            self._sink.feed(_END_OF_INPUT, False, lambda _: None)

    def resize(self, rows: int, columns: int) -> bool:
        """Change the size; the kernel sends the program SIGWINCH. False when it was that size already."""
        changed = (rows, columns) != self._size
        self._size = (rows, columns)
        self._settle()
        if changed:  # and again: a line editor puts back what it was when it began to look at its terminal
            self._wiggle = self._context.loop.call_later(_WIGGLE_S, self._settle)
        return changed

    def past(self) -> tuple[bytes, bool]:
        """The end of what it wrote so far, and whether something came before that is gone."""
        held = self.spool.held(1)
        tail = held[-SCROLLBACK_BYTES:]
        return tail, len(tail) < self.spool.size

    def redraw(self, *, force: bool) -> None:
        """Make a full-screen program draw itself. Many look whether the size is another: ``force`` shows them one for a moment."""
        if not self._is_open:
            return
        if force and self._wiggle is None:
            rows, columns = self._size
            self._set_size(rows + 1, columns)  # larger, not smaller: then no program has to throw a line away
            self._wiggle = self._context.loop.call_later(_WIGGLE_S, self._settle)
        elif not force:
            self.signal("WINCH")

    def _settle(self) -> None:
        """Restore the size that was asked for."""
        if self._wiggle is not None:
            self._wiggle.cancel()
            self._wiggle = None
        if self._is_open:
            self._set_size(*self._size)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def attended(self) -> None:
        """A client attached or left: without clients the program does not wait, its oldest output is dropped."""
        self.spool.tail = not any(reader.attached() for reader in self.spool.readers)
        self.spool.taken()

    # Process ----------------------------------------------------------------------------------------------------

    def _send_signal(self, number: int) -> None:
        """To whatever is in the foreground."""
        if self._is_open:
            try:
                kill_signal(os.tcgetpgrp(self._master), number)
            except OSError:
                pass

    def _end_streams(self) -> None:
        """What it left in the foreground is sent SIGHUP by the kernel; the rest lives on, as after `docker exec -t`."""
        for source in self._sources:
            source.drain()

    def _release(self) -> None:
        super()._release()
        if self._wiggle is not None:
            self._wiggle.cancel()
        if self._context.terminals.get(self.name) is self:
            del self._context.terminals[self.name]
        self.spool.release()  # no other client can find it

    def _store(self, ending: Ending) -> None:
        self.spool.released = True  # for the client that asked
        self.record.ending = ending
        self.record.notify()

    def _fail(self, error: HoldfastError) -> None:
        self.record.error = error
        self.record.notify()


def _prepare(master: int, slave: int, launch: Launch, rows: int, columns: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    modes = termios.tcgetattr(slave)
    modes[0] |= 0o40000  # IUTF8: erase whole characters
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    if launch.uid is not None:
        os.fchown(slave, launch.uid, -1)


class TerminalHandler(Handler):
    """One client's view of a terminal."""

    def __init__(self, channel: Channel, terminal: Terminal, *, created: bool, past: bytes = b"") -> None:
        self._channel = channel
        self._terminal = terminal
        record = terminal.record
        info = {"pid": terminal.pid, "name": terminal.name, "created": created}
        start = 0 if created else terminal.spool.size
        self._presenter = Presenter(channel, record, {1: start}, info=info, preface=past)
        self._follower: Callable[[], None] = self._pump
        record.followers.append(self._follower)
        terminal.attended()
        self._pump()

    def _pump(self) -> None:
        if self._presenter.pump():
            self._leave()

    def _leave(self) -> None:
        followers = self._terminal.record.followers
        if self._follower in followers:
            followers.remove(self._follower)

    def write(self, data: bytes, eof: bool) -> None:
        """Keys."""
        self._terminal.write(data, eof, self._consumed)

    def _consumed(self, size_bytes: int) -> None:
        if not self._presenter.finished and size_bytes:
            self._channel.consume(size_bytes)

    def resize(self, rows: int, columns: int) -> None:
        """The client's window changed."""
        if 0 < rows <= MOST_CELLS and 0 < columns <= MOST_CELLS:
            self._terminal.resize(rows, columns)

    def signal(self, name: str) -> None:
        """A signal for the foreground."""
        if is_signal(name):
            self._terminal.signal(name)

    def close(self, detach: bool) -> None:
        """End the terminal, or with ``detach`` leave it for clients that ask for its name."""
        if self._presenter.finished:
            return
        if detach:
            self.drop()
            error = HoldfastError("cancelled", "the client detached; the terminal goes on")
            self._channel.send(Failed(self._channel.number, error.to_map()))
        else:
            self._terminal.end("cancelled")

    def writable(self) -> None:
        """Credit came back, or the client came or went."""
        self._terminal.attended()
        self._pump()

    def drop(self) -> None:
        """The channel is gone; the terminal lives on by its name."""
        self._presenter.stop()
        self._leave()
        self._terminal.attended()
