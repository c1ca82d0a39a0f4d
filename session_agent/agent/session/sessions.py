"""The sessions of one sandbox: which exist, who is attached to each, and what serves their channels.

Owns the table of sessions, fencing, and the lifetime of detached sessions. Events of the pure state machine become
calls on handlers here. It does not know sockets (``connection``) nor what runs (``handlers``). Called by ``connection`` and ``server``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from holdfast_wire.agent_session import AgentSession, check_hello
from holdfast_wire.errors import HoldfastError
from holdfast_wire.events import Delivered, Dropped, Event, Retired, Writable
from holdfast_wire.frames import Close, Exited, Fact, Failed, Hello, Open, Resize, Run, Signal, Write
from holdfast_wire.halves import ByteCounter
from holdfast_wire.limits import SESSIONS, UNACKED_MEMORY_SHARE, UNACKED_SANDBOX_BYTES, UNACKED_SESSION_BYTES, Timing

from .channels import Factory, Handler
from .large_params import PACKED, Gathering

if TYPE_CHECKING:
    from session_agent.agent.context import AgentContext

log = logging.getLogger("session_agent.agent.session.sessions")

_COMMAND_KINDS = frozenset({"command", "follow", "shell", "terminal"})
_BOOKKEEPING = frozenset({Writable, Delivered, Retired, Dropped})
"""Events that no client requested."""
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
"""What each event of a channel asks of its handler."""


class Carrier(Protocol):
    """What a held session needs of the connection that carries it."""

    def wake(self, *, now: bool) -> None:
        """Something is to be sent: at once, or when the loop comes round."""
        ...

    def fence(self) -> None:
        """A later connection holds the session now: close."""
        ...


class _Channel:
    """A handler's view of its channel; see ``channels.Channel``."""

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
    def crowded(self) -> bool:
        return self._held.session.room(self.number) > 0 and self._held.room(self.number) <= 0

    def consume(self, size_bytes: int) -> None:
        self._held.session.consume(self.number, size_bytes)
        self._held.wake()


