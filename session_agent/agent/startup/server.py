"""Running an agent: listen, serve connections, shut down in order.

Owns the listening socket, the count of connections and the shutdown order. Two entry points: ``main`` for an agent that is a container's
command, ``serve_forked`` for one that the node has forked, warm, into a sandbox. ``session.connection`` owns the protocol of a connection.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - asyncio fetches it at first use, when the agent's root holds no Python
import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from holdfast_wire import PROTOCOL_VERSION
from holdfast_wire.errors import HoldfastError
from holdfast_wire.fast_dataclass import replace
from holdfast_wire.limits import SESSIONS

from session_agent.agent.container import given_environment, hide_memory, wipe_settings
from session_agent.agent.context import DEFAULT_WORKDIR, AgentContext
from session_agent.agent.process.ulimits import raise_ulimits
from session_agent.agent.session.adoption import Adoption
from session_agent.agent.session.channels import Factory
from session_agent.agent.session.connection import Connection
from session_agent.agent.session.sessions import Sessions
from session_agent.agent.settings import AgentSettings

from .handlers import LazyHandlers

log = logging.getLogger("session_agent.agent.startup.server")

CONNECTIONS = SESSIONS + 64
"""Most connections at once: one for each session, and some whose Hello has not arrived or that are about to be fenced."""
SETTLE_S = 0.02
"""How long after it listens a container's agent imports further modules: waiting connections are answered first."""
FINISH_SHARE = 0.5
"""The part of the grace period in which running commands may finish before they are sent SIGTERM."""
ENDED_GRACE_S = 2.0
"""The grace period of a sandbox that ends with the command that it was created for: half of it for other commands that run."""
NOTICE_S = 1.0
"""The part of the grace period that is reserved for notifying every client of the end."""


class AgentServer:
    """One running agent. Implements ``connection.Host``. ``sole``: this process does nothing else."""

    def __init__(self, settings: AgentSettings, factories: Mapping[str, Factory] | None = None, *, sole: bool = False) -> None:
        self.token = settings.token
        self.identity = settings.pod_uid
        self.agent_epoch = os.urandom(16).hex()
        self.context = AgentContext(settings, sole=sole)
        self.taken = False
        self._info = {"sandbox_id": settings.sandbox_id, "incarnation": settings.incarnation, "protocol": PROTOCOL_VERSION}
        self.sessions = Sessions(self.context, LazyHandlers() if factories is None else factories, self.agent_epoch, self._info)
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    def adopt(self, adoption: Adoption, connection: Connection) -> None:
        if self.taken:
            raise HoldfastError("sandbox_exists", "this agent already serves a sandbox", hint="")
        self.taken = True
        self.context.used_at = self.context.now()
        settings = self.context.settings
        self.context.settings = replace(
            settings,
            sandbox_id=adoption.sandbox_id,
            incarnation=adoption.incarnation,
            token=adoption.token,
            env={**settings.env, **adoption.env},
            labels={**settings.labels, **adoption.labels},
            workdir=settings.workdir if adoption.workdir is None else adoption.workdir,
            user=settings.user if adoption.user is None else adoption.user,
        )
        self.token = adoption.token
        self._info.update(sandbox_id=adoption.sandbox_id, incarnation=adoption.incarnation)
        for other in self._connections - {connection}:
            other.abort()  # they used the previous token
        log.info("adopted as %s", adoption.sandbox_id)

    def idle_s(self) -> float:
        return self.context.idle_s()

    def opened(self, connection: Connection) -> bool:
        if len(self._connections) >= CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    async def start(self, listener: socket.socket) -> None:
        """Start to serve the connections of ``listener``."""
        loop = asyncio.get_running_loop()
        self.context.start()
        if listener.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(lambda: Connection(self), sock=listener, backlog=128)
        else:
            self._server = await loop.create_server(lambda: Connection(self), sock=listener, backlog=128)

    async def leave(self) -> None:
        """The sandbox is being terminated from outside: announce that, and let commands finish and their results be delivered for half of
        the grace period. After that, or as soon as no command runs, all processes get SIGTERM and nearly all the remaining time to flush
        their files. A command that was still running has no outcome: its last output is sent, and its client gets `sandbox_gone` with what
        is known.
        """
        settings, loop = self.context.settings, asyncio.get_running_loop()
        deadline = loop.time() + settings.grace_s
        why = HoldfastError("sandbox_gone", "the sandbox is being terminated", reason=settings.stop_reason, detail={"started": False})
        self.context.records.refuse(why)
        self.sessions.announce(settings.grace_s, settings.stop_reason)
        if settings.entrypoint:
            from session_agent.agent.commands.entrypoint import stop_entrypoint

            stop_entrypoint(self.context)
        finish_until, terminated = loop.time() + settings.grace_s * FINISH_SHARE, False
        while loop.time() < deadline - NOTICE_S:
            if not terminated and (not self.context.runs() or loop.time() >= finish_until):
                terminated = True
                self.context.terminate()
            if not self._unfinished() and not self.context.started_processes():
                break
            await asyncio.sleep(0.02)
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.wake(now=True)
            connection.refuse(why)
        while self._connections and loop.time() < deadline:
            await asyncio.sleep(0.02)
        self.context.stop()
        self.sessions.close()

    def _unfinished(self) -> bool:
        return self.context.runs() or not self.sessions.settled() or (self.context.records.undelivered and not self.sessions.empty())


