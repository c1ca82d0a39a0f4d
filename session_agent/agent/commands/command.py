"""One-off commands: a process from a string or an argument list, with its own everything.

Owns what happens between the request and the exit record: start, input, output, signals, time-out, the end of the tree. Presenting it to a
client is ``delivery``'s work; a command does not care whether anybody looks. ``open_command`` and ``open_follow`` are the channel kinds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import Ending, ending_of
from session_agent.agent.output.pipes import PipeReader, PipeWriter, discard
from session_agent.agent.output.records import Record, check_id, fingerprint
from session_agent.agent.output.spool import Spool
from session_agent.agent.process.fork import CannotExecuteError, Stdio
from session_agent.agent.process.process_tree import TreeKill, has_strangers, kill_group, members, owned_by, signal_all
from session_agent.agent.process.processes import exit_outcome, signal_number
from session_agent.agent.request import params as read
from session_agent.agent.session.channels import Channel
from session_agent.agent.session.delivery import CommandHandler

from .launch import find_shell, launch_from, shell_words

_WAIT_POLL_S = 0.05


def open_command(context: AgentContext, channel: Channel) -> CommandHandler:
    """Get or create the command of this id. Raises ``HoldfastError`` for what cannot run."""
    return CommandHandler(context, channel, begin(context, channel.params))


def begin(context: AgentContext, params: dict[str, Any]) -> Record:
    """Get or create the command of this id, also without a client. Raises ``HoldfastError`` for what cannot run."""
    command_id = check_id(params.get("id"))
    print_ = fingerprint("command", {name: value for name, value in params.items() if name != "keep"})  # how it is read is not what it is
    record = context.records.find(command_id, print_)
    if record is None:
        request = _Request(context, params)
        record = context.records.create(command_id, print_, request.spool)
        try:
            Command(context, record, request)
        except HoldfastError:
            context.records.forget(record)
            raise
    return record


def open_follow(context: AgentContext, channel: Channel) -> CommandHandler:
    """Attach to a command that exists, from given offsets per stream."""
    record = context.records.get(check_id(channel.params.get("id")))
    given = channel.params.get("from")
    if given is not None and not (isinstance(given, dict) and all(type(offset) is int and offset >= 0 for offset in given.values())):
        raise HoldfastError("invalid_argument", "from is the offset at which each stream begins: {stream: offset}")
    starts = {int(stream): offset for stream, offset in (given or {}).items() if stream in (1, 2, "1", "2")}
    return CommandHandler(context, channel, record, starts, output=read.boolean(channel.params, "output", True))


def spool_from(context: AgentContext, params: dict[str, Any]) -> Callable[[], Spool]:
    """What makes the spools that ``spool``, ``spool_bytes`` and ``keep`` ask for."""
    tail = read.choice(params, "spool", "block", ("block", "tail")) == "tail"
    most = context.limits.spool_command_bytes
    limit = read.integer(params, "spool_bytes", most, least=1, most=most)
    yields = read.boolean(params, "keep", False)
    return lambda: Spool(context.budget, tail=tail, yields=yields, limit_bytes=limit)


class _Request:
    """The checked parameters of a ``command`` channel."""

    def __init__(self, context: AgentContext, params: dict[str, Any]) -> None:
        argv = read.texts(params, "argv")
        script = read.text(params, "script", None)
        if (argv is None) == (script is None):
            raise HoldfastError("invalid_argument", "give either argv or script")
        if script is not None:
            kind, path = find_shell(context, "auto")
            login = ["--login"] if kind == "bash" else ["-l"]
            argv = [*shell_words(path), *(login if read.boolean(params, "login", False) else []), "-c", script]
        if not argv:
            raise HoldfastError("invalid_argument", "argv is empty", hint="its first entry is the program")
        self.argv = argv
        self.launch = launch_from(context, params)
        self.timeout_s = read.number(params, "timeout_s", None)
        self.pipe_stdin = read.choice(params, "stdin", "null", ("null", "pipe")) == "pipe"
        self.outlive = read.choice(params, "outlive", "adopt", ("adopt", "kill", "wait"))
        self.spool = spool_from(context, params)()
        self.one_stream = read.choice(params, "stderr", "pipe", ("pipe", "stdout")) == "stdout"


class Command:
    """A live one-off command. It keeps itself in ``context.commands`` until its exit record is stored."""

    def __init__(self, context: AgentContext, record: Record, request: _Request) -> None:
        self._context = context
        self._record = record
        self._outlive = request.outlive
        self._tag = context.tags.owner()
        self._began = context.now()
        self._status: int | None = None
        self._abort = ""
        """Why it was killed, where it was: the first reason."""
        self._killing: TreeKill | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sink: PipeWriter | None = None
        self._sources: list[PipeReader] = []
        self._pid = 0
        self._signals: list[int] = []
        try:
            self._start(request)
        except CannotExecuteError as error:
            self._cannot_execute(error)
            return
        record.owner = self
        record.info = {"pid": self._pid, "started_at": time.time()}
        record.started = not context.reaper.is_starting(self._pid)
        context.commands.add(self)
        if request.timeout_s is not None:
            self._timer = context.loop.call_later(request.timeout_s, self._end, "timeout")

    def _start(self, request: _Request) -> None:
        context = self._context
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for index in (0, 1, 2):
                if (index == 0 and not request.pipe_stdin) or (index == 2 and request.one_stream):
                    continue
                reader, writer = os.pipe()
                ours.append(writer if index == 0 else reader)
                theirs.append(reader if index == 0 else writer)
            if request.launch.uid is not None:
                for fd in theirs:
                    os.fchown(fd, request.launch.uid, -1)  # so that it may open /dev/stdout and its like anew
            stdin = theirs[0] if request.pipe_stdin else context.null
            stdio = Stdio(stdin, theirs[-1 if request.one_stream else -2], theirs[-1])
            self._pid = context.reaper.spawn(request.argv, request.launch, stdio, self._exited, tag=self._tag, on_start=self._started)
        except OSError as error:
            _close(ours)
            raise HoldfastError("spawn_failed", f"no pipes for the command: {error.strerror}") from None
        except Exception:
            _close(ours)
            raise
        finally:
            _close(theirs)
        if request.pipe_stdin:
            self._sink = PipeWriter(ours[0])
        for stream, descriptor in ((1, ours[-1]),) if request.one_stream else ((1, ours[-2]), (2, ours[-1])):
            self._sources.append(PipeReader(descriptor, stream, self._record.spool, arrived=self._record.notify, ended=self._source_ended))

    # what clients ask ------------------------------------------------------------------------------------------

    def signal_command(self, command_id: str, name: str) -> None:
        """Signal its process group; KILL ends the whole tree."""
        number = signal_number(name)
        if number == signal.SIGKILL:
            self._end("")
        elif not self._record.started:
            if number not in self._signals:  # as a process has a signal pending once
                self._signals.append(number)
        elif self._status is None:
            kill_group(self._pid, number)
        else:
            signal_all(members(owned_by(self._tag)), number)

    def feed_command(self, command_id: str, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Bytes for its standard input."""
        if self._sink is None:
            consumed(len(data))
            return
        self._sink.feed(data, eof, consumed)

    def cancel_command(self, command_id: str) -> None:
        """Kill it with everything it started."""
        self._end("cancelled")

    def abandon(self) -> None:
        """The agent stops."""
        self.cancel_command(self._record.command_id)

    # what happens ----------------------------------------------------------------------------------------------

    def _started(self, error: Exception | None) -> None:
        """The program replaced the forked child (exec), or could not."""
        if error is None:
            self._record.started = True
            self._record.notify()
            for number in self._signals:
                kill_group(self._pid, number)
            return
        self._release()
        if isinstance(error, CannotExecuteError):
            self._cannot_execute(error)
        else:
            assert isinstance(error, HoldfastError)
            self._context.records.fail(self._record, error)

    def _cannot_execute(self, error: CannotExecuteError) -> None:
        """Report it as a shell does."""
        self._record.started = True
        self._record.spool.append(2, f"{error.message}\n".encode())
        self._store(Ending(error.exit_code, self._context.now() - self._began))

    def _end(self, why: str) -> None:
        """Kill it, unless it has ended: an agent that was held up may have yet to see that."""
        self._context.reaper.reap()
        if self._killing is not None or self not in self._context.commands:
            return
        if self._status is not None and not members(owned_by(self._tag)):
            self._finish()
            return
        self._abort = why
        self._kill_tree()

    def _kill_tree(self) -> None:
        roots = (self._pid,) if self._status is None else ()
        if roots:
            # at once and as a whole: a fork bomb that goes on while it is looked through leaves us no time to do so
            kill_group(self._pid, signal.SIGSTOP)
        self._killing = TreeKill(owned_by(self._tag), self._killed, roots=roots)

    def _killed(self) -> None:
        self._context.reaper.reap_orphans(owned_by(self._tag))
        if self._status is not None:
            self._finish()
        # else the leader's exit is on its way

    def _exited(self, status: int) -> None:
        self._status = status
        if self._killing is not None or self._outlive == "kill":
            if has_strangers(self._context.reaper.pids):
                if self._killing is None or self._killing.over:
                    self._kill_tree()
                # else _killed comes when nothing of the tree is left
            else:
                if self._killing is not None:
                    self._killing.cancel()
                self._finish()
        elif self._outlive == "adopt":
            self._finish()
        else:
            self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        """``outlive: wait``: until the pipes are closed and nothing of the tree lives."""
        if self._killing is not None or self._record.ending is not None:
            return
        if any(source.open for source in self._sources):
            return  # _source_ended comes back here
        if has_strangers(self._context.reaper.pids) and members(owned_by(self._tag)):
            self._context.loop.call_later(_WAIT_POLL_S, self._wait_for_rest)
            return
        self._finish()

    def _source_ended(self) -> None:
        if self._status is not None and self._outlive == "wait":
            self._wait_for_rest()

    def _finish(self) -> None:
        if self._record.ending is not None:
            return
        for source in self._sources:
            if not source.drain():
                discard(source.release())
        assert self._status is not None
        exit_code, name = exit_outcome(self._status)
        duration_s = self._context.now() - self._began
        self._release()
        self._store(ending_of("command", exit_code, name, duration_s, abort=self._abort, oom_killed=self._context.oom_killed))

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._killing is not None:
            self._killing.cancel()
        if self._sink is not None:
            self._sink.close()
        for source in self._sources:
            source.close()
        self._context.commands.discard(self)

    def _store(self, ending: Ending) -> None:
        self._context.records.finish(self._record, ending, self._context.now())


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
