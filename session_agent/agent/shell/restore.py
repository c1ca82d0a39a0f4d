"""The channel kind ``restore``: starts living shells with the states that ``dump`` has taken in another sandbox (PROTOCOL §7.14).

Owns the channel, and how what is missing is reported, which is no error; ``carry`` reads the states. A shell that exists already is left as
it is, so a request may be repeated.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Failed

from session_agent.agent.context import AgentContext
from session_agent.agent.session.channels import Channel, Handler

from .carry import start_shells
from .dump import MOST_BYTES, lost_rows

log = logging.getLogger("session_agent.agent.shell.restore")

_LISTED_BY_DUMP = "command "
"""What begins the name of a process: the dump has listed those."""


def open_restore(context: AgentContext, channel: Channel) -> RestoreHandler:
    """``restore {}``, then the bytes of a dump: Closed{shells, lost}."""
    return RestoreHandler(context, channel)


class RestoreHandler(Handler):
    """Serves one restore."""

    def __init__(self, context: AgentContext, channel: Channel) -> None:
        self._context = context
        self._channel = channel
        self._data = bytearray()
        self._over = False
        self._task: asyncio.Task[None] | None = None

    def write(self, data: bytes, eof: bool) -> None:
        """The bytes of the dump."""
        self._channel.consume(len(data))
        if self._over or self._task is not None:
            return
        self._data += data
        if len(self._data) > MOST_BYTES:
            self._fail(HoldfastError("request_too_large", f"the states of shells may have {MOST_BYTES >> 20} MiB"))
        elif eof:
            self._task = self._context.loop.create_task(self._start(bytes(self._data)), name="restore of the shells")
            self._data.clear()

    async def _start(self, data: bytes) -> None:
        present = set(self._context.shells)
        try:
            started = await start_shells(self._context, data) if data else []
        except HoldfastError as error:
            self._fail(error)
            return
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:  # the bytes are a client's
            log.info("a dump cannot be read: %r", error)
            self._fail(HoldfastError("invalid_argument", "the bytes are not a dump of shells of this version"))
            return
        lost = list[tuple[str, str, str]]()
        for shell in started:
            if shell.error is not None and shell.name not in present:
                lost.append(("shell", shell.name, shell.error.message))
            lost += [
                ("state", f"{shell.name}: {name}", "the new shell does not have it")
                for name in shell.lost
                if not name.startswith(_LISTED_BY_DUMP)
            ]
        count = sum(shell.error is None for shell in started)
        self._finish(Closed(self._channel.number, {"shells": count, "lost": lost_rows(lost)}))

    def close(self, detach: bool) -> None:
        """The client does not wait any longer; shells that were started continue."""
        self._fail(HoldfastError("cancelled", "the restore was cancelled"))

    def drop(self) -> None:
        """The channel was removed; shells that were started continue."""
        self._over = True
        self._data.clear()

    def _fail(self, error: HoldfastError) -> None:
        self._finish(Failed(self._channel.number, error.to_map()))

    def _finish(self, fact: Closed | Failed) -> None:
        if not self._over:
            self._over = True
            self._data.clear()
            self._channel.send(fact)