class UnackedQuota:
    """What all sessions hold of what was sent and is not acknowledged, and who waits for that to be less.

    Each has ``UNACKED_SESSION_BYTES`` of its own, so that one that reads nothing stops no other.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.whole = ByteCounter()
        self.announced = ByteCounter()
        """Parameters that are on their way (``large_params``)."""
        self.starved: dict[HeldSession, None] = {}
        self._limit_bytes = limit_bytes

    def room(self, counter: ByteCounter) -> int:
        """Bytes that may be sent on a session now."""
        return max(UNACKED_SESSION_BYTES - counter.held, self._limit_bytes - self.whole.held)

    def feed(self) -> None:
        """Let those go on who found no room and now have some."""
        for held in [held for held in self.starved if self.room(held.session.counter) > 0]:
            self.starved.pop(held, None)
            held.feed()


class HeldSession:
    """One session with its handlers. It lives on while no client is attached."""

    def __init__(
        self, session: AgentSession, context: AgentContext, factories: Mapping[str, Factory], total: UnackedQuota | None = None
    ) -> None:
        self.session = session
        self._total = total or UnackedQuota(UNACKED_SANDBOX_BYTES)
        self._starved: dict[int, None] = {}
        self.connection: Carrier | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.detached_at = 0.0
        self._context = context
        self._factories = factories
        self._handlers: dict[int, Handler] = {}
        self._flows: set[int] = set()
        """Channels that carry bytes and no command: that a client takes them is use of the sandbox."""

    def wake(self, *, now: bool = False) -> None:
        """Let the connection, if there is one, send what is waiting."""
        if self.connection is not None:
            self.connection.wake(now=now)

    def dispatch(self, now: float) -> None:
        """Hand the session's events to the handlers; ``now`` by the loop's clock."""
        for event in self.session.events():
            number: int = getattr(event, "channel", 0)
            try:
                self._handle(number, event, now)
            except HoldfastError as error:
                self._fail(number, error)
            except Exception:
                log.exception("the handler of channel %d failed on %s", number, type(event).__name__)
                self._fail(number, HoldfastError("internal", "the agent failed to serve this request"))
        if self._total.starved:
            self._total.feed()

    def room(self, number: int) -> int:
        """Bytes that the agent can hold for the channel, whatever credit it has. At 0 it is ``fed`` as soon as there are more."""
        room = self._total.room(self.session.counter)
        if room <= 0:
            self._starved[number] = None
            self._total.starved[self] = None
        return room

    def feed(self) -> None:
        """There is room again: those that found none go on, one after the other."""
        starved, self._starved = self._starved, {}
        while starved and self._total.room(self.session.counter) > 0:
            number = next(iter(starved))
            del starved[number]
            try:
                self._handle(number, Writable(number), self._context.now())
            except HoldfastError as error:
                self._fail(number, error)
            except Exception:
                log.exception("the handler of channel %d failed to go on", number)
        self._starved = {**starved, **self._starved}
        if self._starved:
            self._total.starved[self] = None

    def detached(self) -> None:
        """The connection is gone: handlers may now spool."""
        self.session.disconnected()
        for number, handler in list(self._handlers.items()):
            try:
                handler.writable()
            except Exception:
                log.exception("the handler of channel %d failed to detach", number)

    def end(self) -> None:
        """The session is over: every handler lets go of its channel."""
        for handler in self._handlers.values():
            handler.drop()
        self._handlers.clear()
        self._flows.clear()
        self._starved.clear()
        self.session.counter.clear()
        self._total.feed()

    def _handle(self, number: int, event: Event, now: float) -> None:
        kind = type(event)
        handler = self._handlers.get(number)
        if handler is None:
            if type(event) is Open:
                self._context.used_at = now
                self._open(number, event)
            return
        if kind not in _BOOKKEEPING or number in self._flows:
            self._context.used_at = now
        if kind is Retired or kind is Dropped:
            del self._handlers[number]
            self._flows.discard(number)
        _ACTIONS[kind](handler, event)

    def _open(self, number: int, event: Open) -> None:
        factory = self._factories.get(event.kind)
        if factory is None:
            raise HoldfastError("unsupported", f"this agent has no channels of kind {event.kind!r}")
        channel = _Channel(self, number, event.params)
        if event.kind not in _COMMAND_KINDS:
            self._flows.add(number)
        if PACKED in event.params:

            def opener(params: dict[str, Any]) -> Handler:
                return factory(self._context, _Channel(self, number, params))

            self._handlers[number] = Gathering(channel, opener, self._total.announced)
        else:
            self._handlers[number] = factory(self._context, channel)

    def _fail(self, number: int, error: HoldfastError) -> None:
        handler = self._handlers.get(number)
        try:
            self.session.send(Failed(number, error.to_map()))
        except HoldfastError:
            return  # the channel had ended before: no client to notify
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

    def attach(self, hello: Hello, connection: Carrier, now: float) -> HeldSession:
        """The session that ``hello`` asks for, carried by ``connection`` from now on. Raises ``HoldfastError`` to refuse."""
        check_hello(hello)
        held = self._held.get(hello.session_id)
        if held is None:
            if hello.agent_epoch:
                raise HoldfastError(
                    "session_lost",
                    "the session agent is not the one this session began with"
                    if hello.agent_epoch != self.agent_epoch
                    else "the session has expired at the agent",
                )
            held = self._create(hello)
        try:
            held.session.attach(hello, now)
        except HoldfastError:
            if not held.session.generation:  # made for this Hello, which was none
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
        return held

    def detach(self, held: HeldSession, connection: Carrier, *, goodbye: bool) -> None:
        """``connection`` is gone. If it still carried the session, the session begins to age.

        After a ``goodbye`` (PROTOCOL §3.9) a session without live channels goes at once: one-off requests would fill the table.
        """
        if held.connection is not connection:
            return
        held.connection = None
        held.detached()
        if goodbye and held.session.idle:
            self._expire(held)
            return
        loop = asyncio.get_running_loop()
        held.detached_at = loop.time()
        held.expiry = loop.call_later(self._timing.detached_ttl_s, self._expire, held)

    def announce(self, deadline_s: float, reason: str) -> None:
        """Tell every attached client that the sandbox ends."""
        self._ending = (deadline_s, reason)
        for held in self._held.values():
            held.session.go_away(deadline_s, 0.0, reason)
            held.wake(now=True)

    def settled(self) -> bool:
        """Whether no client has anything to come back for, or to wait for, that was sent already."""
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
            self._expire(self._dispensable())
        session = AgentSession(hello.session_id, hello.secret, self.agent_epoch, self._timing, self._total.whole)
        session.info = self._info
        held = self._held[hello.session_id] = HeldSession(session, self._context, self._factories, self._total)
        return held

    def _dispensable(self) -> HeldSession:
        """The session that a new one displaces when the table is full (PROTOCOL §3.9). Raises ``session_limit`` when there is none.

        Never one that is attached or whose client may still be trying to come back, however many sessions others ask for.
        """
        detached = [held for held in self._held.values() if held.connection is None]
        settled = asyncio.get_running_loop().time() - self._timing.detached_least_s
        leaving = [held for held in detached if held.session.empty] or [held for held in detached if held.detached_at <= settled]
        if not leaving:
            raise HoldfastError(
                "session_limit",
                f"{SESSIONS} sessions are attached to this sandbox, or were a moment ago",
                hint="close sessions that are not needed, or come again in two minutes",
            )
        return min(leaving, key=lambda held: held.detached_at)

    def _expire(self, held: HeldSession) -> None:
        if held.expiry is not None:
            held.expiry.cancel()
        self._held.pop(held.session.session_id, None)
        held.end()


def unacked_bytes(memory_bytes: int) -> int:
    """What all sessions may hold together in a sandbox of so much memory (0: not known), bytes."""
    return min(UNACKED_SANDBOX_BYTES, memory_bytes // UNACKED_MEMORY_SHARE) if memory_bytes else UNACKED_SANDBOX_BYTES
