"""The sessions of one sandbox, their connections and the handlers of their channels.

Owns the table of sessions, fencing, the lifetime of detached sessions, and the memory of unacknowledged frames. Turns the events of
``AgentSession``, the pure state machine, into calls of handlers. Knows neither sockets (``connection``) nor what the handlers do. Called
by ``connection`` and ``server``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Close, Exited, Fact, Failed, Hello, Open, Resize, Run, Signal, Write
from holdfast_wire.limits import SESSIONS, UNACKED_MEMORY_SHARE, UNACKED_SANDBOX_BYTES, UNACKED_SESSION_BYTES, Timing
from holdfast_wire.session.agent_session import AgentSession, check_hello
from holdfast_wire.session.events import Delivered, Dropped, Event, Retired, Writable
from holdfast_wire.session.halves import ByteCounter

from .channels import Channel, Factory, Handler
from .large_params import PACKED, Gathering

if TYPE_CHECKING:
    from session_agent.agent.context import AgentContext

log = logging.getLogger("session_agent.agent.session.sessions")

_COMMAND_KINDS = frozenset({"command", "follow", "shell", "terminal"})
_WATCHING = "activity"
"""The kind of channel that is no use of the sandbox."""
_GATEWAYS_OWN = "gateway-"
"""The sessions of a gateway itself begin with this."""
_BOOKKEEPING = frozenset({Writable, Delivered, Retired, Dropped})
"""Events that are not requests of a client."""
_ACTIONS: dict[type[Any], Callable[[Handler, Any], None]] = {
    Run: lambda handler, event: handler.run(event.command_id, event.params),
    Write: lambda handler, event: handler.write(event.data, event.eof),
    Signal: lambda handler, event: handler.signal(event.name),
    Resize: lambda handler, event: handler.resize(event.rows, event.columns),
    Close: lambda handler, event: handler.close(event.detach),
    Writable: lambda handler, event: handler.writable(),
    Delivered: lambda handler, event: handler.delivered(event.command_id),
    Retired: lambda handler, event: None,
    Dropped: lambda handler, event: handler.drop(),
}
"""The method of a handler for each event of its channel."""


class SessionConnection(Protocol):
    """The connection of a session, as the session uses it."""

    def wake(self, *, now: bool) -> None:
        """Frames wait to be sent: send them now, or in the next iteration of the loop."""
        ...

    def fence(self) -> None:
        """A newer connection has taken over the session: close this one."""
        ...


class _Channel:
    """Implements ``channels.Channel``, the interface that a handler uses."""

    __slots__ = ("_held", "number", "params")

    def __init__(self, held: HeldSession, number: int, params: dict[str, Any]) -> None:
        self._held = held
        self.number = number
        self.params = params

    @property
    def attached(self) -> bool:
        return self._held.session.attached

    def send(self, fact: Fact) -> None:
        held = self._held
        held.session.send(fact)
        if held.connection is not None:
            held.connection.wake(now=type(fact) is Exited)

    def queue(self, fact: Fact) -> None:
        self._held.session.send(fact)

    def wake(self) -> None:
        self._held.wake()

    def room(self) -> int:
        credit = self._held.session.room(self.number)
        return credit if credit <= 0 else min(credit, self._held.room(self.number))

    @property
    def is_memory_full(self) -> bool:
        return self._held.session.room(self.number) > 0 and self._held.room(self.number) <= 0

    @property
    def settled(self) -> bool:
        return self._held.session.settled

    def consume(self, size_bytes: int) -> None:
        self._held.session.consume(self.number, size_bytes)
        self._held.wake()

    def may_accept(self) -> bool:
        return self._held.session.may_accept(self.number)

    def accept(self, info: dict[str, Any], serving: Callable[[Channel], Handler]) -> None:
        self._held.accept(self.number, info, serving)


class UnackedQuota:
    """The limit on sent but unacknowledged bytes of all sessions together, and the sessions that wait for room.

    Each session may always hold ``UNACKED_SESSION_BYTES``, so a client that reads nothing does not block other sessions.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.whole = ByteCounter()
        self.announced = ByteCounter()
        """Bytes of large parameters that were announced and have not arrived yet (``large_params``)."""
        self.waiting: dict[HeldSession, None] = {}
        self._limit_bytes = limit_bytes

    def room(self, counter: ByteCounter) -> int:
        """Bytes that may be sent now on the session with this counter."""
        return max(UNACKED_SESSION_BYTES - counter.held, self._limit_bytes - self.whole.held)

    def resume_waiting(self) -> None:
        """Resume the waiting sessions that have room now."""
        for held in [held for held in self.waiting if self.room(held.session.counter) > 0]:
            self.waiting.pop(held, None)
            held.resume_waiting()


