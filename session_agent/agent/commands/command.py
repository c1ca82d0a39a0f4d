"""The channel kinds ``command`` and ``follow``: start a one-off command, and attach to an existing one.

Owns the validation of the request, the pipes of the process and the storing of its result; ``process`` has everything between start and
exit. A command is a script for a shell or an argument list, with its own directory, environment, user and streams.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.trace import PARAM as TRACE

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import ExitStatus
from session_agent.agent.output.pipes import PipeReader, PipeWriter, discard
from session_agent.agent.output.records import Record, check_id, fingerprint
from session_agent.agent.output.spool import Spool
from session_agent.agent.output.traced import trace
from session_agent.agent.process.fork import Stdio
from session_agent.agent.process.last_writers import LastOutput
from session_agent.agent.process.process_tree import kill_group, marked, members, owned_by, signal_all
from session_agent.agent.process.start_errors import CannotExecuteError
from session_agent.agent.request import params as read
from session_agent.agent.session.channels import Channel
from session_agent.agent.session.delivery import CommandHandler

from .launch import find_shell, launch_from, shell_words
from .process import Process

_WORDS = 50
"""So many words of a command are in the history."""
_READING = ("keep", "live", TRACE)
"""Parameters about reading the output, and about who asks: they do not make a different command."""


def open_command(context: AgentContext, channel: Channel) -> CommandHandler:
    """Get or create the command of this id. Raises ``HoldfastError`` for what cannot run."""
    return CommandHandler(context, channel, begin(context, channel.params))


def begin(context: AgentContext, params: dict[str, Any]) -> Record:
    """Get or create the command of this id, also without a client. Raises ``HoldfastError`` for what cannot run."""
    command_id = check_id(params.get("id"))
    digest = fingerprint("command", {name: value for name, value in params.items() if name not in _READING})
    record = context.records.find(command_id, digest)
    if record is None:
        request = _Request(context, params)
        record = context.records.create(command_id, digest, request.spool, "command", request.text)
        if TRACE in params:
            trace(record)
        if context.records.journal is not None:
            context.records.journal.began(record, request.text)
        try:
            Command(context, record, request)
        except HoldfastError:
            context.records.forget(record)
            raise
        if "ends_sandbox" in params and read.boolean(params, "ends_sandbox", False):
            end_sandbox_with(context, record)
    return record


def end_sandbox_with(context: AgentContext, record: Record) -> None:
    """End the sandbox when this command has ended or could not be started, whatever else runs in it then."""

    def look() -> None:
        if record.exit_status is not None or record.error is not None:
            context.loop.call_soon(context.end)  # first the other followers send its result

    record.followers.append(look)
    look()


def open_follow(context: AgentContext, channel: Channel) -> CommandHandler:
    """Attach to a command that exists, from given offsets per stream."""
    record = context.records.get(check_id(channel.params.get("id")))
    given = channel.params.get("from")
    if given is not None and not (isinstance(given, dict) and all(type(offset) is int and offset >= 0 for offset in given.values())):
        raise HoldfastError("invalid_argument", "from must map the number of each stream to the offset at which it begins")
    if read.boolean(channel.params, "ends_sandbox", False):
        end_sandbox_with(context, record)
    starts = {int(stream): offset for stream, offset in (given or {}).items() if stream in (1, 2, "1", "2")}
    return CommandHandler(context, channel, record, starts, output=read.boolean(channel.params, "output", True))


def spool_from(context: AgentContext, params: dict[str, Any]) -> Callable[[], Spool]:
    """A function that creates spools with the parameters ``spool``, ``spool_bytes`` and ``keep``. Raises ``invalid_argument``."""
    tail = read.choice(params, "spool", "block", ("block", "tail")) == "tail"
    most = context.limits.spool_command_bytes
    limit = read.integer(params, "spool_bytes", most, least=1, most=most)
    drops_unattached = read.boolean(params, "keep", False)
    return lambda: Spool(context.budget, tail=tail, drops_unattached=drops_unattached, limit_bytes=limit)


class _Request:
    """The checked parameters of a ``command`` channel."""

    def __init__(self, context: AgentContext, params: dict[str, Any]) -> None:
        argv = read.texts(params, "argv")
        script = read.text(params, "script", None)
        if (argv is None) == (script is None):
            raise HoldfastError("invalid_argument", "give either argv or script")
        self.text = " ".join((argv or ())[:_WORDS]) if script is None else script
        """What the history shows."""
        if script is not None:
            kind, path = find_shell(context, "auto")
            login = ["--login"] if kind == "bash" else ["-l"]
            argv = [*shell_words(path), *(login if read.boolean(params, "login", False) else []), "-c", script]
        if not argv:
            raise HoldfastError("invalid_argument", "argv is empty", hint="the first entry of argv is the program")
        self.argv = argv
        self.launch = launch_from(context, params)
        self.timeout_s = read.number(params, "timeout_s", None)
        self.pipe_stdin = read.choice(params, "stdin", "null", ("null", "pipe")) == "pipe"
        self.outlive = read.choice(params, "outlive", "adopt", ("adopt", "kill", "wait"))
        self.spool = spool_from(context, params)()
        self.live = self.pipe_stdin or read.boolean(params, "live", False)
        self.one_stream = read.choice(params, "stderr", "pipe", ("pipe", "stdout")) == "stdout"


class Command(Process):
    """A running one-off command. It is in ``context.commands`` until its result is stored."""

    KIND, KILLED, ERRORS = "command", "", (2, "\n")

    def __init__(self, context: AgentContext, record: Record, request: _Request) -> None:
        super().__init__(context, record, outlive=request.outlive)
        try:
            self._start(request)
        except CannotExecuteError as error:
            self._cannot_execute(error)
            return
        record.info = {"pid": self.pid, "started_at": time.time()}
        context.commands.add(self)
        self._go(request.timeout_s, watch=request.live)

    def _start(self, request: _Request) -> None:
        own_ends: list[int] = []
        child_ends: list[int] = []
        try:
            for index in (0, 1, 2):
                if (index == 0 and not request.pipe_stdin) or (index == 2 and request.one_stream):
                    continue
                reader, writer = os.pipe()
                own_ends.append(writer if index == 0 else reader)
                child_ends.append(reader if index == 0 else writer)
            if request.launch.uid is not None:
                for fd in child_ends:
                    os.fchown(fd, request.launch.uid, -1)  # otherwise the command could not open /dev/stdout
            stdin = child_ends[0] if request.pipe_stdin else self._context.null
            self._spawn(request.argv, request.launch, Stdio(stdin, child_ends[-1 if request.one_stream else -2], child_ends[-1]))
        except OSError as error:
            _close(own_ends)
            raise HoldfastError("spawn_failed", f"cannot create the pipes of the command: {error.strerror}") from None
        except Exception:
            _close(own_ends)
            raise
        finally:
            _close(child_ends)
        if request.pipe_stdin:
            self._sink = PipeWriter(own_ends[0])
        for stream, descriptor in ((1, own_ends[-1]),) if request.one_stream else ((1, own_ends[-2]), (2, own_ends[-1])):
            self._sources.append(PipeReader(descriptor, stream, self.record.spool, arrived=self.record.notify, ended=self._source_ended))

    def _send_signal(self, number: int) -> None:
        """To its process group, or after its end to the remaining processes of its tree."""
        if self._status is None:
            kill_group(self.pid, number)
        else:
            signal_all(members(owned_by(self._tag)), number)

    def _collect(self) -> list[tuple[int, int]]:
        """Read what is there of the output. Returns the pipes to which another process may still write; the others are closed."""
        held = []
        for source in self._sources:
            if source.open:
                if source.drain():
                    source.close()
                else:
                    held.append(source.pipe)
        return held

    def _await_rest(self) -> bool:
        outputs = self._collect()
        if not outputs:
            return False
        rest = LastOutput(self._collect, lambda: self.record.spool.full, lambda: marked(owned_by(self._tag)), self._ended)
        if rest.begin(outputs):
            self._rest = rest
        return self._rest is not None

    def _end_streams(self) -> None:
        for source in self._sources:
            if not source.drain():
                discard(source.release())

    def _release(self) -> None:
        super()._release()
        self._context.commands.discard(self)

    def _store(self, exit_status: ExitStatus) -> None:
        self._context.records.finish(self.record, exit_status, self._context.now())

    def _fail(self, error: HoldfastError) -> None:
        self._context.records.fail(self.record, error)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