def listening_socket(address: str) -> socket.socket:
    """A bound, listening socket for ``tcp://host:port`` or ``unix:///path``. Raises ``HoldfastError`` for anything else."""
    scheme, _, rest = address.partition("://")
    if scheme == "unix" and rest:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(rest)
    elif scheme == "tcp" and rest.rpartition(":")[2].isdigit():
        host, _, port = rest.rpartition(":")
        listener = socket.create_server((host.strip("[]") or "0.0.0.0", int(port)))
    else:
        raise HoldfastError("invalid_argument", f"cannot listen on {address!r}: use tcp://host:port or unix:///path")
    listener.listen(128)
    return listener


async def _serve(settings: AgentSettings, listener: socket.socket, ready_fd: int | None) -> None:
    loop = asyncio.get_running_loop()
    warm_allocator()
    stopping = asyncio.Event()
    if ready_fd is None:  # the node ends its agents with SIGKILL; a first process that handles SIGTERM can be sent it from inside
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopping.set))  # the reaper wakes the loop
    server = AgentServer(settings, sole=True)

    def end() -> None:
        context = server.context
        context.settings = replace(context.settings, stop_reason="finished", grace_s=min(context.settings.grace_s, ENDED_GRACE_S))
        stopping.set()

    server.context.end = end
    await server.start(listener)
    if ready_fd is None:
        hide_memory()
    if settings.entrypoint:
        from session_agent.agent.commands.entrypoint import start_entrypoint

        start_entrypoint(server.context)
    if ready_fd is None:
        loop.call_later(SETTLE_S, _settle_in)
    else:
        os.write(ready_fd, b'{"ready": true}\n')
        os.close(ready_fd)
    await stopping.wait()
    await server.leave()


@functools.cache
def warm_allocator() -> None:
    """Free a large block, once for this process and all that are forked from it.

    asyncio takes 256 KiB for each receive and shrinks it; until a block of that size was freed whole, glibc maps and unmaps memory for
    every one of them, which costs a command some 15 µs (mallopt(3), M_MMAP_THRESHOLD).
    """
    bytearray(320 * 1024)


def _settle_in() -> None:
    """Imports and allocations that a container's agent does after it listens, so that no client waits for them later."""
    LazyHandlers().load()
    gc.freeze()
    gc.enable()  # the bundle starts without it


def make_directory(path: str, mode: int) -> None:
    """Create a directory and its parents if they do not exist, also behind links.

    They belong to root, whatever the agent's user is; errors are ignored.
    """
    with contextlib.suppress(OSError):
        path = os.path.realpath(path)
        parent = os.path.dirname(path)
        if parent != "/" and not os.path.lexists(parent):
            make_directory(parent, 0o755)
        os.mkdir(path, mode)
        os.chmod(path, mode)
        os.chown(path, 0, 0)


def log_to_stderr() -> None:
    """Set up logging to stderr. If it was done before the fork (``warmup``), it is not repeated."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="session_agent: %(message)s")


def serve_forked(config: dict[str, Any], listen_fd: int, ready_fd: int) -> None:
    """Serve inside the sandbox that the node has created around this process, until it is killed.

    ``config`` is read by ``AgentSettings.from_config``. The line ``{"ready": true}`` goes to ``ready_fd`` once it serves.
    """
    log_to_stderr()
    listener = socket.socket(fileno=listen_fd)
    listener.setblocking(False)
    settings = AgentSettings.from_config(config)
    if settings.workdir:
        make_directory(settings.workdir, 0o755)  # as in a container: an image may name a directory that none of its layers contains
    else:
        make_directory(DEFAULT_WORKDIR, 0o777)
    asyncio.new_event_loop().run_until_complete(_serve(settings, listener, ready_fd))  # the process ends together with the loop


def main() -> int:
    """Serve as a container's command; the exit status is 0 after SIGTERM and 78 when the settings are invalid."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="session_agent: %(message)s")
    try:
        settings = AgentSettings.from_environment(given_environment())
        wipe_settings()
        os.chdir("/")  # starting a process returns to this directory, and the user may have no permission for the image's directory
        raise_ulimits(0, settings.ulimits)
        listener = listening_socket(settings.listen)
    except (HoldfastError, OSError, ValueError) as error:
        print(f"session_agent: {error}", file=sys.stderr)
        return 78
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that asyncio does not handle it and ``_serve`` does
    asyncio.run(_serve(settings, listener, None))
    return 0