class HeldSession:
    """One session with its handlers. It is kept while no client is attached."""

    def __init__(
        self, session: AgentSession, context: AgentContext, factories: Mapping[str, Factory], total: UnackedQuota | None = None
    ) -> None:
        self.session = session
        self._total = total or UnackedQuota(UNACKED_SANDBOX_BYTES)
        self._waiting: dict[int, None] = {}
        """Channels that had something to send and found no room."""
        self.connection: SessionConnection | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.detached_at = 0.0
        self._context = context
        self._factories = factories
        self._handlers: dict[int, Handler] = {}
        self._flows: set[int] = set()
        """Channels that carry files or tunnels: while a client takes their bytes the sandbox is in use."""
        self._watching: set[int] = set()
        """Channels whose requests are no use of the sandbox."""

    def wake(self, *, now: bool = False) -> None:
        """Let the connection, if there is one, send the waiting frames."""
        if self.connection is not None:
            self.connection.wake(now=now)

    def dispatch(self, now: float) -> None:
        """Pass the session's events to the handlers; ``now`` is the loop's time."""
        for event in self.session.events():
            self._handle(getattr(event, "channel", 0), event, now)
        if self._total.waiting:
            self._total.resume_waiting()

    def accept(self, listener: int, info: dict[str, Any], serving: Callable[[Channel], Handler]) -> None:
        """Open a channel for a connection of ``listener``."""
        self._context.used_at = self._context.now()
        number = self.session.accept(listener, info)
        self._flows.add(number)
        self._handlers[number] = serving(_Channel(self, number, {}))
        self.wake()

    def room(self, number: int) -> int:
        """Bytes that the agent can hold for the channel, regardless of its credit. At 0, ``writable`` is called when there is room."""
        room = self._total.room(self.session.counter)
        if room <= 0:
            self._waiting[number] = None
            self._total.waiting[self] = None
        return room

    def resume_waiting(self) -> None:
        """Resume the channels that found no room, one after the other while there is some."""
        waiting, self._waiting = self._waiting, {}
        while waiting and self._total.room(self.session.counter) > 0:
            number = next(iter(waiting))
            del waiting[number]
            self._handle(number, Writable(number), self._context.now())
        self._waiting = {**waiting, **self._waiting}
        if self._waiting:
            self._total.waiting[self] = None

    def detached(self) -> None:
        """The connection was closed: notify the handlers, whose output is spooled from now on."""
        self.session.disconnected()
        for number, handler in list(self._handlers.items()):
            try:
                handler.writable()
            except Exception:
                log.exception("the handler of channel %d failed to detach", number)

    def end(self) -> None:
        """End the session: every handler stops using its channel."""
        for handler in self._handlers.values():
            handler.drop()
        self._handlers.clear()
        self._flows.clear()
        self._watching.clear()
        self._waiting.clear()
        self.session.counter.clear()
        self._total.resume_waiting()

    def _handle(self, number: int, event: Event, now: float) -> None:
        """Pass one event to the handler of its channel; an error of the handler ends the channel."""
        try:
            kind = type(event)
            handler = self._handlers.get(number)
            if handler is None:
                if type(event) is Open:
                    if event.kind != _WATCHING:
                        self._context.used_at = now
                    self._open(number, event)
                return
            if number in self._flows or (kind not in _BOOKKEEPING and number not in self._watching):
                self._context.used_at = now
            if kind is Retired or kind is Dropped:
                del self._handlers[number]
                self._flows.discard(number)
                self._watching.discard(number)
            _ACTIONS[kind](handler, event)
        except HoldfastError as error:
            self._fail(number, error)
        except Exception:
            log.exception("the handler of channel %d failed on %s", number, type(event).__name__)
            self._fail(number, HoldfastError("internal", "the agent failed to serve this request"))

    def _open(self, number: int, event: Open) -> None:
        factory = self._factories.get(event.kind)
        if factory is None:
            raise HoldfastError("unsupported", f"this agent has no channels of kind {event.kind!r}")
        channel = _Channel(self, number, event.params)
        if event.kind == _WATCHING:
            self._watching.add(number)
        elif event.kind not in _COMMAND_KINDS:
            self._flows.add(number)
        if PACKED in event.params:

            def opener(params: dict[str, Any]) -> Handler:
                handler = self._handlers[number] = factory(self._context, _Channel(self, number, params))
                return handler

            self._handlers[number] = Gathering(channel, opener, self._total.announced)
        else:
            self._handlers[number] = factory(self._context, channel)

    def _fail(self, number: int, error: HoldfastError) -> None:
        handler = self._handlers.get(number)
        try:
            self.session.send(Failed(number, error.to_map()))
        except HoldfastError:
            return  # the channel had ended already
        if handler is not None:
            handler.drop()


