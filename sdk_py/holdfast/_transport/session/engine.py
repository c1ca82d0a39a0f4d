"""The core of a client's session, without I/O: the session's state, its sinks, and what to do when the connection is lost.

Owns the session state machine, the map from channel to sink, the placement ticket, and the decision to resume, to leave on a
GoAway, or to give up with a typed error. No sockets, threads, tasks or clocks: the APIs (``aio``, ``threads``) call it one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeGuard

from holdfast_wire.agent_errors import reported_end
from holdfast_wire.errors import TABLE, HoldfastError, ProtocolError
from holdfast_wire.frames import Accepted, Closed, Exited, Failed, GoAway, Item
from holdfast_wire.session.client_session import ClientSession
from holdfast_wire.session.events import Attached, Lost, Silent, Writable

from holdfast._errors import error, from_map, typed
from holdfast._log import log
from holdfast._options import Options
from holdfast._requests import LargeParams
from holdfast._session_token import SessionToken
from holdfast._transport.service import Service
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.failures import LAST_LOOK_S, OWN_REASONS
from holdfast._transport.session.policy import Backoff, Verdict, breach, jitter, judge_close, judge_refusal, reports_end
from holdfast._transport.session.sink import EventFactory, Sink
from holdfast._transport.session.websocket import WebSocket

TICKET_HEADER = "X-Holdfast-Ticket"
BATCH_BYTES = 256 * 1024
STEADY_S = 5.0
PATIENCE = 3
"""A first attach is tried this many times longer if the service answers than if it cannot be reached."""
ENDED_REASONS = frozenset({"evicted", "preempted", "deleted", "node-lost"})
"""Reasons of a GoAway that announce the end of the sandbox, not of a connection (PROTOCOL §6.4)."""


class Engine:
    """One session of one client. ``ready`` is set when the session is attached or has failed for good."""

    def __init__(
        self,
        options: Options,
        sandbox_id: str,
        new_event: EventFactory,
        *,
        token: SessionToken | None = None,
        jitter: Callable[[float], float] = jitter,
    ) -> None:
        self.options = options
        self.service = Service(options)
        self.sandbox_id = sandbox_id
        self.new_event = new_event
        self.new_call: Callable[..., Call] = partial(Call, new_event=new_event)
        """Creates the commands of this session."""
        if token is None:
            self.session = ClientSession(os.urandom(16).hex(), os.urandom(32), options.timing, accepts=True)
        else:
            self.session = ClientSession(token.session_id, token.secret, options.timing, take_over=True, accepts=True)
            self.session.agent_epoch = token.agent_epoch  # an agent that has lost the session refuses it, instead of creating an empty one
        self.ready = new_event()
        self.error: HoldfastError | None = None
        self.not_holdfast = False
        """Whether the address is answered by something else than a Holdfast service, or by a proxy that blocks WebSockets."""
        self.blocked = False
        """Whether it answered with a response of its own."""
        self.leave = False
        """Whether the transport should end the current connection and resume on another one."""
        self.attached_once = False
        self._first_attempt: float | None = None
        """When the first attempt to connect began."""
        self._reached = False
        """Whether the service, or a load balancer in front of it, has answered a handshake."""
        self.resumes = 0
        self._away_s = 0.0
        self._away_since: float | None = None
        self._welcome_by: float | None = None
        """When the agent must have answered the Hello of this connection."""
        self.query: Callable[[], None] | None = None
        """Called when an agent reports the end of its sandbox: queries the service's record, then calls ``answered``."""
        self._reported: list[tuple[Sink, Failed | Exited]] = []
        """Channels that ended with such a report, and shells whose command did; at most one for each channel."""
        self._sinks: dict[int, Sink] = {}
        self._fresh: list[Sink] = []
        self._ticket = ""
        self._leave_at: float | None = None
        self._ending = False
        """Whether the agent has announced the end of the sandbox."""
        self._ends_at = 0.0
        self._down_since: float | None = None
        self._attached_at: float | None = None
        self._progressed = False
        self._cut_short = False
        """Whether the current attempt has less time than others, because the outage has nearly lasted its limit."""
        self._attempt_ends = 0.0
        """When the time of the current attempt is over."""
        self._latest: Verdict | None = None
        """Of the current outage."""
        self._was_answered = False
        """Whether the attempt before got an answer of the service."""
        self._woken = False
        """Whether another session of the client has shortened a pause of this outage."""
        self._jitter = jitter
        self._backoff = Backoff(options.backoff_base_s, options.backoff_cap_s, jitter)

    def away_s(self, now: float) -> float:
        """For how many seconds the session has had no connection since it was attached first."""
        return self._away_s + (now - self._away_since if self._away_since is not None else 0.0)

    # The connection ---------------------------------------------------------------------------------------------

    def websocket(self) -> WebSocket:
        """A new connection's framing, with the placement ticket in its request."""
        headers = {TICKET_HEADER: self._ticket} if self._ticket else {}
        return WebSocket(self.service, f"/sandboxes/{self.sandbox_id}/session", headers)

    def connected(self, headers: Mapping[str, str], now: float) -> None:
        """The handshake succeeded: send Hello."""
        self._reached = True
        ticket = headers.get(TICKET_HEADER.lower(), "")
        if ticket.isascii() and ticket.isprintable() and len(ticket) <= 4096:
            self._ticket = ticket
        self.session.connect(now)
        self._welcome_by = now + self.options.connect_timeout_s * PATIENCE

    def receive(self, messages: list[bytes], now: float) -> None:
        """Decode messages and pass their facts to the sinks. A violation of the protocol ends the session."""
        session = self.session
        try:
            for message in messages:
                session.receive(message, now)
            self._dispatch(now)
        except ProtocolError as broken:
            self.fail(breach(broken.message, broken.code))
        except HoldfastError as failure:
            self.fail(typed(failure))

    def answered(self, end: HoldfastError | None) -> None:
        """The answer to ``query``: the recorded or announced end of the sandbox, None if the service knows of none."""
        reported, self._reported = self._reported, []
        try:
            for sink, item in reported:
                if not sink.ended:  # a shell may have been closed meanwhile
                    sink.verdict = end
                    sink.fact(item)
                    sink.verdict = None
        except HoldfastError as failure:
            self.fail(typed(failure))

    def tick(self, now: float) -> None:
        """Handle the deadlines that have passed."""
        self.session.tick(now)
        if self._leave_at is not None and now >= self._leave_at:
            self.leave = True
        if self._down_since is not None and not self.session.attached and now >= self._down_since + self._outage_limit_s():
            self.leave = True  # a service that accepts the connection and sends no Welcome counts as unreachable
        if self._welcome_by is not None and now >= self._welcome_by:
            self.leave = True
        self._dispatch(now)

    def deadline(self) -> float | None:
        """The latest time at which ``tick`` has to be called."""
        due = self.session.deadline()
        if self._down_since is not None and not self.session.attached and not self.leave:
            last = self._down_since + self._outage_limit_s()
            due = last if due is None else min(due, last)
        if self._welcome_by is not None and not self.leave:
            due = self._welcome_by if due is None else min(due, self._welcome_by)
        if self._leave_at is not None and not self.leave:
            return self._leave_at if due is None else min(due, self._leave_at)
        return due

    def outgoing(self) -> list[bytes]:
        """The messages to write now, about ``BATCH_BYTES``."""
        if self._fresh and self.session.attached:
            for sink in self._fresh:
                sink.transmitted = True
            self._fresh.clear()
        return self.session.outgoing(BATCH_BYTES)

    def close_code(self) -> int:
        """The code to close the connection with: after 1000 the agent may forget the session, after 1001 not."""
        if self.error is None:
            return 1001
        kind = TABLE.get(self.error.code)
        if self.error.reason in OWN_REASONS:
            return 1000
        return kind.close_code if kind and kind.close_code >= 4000 else 1001

    def broken(self, websocket: WebSocket | None, why: str, now: float) -> float | None:
        """The connection ended, or could not be opened. Returns the seconds until the next attempt; None if the session has ended."""
        self.session.disconnected()
        self._welcome_by = None
        if self._away_since is None and self.attached_once:
            self._away_since = now
        if self.error is not None:
            return None
        attached_at, self._attached_at = self._attached_at, None
        if attached_at is not None and (self._progressed or now - attached_at > STEADY_S):
            # That connection worked. Connections that break at once use up the time limit of the same outage.
            self._down_since = None
            self._backoff.reset()
        verdict = self._judge(websocket, why)
        self.leave, self._leave_at = False, None
        self._reached = self._reached or (websocket is not None and websocket.refusal is not None and not verdict.not_holdfast)
        if self._down_since is None:
            self._down_since = now if self.attached_once or self._first_attempt is None else self._first_attempt
            if self.attached_once:
                self._log("warning", "connection lost: %s", verdict.why.message)
        if websocket is not None and websocket.closed is not None and reports_end(websocket.closed):
            self._ending, self._ends_at = True, now
        limit_s = self._outage_limit_s()
        if verdict.fatal:
            self.fail(verdict.why)
            return None
        answered = websocket is not None and (websocket.open or (websocket.refusal is not None and websocket.refusal.status > 0))
        if self._latest is not None and not answered and (self._was_answered or (self._cut_short and now >= self._attempt_ends)):
            # One attempt without an answer, or with too little time for one, does not show that nothing answers: those before it count.
            verdict = self._latest
        self._latest, self._was_answered = verdict, answered
        spent = now - self._down_since
        definite = verdict.not_holdfast and verdict.answered and not self.attached_once
        if definite or spent >= limit_s:
            self.not_holdfast = verdict.not_holdfast and not self.attached_once
            self.blocked = definite
            # Of a sandbox that announced its end no session will find anything again.
            self.fail(typed(verdict.why, waited_s=round(spent, 1)), gave_up=not self._ending)
            return None
        delay_s = min(self._backoff.delay_s(verdict.retry_after_s), max(limit_s - spent, 0.01))
        doing = "resuming" if self.attached_once else "attaching"
        self._log("info", "%s in %.2f s, for %.0f s at most: %s", doing, delay_s, limit_s - spent, verdict.why.message)
        return delay_s

    def begin_attempt(self, now: float) -> float:
        """Begin an attempt; returns how long connecting may take, which is at most the rest of the outage's time limit."""
        if self._first_attempt is None:
            self._first_attempt = now
        return self._at_most(self.options.connect_timeout_s, now)

    def answer_s(self, now: float) -> float:
        """How long the service may take to answer the handshake: before a first attach it may have to dial many other agents."""
        return self._at_most(self.options.connect_timeout_s * (1 if self.attached_once else PATIENCE), now)

    def _at_most(self, limit_s: float, now: float) -> float:
        if self._down_since is None:
            return limit_s
        left_s = self._down_since + self._outage_limit_s() - now
        self._cut_short = left_s < limit_s
        limit_s = max(min(limit_s, left_s), 0.05)
        self._attempt_ends = now + limit_s
        return limit_s

    def may_wake(self) -> bool:
        """Another session was attached during a pause. Returns whether to try now, with short pauses again; at most once in an outage."""
        first, self._woken = not self._woken, True
        if first:
            self._backoff.reset()
        return first

    def _outage_limit_s(self) -> float:
        """How long an outage may last, counted from its start."""
        limit_s = self.options.connect_timeout_s * (PATIENCE if self._reached else 1)
        if self.attached_once:
            limit_s = self.options.resume_timeout_s
        if self._ending and self._down_since is not None:
            limit_s = min(limit_s, max(self._ends_at - self._down_since, 0.0) + LAST_LOOK_S)
        return limit_s

    def _judge(self, websocket: WebSocket | None, why: str) -> Verdict:
        if websocket is not None and websocket.refusal is not None:
            return judge_refusal(websocket.refusal, attached_before=self.attached_once)
        if websocket is not None and websocket.closed is not None and not self.leave:
            return judge_close(websocket.closed, attached_before=self.attached_once)
        if websocket is not None and websocket.open:  # the service relayed: what came after that, or did not come, is the agent's doing
            return Verdict(error("agent_unreachable", why, hint="", fault="workload"), fatal=False)
        return Verdict(error("agent_unreachable", why, hint="check the URL, and that the service runs"), fatal=False)

    # Channels ---------------------------------------------------------------------------------------------------

    def open(self, kind: str, params: dict[str, Any], sink: Sink) -> None:
        """Open a channel whose facts are passed to ``sink``. Raises the error with which the session ended."""
        if self.error is not None:
            raise from_map(self.error.to_map())
        large = params.packed() if isinstance(params, LargeParams) else None
        try:
            sink.number = self.session.open(kind, params if large is None else {"packed": len(large)})
        except HoldfastError as why:
            raise typed(why) from None
        self._sinks[sink.number] = sink
        self._fresh.append(sink)
        if large is not None:
            sink.queue(large, eof=False)

    def fail(self, why: HoldfastError, *, gave_up: bool = False) -> None:
        """The session is over: every sink gets the error.

        ``gave_up``: since the service does not answer. One-off requests may be repeated then; shells and processes of the session raise
        ``SessionLostError``.
        """
        if self.error is None:
            if gave_up:
                self._log("warning", "gave up after %.1f s: %s", why.detail.get("waited_s", 0.0), why.message)
            elif why.reason not in OWN_REASONS:
                self._log("warning", "session over: %s", why)
            self.error = why
            self.session.disconnected()
            sinks = {id(sink): sink for sink in (*self._sinks.values(), *(sink for sink, _ in self._reported))}.values()
            self._sinks = {}
            self._reported = []
            self.query = None
            for sink in sinks:
                sink.fail(why, gave_up=gave_up)
        self.ready.set()

    def close(self) -> None:
        """End the session at the caller's request."""
        hint = "its shells and processes have ended too: open new ones, in a new sandbox if this one was deleted"
        self.fail(error("session_lost", "this client has closed the session", reason="closed", hint=hint, fault="caller"))

    def paused(self) -> None:
        """The caller of this session has paused the sandbox to disk, which has ended its agent."""
        hint = "call resume(), then open another one: a shell continues where its state was saved"
        message = f"sandbox {self.sandbox_id} was paused to disk: what was opened before that no longer exists"
        self.fail(error("session_lost", message, reason="paused", hint=hint, fault="caller", retryable=False))

    def reset(self) -> None:
        """The sandbox is about to be reset by the caller of this session."""
        message = f"sandbox {self.sandbox_id} was reset: what was opened before the reset no longer exists"
        hint = "open another shell or process: the sandbox is as it was after its creation"
        self.fail(error("session_lost", message, reason="reset", hint=hint, fault="caller", retryable=False))

    def _log(self, level: Literal["info", "warning"], text: str, *arguments: Any) -> None:
        log(level, f"sandbox %s: {text}", self.sandbox_id, *arguments)

    def _dispatch(self, now: float) -> None:
        sinks = self._sinks
        for event in self.session.events():
            if isinstance(event, Item):
                sink = sinks.get(event.channel)
                self._progressed = True
                if sink is None:
                    if type(event) is Accepted and event.listener in sinks:
                        sinks[event.channel] = sinks[event.listener].accepted(event)
                elif (type(event) is Exited or type(event) is Failed) and _reports_end(event):
                    self._hold(sink, event)
                elif self._reported and type(event) is not Closed and self._holds(sink):
                    pass  # after the end of the sandbox an agent has nothing more to say about a command
                else:
                    sink.fact(event)
                    if sink.ended:
                        sinks.pop(sink.number, None)
            elif type(event) is Writable:
                sink = sinks.get(event.channel)
                if sink is not None:
                    sink.writable()
            elif type(event) is Attached:
                self._attached(event, now)
            elif type(event) is GoAway and event.reason in ENDED_REASONS:
                self._ending, self._ends_at = True, now + min(event.deadline_s, 3600.0)
            elif type(event) is GoAway:
                if self._leave_at is None:  # a further GoAway does not postpone it
                    self._leave_at = now + self._jitter(min(event.jitter_s, event.deadline_s, 60.0))
            elif type(event) is Lost:
                why = typed(event.error)
                why.fault = "workload"  # by what the agent answered
                self.fail(why)
            elif type(event) is Silent:
                self.leave = True

    def _hold(self, sink: Sink, item: Failed | Exited) -> None:
        """A channel, or a command of a shell, ended because, by the agent's account, the sandbox ends: the record decides."""
        first = not self._reported
        if type(item) is Failed or not sink.has_commands:
            self._sinks.pop(item.channel)
            self._reported = [(held, report) for held, report in self._reported if held is not sink]  # the end of a shell ends its command
        elif self._holds(sink):
            return
        self._reported.append((sink, item))
        if first and self.query is not None:
            self.query()

    def _holds(self, sink: Sink) -> bool:
        return any(held is sink for held, _ in self._reported)

    def _attached(self, event: Attached, now: float) -> None:
        if self.attached_once:
            self.resumes += 1
            self._log("warning", "resumed after %.1f s", now - (now if self._down_since is None else self._down_since))
        else:
            self._log("info", "attached")
        self.attached_once = True
        self._attached_at = now
        self._welcome_by = None
        self._away_s, self._away_since = self.away_s(now), None
        self._progressed = False
        self._woken = False
        self._ending = False
        self._cut_short, self._latest = False, None
        self.options.peers.through()
        self._fresh = list(self._sinks.values())  # the messages that waited for a connection are sent on this one
        self.ready.set()


def _reports_end(item: Item) -> TypeGuard[Failed | Exited]:
    """Whether an agent reports that a channel or a command ended with its sandbox."""
    if type(item) is Exited:
        return "error" in item.result and reported_end(item.result["error"])
    return type(item) is Failed and reported_end(item.error)


def wrong_process_error() -> HoldfastError:
    """The error for an object that is used in another process or event loop than the one it was created in."""
    return error(
        "session_lost",
        "a sandbox object works only in the process and event loop that made it",
        hint="open shells and processes again from the sandbox object; event loops that run at the same time need a client each",
        fault="caller",
        retryable=False,
    )
