"""The channel kind ``dump``: the states of all living shells, for sandboxes that continue from them (PROTOCOL §7.13).

Owns when the states are taken, and the list of what else there is that they do not contain: commands, terminals, processes, open
descriptors. ``carry`` has the form of the states. From Open until the channel is closed no shell begins a command, so that the files of
the sandbox can be copied meanwhile. ``restore`` starts shells from the states in another sandbox.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDOUT, Closed, Failed, Opened, Output
from holdfast_wire.limits import DATA_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.request.params import boolean
from session_agent.agent.session.channels import Channel, Handler

from .carry import save_shells
from .driver import SH_FEED
from .shell import Shell

log = logging.getLogger("session_agent.agent.shell.dump")

MOST_BYTES = 16 * 1024 * 1024
"""Most bytes of all states together."""
MOST_LOST = 500
_CHECK_S = 0.01
_NAME = 200
_BASH_OWN = 255
"""Bash's copy of its standard input or terminal."""


def open_dump(context: AgentContext, channel: Channel) -> DumpHandler:
    """``dump {wait?}``: Opened{bytes, lost}, the states as bytes, Closed{} after the client's Close. Raises ``HoldfastError``.

    With ``wait`` it opens when no shell runs a command, however long that takes: the client closes the channel to give up.
    """
    return DumpHandler(context, channel, wait=boolean(channel.params, "wait", False))


class DumpHandler(Handler):
    """Serves one dump."""

    def __init__(self, context: AgentContext, channel: Channel, *, wait: bool) -> None:
        self._context = context
        self._channel = channel
        self._wait = wait
        self._shells = [shell for shell in context.shells.values() if isinstance(shell, Shell)]
        self._data = b""
        self._sent = 0
        self._opened = self._over = False
        for shell in self._shells:
            shell.hold()
        self._task = context.loop.create_task(self._take(), name="dump of the shells")

    async def _take(self) -> None:
        try:
            while self._wait and not all(self._is_idle(shell) for shell in self._shells):
                await asyncio.sleep(_CHECK_S)
            for shell in self._shells:
                shell.request_state()
            data = await save_shells(self._context) if self._shells else b""
            lost = [*_commands(self._context), *_processes(self._context)]
            for shell in self._shells:
                lost += _descriptors(shell)
            if len(data) > MOST_BYTES:
                reason = f"the states of all shells together have more than {MOST_BYTES >> 20} MiB"
                data, lost = b"", [*lost, *(_row("shell", shell.name, reason) for shell in self._shells)]
            self._data, self._opened = data, True
            self._channel.send(Opened(self._channel.number, {"bytes": len(data), "lost": lost[:MOST_LOST]}))
            self._pump()
        except Exception:  # the client of this channel must get an answer
            log.exception("the states of the shells cannot be taken")
            self._release()
            self._channel.send(Failed(self._channel.number, HoldfastError("internal", "the states of the shells cannot be taken").to_map()))

    def _is_idle(self, shell: Shell) -> bool:
        """Whether it runs nothing and has written its state; one that has ended is no concern."""
        if self._context.shells.get(shell.name) is not shell:
            return True
        shell.request_state()
        return not shell.runs and shell.is_saved

    def _pump(self) -> None:
        while not self._over and self._opened and self._sent < len(self._data):
            room = min(self._channel.room(), DATA_BYTES)
            if room <= 0:
                return
            piece = self._data[self._sent : self._sent + room]
            self._sent += len(piece)
            self._channel.send(Output(self._channel.number, STDOUT, piece))

    def writable(self) -> None:
        """Credit returned; or the client is gone, and does not copy files any more."""
        if self._channel.attached:
            self._pump()
        else:
            self._release()

    def close(self, detach: bool) -> None:
        """The client has what it needs."""
        self._release()
        self._channel.send(Closed(self._channel.number, {}))

    def drop(self) -> None:
        """The channel was removed."""
        self._release()

    def _release(self) -> None:
        if self._over:
            return
        self._over, self._data = True, b""
        if self._task is not asyncio.current_task():
            self._task.cancel()
        for shell in self._shells:
            shell.release()


def _row(kind: str, name: str, reason: str) -> dict[str, str]:
    return {"kind": kind, "name": name.encode("utf-8", "replace").decode()[:_NAME], "reason": reason}


def _commands(context: AgentContext) -> Iterator[dict[str, str]]:
    terminals = list(context.terminals.values())
    for record in context.records.running():
        if record.owner in terminals:
            continue
        if record.lasting:
            yield _row("command", record.command_id, "the image's own command is started anew")
        elif record.started:
            yield _row("command", record.command_id, "it was running")
        else:
            yield _row("command", record.command_id, "it was waiting for its shell")
    for name in context.terminals:
        yield _row("terminal", name, "programs on terminals, and keys that were typed, do not continue")


def _processes(context: AgentContext) -> Iterator[dict[str, str]]:
    known = {getattr(owner, "pid", 0) for owner in (*context.commands, *context.terminals.values())}
    for pid in context.started_processes():
        if pid not in known:
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read(_NAME).replace(b"\0", b" ").decode("utf-8", "replace").strip()
            except OSError:
                continue  # it has ended
            yield _row("process", f"{pid} {words}".strip(), "processes do not continue")


def _descriptors(shell: Shell) -> Iterator[dict[str, str]]:
    """What the shell's script has opened by ``exec 3<file``, for example."""
    dialect, ends = shell.process.dialect, shell.process.descriptors
    own = {*dialect.private.all, *dialect.inherited.all, SH_FEED, _BASH_OWN, 0, 1, 2}
    pipes = {f"pipe:[{os.fstat(end).st_ino}]" for end in (ends.feed, ends.status, ends.control.pipe)}  # a shell may have copies of these
    folder = f"/proc/{shell.pid}/fd"
    try:
        numbers = sorted(int(name) for name in os.listdir(folder))
    except (OSError, ValueError):
        return
    for opened in numbers:
        try:
            target = os.readlink(f"{folder}/{opened}")
        except OSError:
            continue
        if opened not in own and target not in pipes and not target.startswith("/memfd:holdfast"):
            yield _row("descriptor", f"{shell.name}: {opened} -> {target}", "open descriptors of a shell do not continue")


def lost_rows(rows: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """The rows in the form in which both channels report them."""
    return [_row(*row) for row in rows[:MOST_LOST]]
