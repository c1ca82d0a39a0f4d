"""The channel kind ``shell``: get or create a shell by name, run commands in it, and send their results.

Owns the validation of a Run's parameters and the order of the facts: one command after another, each from Started to Exited, even if the
shell is several commands ahead of what the client has read. A Run that is refused gets an Exited with an ``error``; the shell continues.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Exited, Fact, Failed, Opened
from holdfast_wire.limits import ID_BYTES
from holdfast_wire.trace import PARAM as TRACE

from session_agent.agent.commands.command import spool_from
from session_agent.agent.commands.launch import find_shell, launch_from
from session_agent.agent.commands.window import MOST_CELLS, TERM, window_size
from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import refusal
from session_agent.agent.output.records import Record, check_id, fingerprint
from session_agent.agent.output.spool import Spool
from session_agent.agent.output.traced import trace
from session_agent.agent.process.processes import is_signal
from session_agent.agent.process.start_errors import CannotExecuteError
from session_agent.agent.request import params as read
from session_agent.agent.session.channels import Channel, Handler
from session_agent.agent.session.delivery import Presenter

from .shell import Shell

_Refusal = tuple[str, HoldfastError]


def open_shell(context: AgentContext, channel: Channel) -> ShellHandler:
    """Attach to the shell of this name, or start it, unless ``create`` is false. Raises ``HoldfastError``."""
    params = channel.params
    name = read.text(params, "name", None) or f"shell-{os.urandom(6).hex()}"
    if len(name.encode()) > ID_BYTES:
        raise HoldfastError("invalid_argument", f"a shell's name must have at most {ID_BYTES} bytes")
    tty = read.boolean(params, "tty", False)
    size = window_size(params) if tty else None
    shell = context.shells.get(name)
    assert shell is None or isinstance(shell, Shell)
    created = shell is None
    if shell is None and not read.boolean(params, "create", True):
        raise HoldfastError("command_not_found", f"there is no shell {name!r:.140}")
    if shell is None:
        if len(context.shells) >= context.limits.shells:
            raise HoldfastError("session_limit", f"{len(context.shells)} shells are open in this sandbox")
        kind, path = find_shell(context, read.choice(params, "shell", "auto", ("auto", "bash", "sh")))
        launch = launch_from(context, params, term=TERM if tty else None)
        try:
            shell = context.shells[name] = Shell(context, name, kind, path, launch, size)
        except CannotExecuteError as error:
            raise HoldfastError("shell_unavailable", error.message) from None
    elif size is not None:
        if not shell.has_terminal:
            hint = "open the shell with a terminal under another name, or leave tty out"
            raise HoldfastError("command_conflict", f"the shell {name!r:.140} has no terminal", hint=hint)
        shell.resize(*size)
    return ShellHandler(context, channel, shell, created=created, make_spool=spool_from(context, params))


class ShellHandler(Handler):
    """Serves one client of one shell."""

    def __init__(self, context: AgentContext, channel: Channel, shell: Shell, *, created: bool, make_spool: Callable[[], Spool]) -> None:
        self._context = context
        self._make_spool = make_spool
        self._channel = channel
        self._shell = shell
        self._waiting: deque[Record | _Refusal] = deque()
        self._presenter: Presenter | None = None
        self._last: Record | None = None
        self._gone = False
        self._final: Closed | Failed | None = None
        """The final fact, until the client has room for it."""
        self._follower: Callable[[], None] = self._pump
        shell.listeners.append(self._ended)
        info = {"name": shell.name, "pid": shell.pid, "shell": shell.kind, "created": created}
        channel.send(Opened(channel.number, info | {"tty": True} if shell.has_terminal else info))

    def run(self, command_id: str, params: dict[str, Any]) -> None:
        """Run a command, or attach to the one of this id."""
        if self._gone:
            return
        try:
            record, fresh = self._record(check_id(command_id), params)
        except HoldfastError as error:
            self._last = None  # input that follows is for this command, not for the one before
            self._waiting.append((command_id, error))
        else:
            self._last = record
            record.followers.append(self._follower)
            if fresh and record.started and self._presenter is None and not self._waiting:
                # Its start is reported with its output or its end, or by Shell.report_start: one message less for short commands.
                self._presenter = Presenter(self._channel, record, terse=True)
                return
            self._waiting.append(record)
        self._pump()

    def _record(self, command_id: str, params: dict[str, Any]) -> tuple[Record, bool]:
        """The record of this id, and whether it is new."""
        if traced := TRACE in params:
            params = {name: value for name, value in params.items() if name != TRACE}
        digest = fingerprint("run", {**params, "": self._shell.name})
        record = self._context.records.find(command_id, digest)
        if record is not None:
            return record, False
        script = params.get("script")
        if isinstance(script, str):
            script = script.encode("utf-8", "surrogateescape")
        if not isinstance(script, bytes):
            raise HoldfastError("invalid_argument", f"script must be a string, not {type(script).__name__}")
        if b"\0" in script:
            raise HoldfastError("invalid_argument", "a script cannot hold a NUL byte", hint="write the script to a file first")
        timeout_s = read.number(params, "timeout_s", None)
        pipe_stdin = False
        if params.get("stdin") is not None:
            if self._shell.has_terminal:
                hint = "write to the shell while the command runs"
                raise HoldfastError("invalid_argument", "a command on a terminal reads typed keys and takes no other input", hint=hint)
            pipe_stdin = read.choice(params, "stdin", "null", ("null", "pipe")) == "pipe"
        one_stream = "stderr" in params and read.choice(params, "stderr", "pipe", ("pipe", "stdout")) == "stdout"
        records, shell = self._context.records, self._shell
        record = records.create(command_id, digest, self._make_spool(), "run", script, shell.name)
        if traced:
            trace(record)
        if records.journal is not None:
            records.journal.began(record, script, shell.size)
        try:
            shell.submit(record, script, timeout_s, pipe_stdin=pipe_stdin, one_stream=one_stream)
        except HoldfastError:
            records.forget(record)
            raise
        return record, True

    def _pump(self) -> None:
        while not self._gone:
            if self._presenter is None:
                if not self._waiting:
                    return
                head = self._waiting[0]
                if isinstance(head, Record):
                    self._presenter = Presenter(self._channel, head, terse=True)
                elif not self._try_send(Exited(self._channel.number, head[0], refusal(head[1]))):
                    return
                self._waiting.popleft()
                continue
            if not self._presenter.pump():
                return
            self._leave(self._presenter.record)
            self._presenter = None

    def _try_send(self, fact: Fact) -> bool:
        """Send a fact. False if too many facts wait for the client already; ``writable`` is called when there is room."""
        try:
            self._channel.send(fact)
        except HoldfastError as error:
            if error.code != "queue_full":
                raise
            return False
        return True

    def _leave(self, record: Record) -> None:
        if self._follower in record.followers:
            record.followers.remove(self._follower)

    def write(self, data: bytes, eof: bool) -> None:
        """Input for the command of the last Run, or keys for the terminal."""
        if self._shell.keys is not None and not self._gone:
            journal = self._context.records.journal
            if journal is not None and data:
                journal.input(self._last.command_id if self._last is not None else "", data)
            self._shell.keys.feed(data, eof, self._consumed)
            return
        record = self._last
        if record is None or record.owner is None:
            self._consumed(len(data))
        else:
            record.owner.feed(data, eof, self._consumed)

    def _consumed(self, size_bytes: int) -> None:
        if not self._gone and size_bytes:
            self._channel.consume(size_bytes)

    def signal(self, name: str) -> None:
        """Signal the command that is being reported."""
        presenter = self._presenter
        if presenter is not None and presenter.record.owner is not None and is_signal(name):
            presenter.record.owner.signal(name)

    def resize(self, rows: int, columns: int) -> None:
        """Resize the terminal, if the shell has one."""
        if self._shell.has_terminal and 0 < rows <= MOST_CELLS and 0 < columns <= MOST_CELLS:
            self._shell.resize(rows, columns)
            journal = self._context.records.journal
            if journal is not None:
                journal.resized(self._last.command_id if self._last is not None else "", rows, columns)

    def close(self, detach: bool) -> None:
        """End the shell, or with ``detach`` leave it running for clients that open its name."""
        if detach:
            self.drop()
            self._end(Closed(self._channel.number, {"name": self._shell.name, "detached": True}))
        else:
            self._shell.end()

    def _ended(self, error: HoldfastError | None) -> None:
        if self._gone:
            return
        self._pump()
        self.drop()
        number = self._channel.number
        if error is not None:
            self._end(Failed(number, error.to_map()))
        else:
            self._end(Closed(number, {"name": self._shell.name, "detached": False}))

    def _end(self, fact: Closed | Failed) -> None:
        self._final = None if self._try_send(fact) else fact

    def writable(self) -> None:
        """Credit returned, or the client attached or detached."""
        if self._final is not None:
            self._end(self._final)
        if self._presenter is not None:
            self._presenter.record.spool.taken()
        self._pump()

    def delivered(self, command_id: str) -> None:
        """The client has received the result of this command."""
        self._context.records.delivered(command_id, self._context.now())

    def drop(self) -> None:
        """Stop using the channel; the shell and its commands continue."""
        self._gone = True
        self._final = None
        if self._ended in self._shell.listeners:
            self._shell.listeners.remove(self._ended)
        if self._presenter is not None:
            self._presenter.stop()
            self._leave(self._presenter.record)
            self._presenter = None
        for waiting in self._waiting:
            if isinstance(waiting, Record):
                self._leave(waiting)
        self._waiting.clear()