class Sessions:
    """All sessions of this agent."""

    def __init__(
        self,
        context: AgentContext,
        factories: Mapping[str, Factory],
        agent_epoch: str,
        info: dict[str, Any],
        timing: Timing | None = None,
    ) -> None:
        self.agent_epoch = agent_epoch
        self._context = context
        self._factories = factories
        self._info = info
        self._timing = timing or Timing()
        self._held: dict[str, HeldSession] = {}
        self._total = UnackedQuota(unacked_bytes(context.settings.memory_bytes))
        self._ending: tuple[float, str] | None = None

    def attach(self, hello: Hello, connection: SessionConnection, now: float) -> HeldSession:
        """Find or create the session of ``hello`` and attach ``connection`` to it. Raises ``HoldfastError`` to refuse."""
        check_hello(hello)
        held = self._held.get(hello.session_id)
        if held is None:
            if hello.agent_epoch:
                raise HoldfastError(
                    "session_lost",
                    "the sandbox's agent was restarted since this session began"
                    if hello.agent_epoch != self.agent_epoch
                    else "the session has expired at the agent",
                )
            held = self._create(hello)
        try:
            held.session.attach(hello, now)
        except HoldfastError:
            if not held.session.generation:  # it was created for this Hello, which is invalid
                self._expire(held)
            raise
        if held.connection is not None and held.connection is not connection:
            held.connection.fence()
        held.connection = connection
        if self._ending is not None:
            held.session.go_away(self._ending[0], 0.0, self._ending[1])
        if held.expiry is not None:
            held.expiry.cancel()
            held.expiry = None
        self._note("resumed" if held.session.generation > 1 else "attached", held, sum(hello.received.values()))
        return held

    def _note(self, kind: str, held: HeldSession, received: int | None = None) -> None:
        """Note for those who follow the sandbox that a client came or went. ``received``: how many bytes it has of its channels."""
        journal, session_id = self._context.records.journal, held.session.session_id
        if journal is not None and not session_id.startswith(_GATEWAYS_OWN):
            facts = {"session": session_id[:8], "generation": held.session.generation}
            journal.note(kind, facts if received is None else facts | {"received_bytes": received})

    def detach(self, held: HeldSession, connection: SessionConnection, *, goodbye: bool) -> None:
        """``connection`` was closed. If it was attached to the session, the session expires after a while.

        After a ``goodbye`` (PROTOCOL §3.9) a session without live channels is removed at once: one-off requests would fill the table.
        """
        if held.connection is not connection:
            return
        held.connection = None
        self._note("detached" if goodbye else "lost", held)
        held.detached()
        if goodbye and held.session.idle:
            self._expire(held)
            return
        loop = asyncio.get_running_loop()
        held.detached_at = loop.time()
        held.expiry = loop.call_later(self._timing.detached_ttl_s, self._expire, held)

    def announce(self, deadline_s: float, reason: str) -> None:
        """Send GoAway to every attached client: the sandbox ends."""
        self._ending = (deadline_s, reason)
        for held in self._held.values():
            held.session.go_away(deadline_s, 0.0, reason)
            held.wake(now=True)

    def settled(self) -> bool:
        """Whether every client has acknowledged all that was sent to it."""
        return all(held.session.settled for held in self._held.values())

    def empty(self) -> bool:
        """Whether no session has a channel."""
        return all(held.session.empty for held in self._held.values())

    def close(self) -> None:
        """End all sessions."""
        for held in list(self._held.values()):
            self._expire(held)

    def _create(self, hello: Hello) -> HeldSession:
        if len(self._held) >= SESSIONS:
            self._expire(self._session_to_replace())
        session = AgentSession(hello.session_id, hello.secret, self.agent_epoch, self._timing, self._total.whole)
        session.info = self._info
        held = self._held[hello.session_id] = HeldSession(session, self._context, self._factories, self._total)
        return held

    def _session_to_replace(self) -> HeldSession:
        """The session that is removed for a new one when the table is full (PROTOCOL §3.10). Raises ``session_limit`` if there is none.

        Never one that is attached, or that was detached so recently that its client may still try to resume it.
        """
        detached = [held for held in self._held.values() if held.connection is None]
        settled = asyncio.get_running_loop().time() - self._timing.detached_least_s
        leaving = [held for held in detached if held.session.empty] or [held for held in detached if held.detached_at <= settled]
        if not leaving:
            raise HoldfastError(
                "session_limit",
                f"{SESSIONS} sessions are attached to this sandbox, or were until very recently",
                hint="close sessions that are not needed, or try again in two minutes",
            )
        return min(leaving, key=lambda held: held.detached_at)

    def _expire(self, held: HeldSession) -> None:
        if held.expiry is not None:
            held.expiry.cancel()
        self._held.pop(held.session.session_id, None)
        held.end()


def unacked_bytes(memory_bytes: int) -> int:
    """Bytes that all sessions may hold unacknowledged together, for a sandbox's memory in bytes (0: not known)."""
    return min(UNACKED_SANDBOX_BYTES, memory_bytes // UNACKED_MEMORY_SHARE) if memory_bytes else UNACKED_SANDBOX_BYTES
