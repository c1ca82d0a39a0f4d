"""A seeded simulation in which any process may die at any step. It runs the SDK's engine and the agent's sessions, records and spools.

These parts are pure, so the simulation controls time, network and crashes: connections are cut at any message, killed clients are
replaced by others that send the same commands again (in a take-over, or in a new session), and the agent dies with its sandbox. The
outcome that each caller got is compared with what really ran. A failing seed repeats the run exactly.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from holdfast import HoldfastError
from holdfast._errors import error
from holdfast._options import Options
from holdfast._session_token import SessionToken
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.engine import Engine
from holdfast._transport.session.listen_sink import ConnectionSink, ListenSink
from holdfast._transport.session.sinks import new_command, open_command
from holdfast_wire.codec import decode
from holdfast_wire.frames import Hello
from holdfast_wire.limits import WINDOW_BYTES, Timing
from holdfast_wire.session.agent_session import AgentSession

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import ExitStatus
from session_agent.agent.output.records import Record, Records, fingerprint
from session_agent.agent.output.spool import Budget, Spool
from session_agent.agent.session.channels import Channel
from session_agent.agent.session.delivery import CommandHandler
from session_agent.agent.session.sessions import HeldSession

from .history import History, check
from .load import classify_error
from .simulated_callers import Callers

OPTIONS = Options("http://simulated", "k", resume_timeout_s=1e9, connect_timeout_s=1e9)
PIECES = (1, 300, 20_000, 120_000)


class Event:
    """An event that no thread waits for."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout_s: float | None = None) -> None: ...


@dataclass(eq=False)
class Wire:
    """One connection: messages in transit, whether the agent still accepts them, and the agent's session on it."""

    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    open: bool = True
    held: HeldSession | None = None

    def wake(self, *, now: bool) -> None:
        """Not needed: the simulation polls."""

    def fence(self) -> None:
        """A later connection has the session."""
        self.open = False
        self.held = None


class Job:
    """A running command: it adds its id to the trace, writes its output as far as its spool allows, then ends."""

    def __init__(self, sandbox: Sandbox, record: Record, size_bytes: int) -> None:
        self.record = record
        self.left = size_bytes
        self._sandbox = sandbox
        record.started = True
        record.owner = self
        sandbox.trace.append(record.command_id)

    def step(self, size_bytes: int) -> None:
        spool = self.record.spool
        if self.record.exit_status is not None or spool.full:
            return
        if self.left:
            size = min(self.left, size_bytes)
            self.left -= size
            spool.append(1, b"x" * size)
            self.record.notify()
        else:
            self._end(0)

    def _end(self, exit_code: int) -> None:
        self._sandbox.context.records.finish(self.record, ExitStatus(exit_code, 1.0), self._sandbox.context.now())

    def feed(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        consumed(len(data))

    def signal(self, name: str) -> None: ...

    def cancel(self) -> None:
        self._end(137)


class Sandbox:
    """One incarnation: an agent with its sessions, and the trace of its commands, which is kept after its death."""

    def __init__(self, world: World, number: int) -> None:
        self.epoch = f"epoch-{number}"
        self._callers = world.callers
        self.trace: list[str] = []
        self.history = History()
        self.jobs: list[Job] = []
        self.held: dict[str, HeldSession] = {}
        self.large_spool = world.rng.random() < 0.5
        self._budget = Budget() if self.large_spool else Budget(limit_bytes=3_000_000)
        timing = Timing(record_ttl_s=30.0)
        self.context = cast(AgentContext, SimpleNamespace(records=Records(timing, most=8), now=lambda: world.now, used=lambda: None))

    def attach(self, hello: Hello, wire: Wire, now: float) -> None:
        """As ``session_agent.agent.session.sessions`` does it."""
        held = self.held.get(hello.session_id)
        if held is None:
            if hello.agent_epoch:
                raise HoldfastError("session_lost", "it is not here")
            session = AgentSession(hello.session_id, hello.secret, self.epoch)
            factories = {"command": self._open, "listen": self._callers.opener}
            held = self.held[hello.session_id] = HeldSession(session, self.context, factories)
        held.session.attach(hello, now)
        if held.connection is not None and held.connection is not wire:
            held.connection.fence()
        held.connection = wire
        wire.held = held
        held.dispatch(now)

    def _open(self, context: AgentContext, channel: Channel) -> CommandHandler:
        """As ``session_agent.agent.commands.command`` does it."""
        params = channel.params
        print_ = fingerprint("command", params)
        record = context.records.find(params["id"], print_)
        if record is None:
            spool = Spool(self._budget, tail=params["tail"], limit_bytes=400_000)
            record = context.records.create(params["id"], print_, spool)
            self.jobs.append(Job(self, record, params["size"]))
        return CommandHandler(context, channel, record)


class Client:
    """One client process: an engine, and the commands that it waits for."""

    def __init__(self, world: World, token: SessionToken | None) -> None:
        self.engine = Engine(OPTIONS, "sb", Event, token=token, jitter=lambda most_s: world.rng.uniform(0, most_s))
        self.calls: dict[str, Call] = {}
        self.wire: Wire | None = None
        self.retry_at = 0.0
        self.listener: ListenSink | None = None
        self.connections: dict[ConnectionSink, bytearray] = {}


class World:
    """One run. Counts the deaths, cuts and commands there were."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.faults = 0
        self.commands = 0
        self.unknown = 0
        self.callers = Callers(self)
        self.sandbox = Sandbox(self, 0)
        self.ended: list[Sandbox] = []
        self.stale: list[Wire] = []
        self.client = Client(self, None)
        self.callers.listen(self.client)
        self.sent_before: set[str] = set()
        """Commands that a killed client sent: an error that its successor gets does not prove that they did not start."""
        self.open: dict[str, dict[str, Any]] = {}
        """Commands sent to this sandbox that have no outcome yet, also those of clients that are dead."""

    # The caller --- ----------------------------------------------------------------------------------------

    def ask(self) -> None:
        command_id = f"c{self.commands}"
        self.commands += 1
        params = {"id": command_id, "size": self.rng.choice([0, 0, 7, 5_000, 900_000, 2_500_000]), "tail": self.rng.random() < 0.3}
        self.sandbox.history.sent(command_id, command_id)
        self.open[command_id] = params
        self._call(params)

    def _call(self, params: dict[str, Any]) -> None:
        command_id = params["id"]
        try:
            call = new_command(self.client.engine, command_id, 1 << 30)
            open_command(self.client.engine, call, "command", params)
            self.client.calls[command_id] = call
        except HoldfastError as why:
            self._record_error(command_id, why)

    def _record_error(self, command_id: str, why: HoldfastError) -> None:
        if why.code == "protocol_error":
            raise AssertionError(f"{command_id}: {why}")
        self.unknown += 1
        del self.open[command_id]
        self.sandbox.history.answer(command_id, "unknown" if command_id in self.sent_before else classify_error(why))

    def collect_outcomes(self) -> None:
        """Record the outcomes that have arrived."""
        for command_id, call in list(self.client.calls.items()):
            if not call.done:
                continue
            del self.client.calls[command_id]
            params = self.open[command_id]
            try:
                result = call.result()
            except HoldfastError as why:
                self._record_error(command_id, why)
                continue
            del self.open[command_id]
            count = result.streams[1]
            assert result.exit_code == 0, f"{command_id} ended with {result.exit_code}"
            assert count.seen == params["size"] == len(result.stdout_bytes) + count.dropped, f"{command_id}: {count}"
            assert result.truncated == (count.dropped > 0), f"{command_id} is short and does not say so"
            keeps = not params["tail"] and params["size"] <= WINDOW_BYTES and self.sandbox.large_spool
            assert not (keeps and result.truncated), f"{command_id} lost {count.dropped} bytes although the spool had room"
            self.sandbox.history.answer(command_id, "acknowledged")

    # Faults --- ---------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """The connection breaks at any message; the agent notices it now, later or never."""
        client, wire = self.client, self.client.wire
        if wire is None:
            return
        self.faults += 1
        while len(wire.up) > self.rng.randrange(len(wire.up) + 1):
            wire.up.pop()
        self._leave(wire)
        client.wire = None
        client.engine.broken(None, "cut", self.now)

    def _leave(self, wire: Wire) -> None:
        wire.down.clear()
        if self.rng.random() < 0.5:
            self._notice_close(wire)
        else:
            self.stale.append(wire)

    def _notice_close(self, wire: Wire) -> None:
        wire.open = False
        held, wire.held = wire.held, None
        if held is not None and held.connection is wire:
            held.connection = None
            held.detached()

    def kill_client(self) -> None:
        """kill -9 of the client; the next one knows the open commands, and perhaps the session."""
        self.faults += 1
        before, session = self.client, self.client.engine.session
        if before.wire is not None:
            self._leave(before.wire)
        token = None
        if session.agent_epoch and before.engine.error is None and self.rng.random() < 0.5:
            token = SessionToken("sb", session.session_id, session.secret, session.agent_epoch)
        self.client = Client(self, token)
        self.callers.listen(self.client)
        self.sent_before.update(self.open)
        for params in list(self.open.values()):
            self._call(params)

    def kill_sandbox(self) -> None:
        """The agent dies with its state; its trace stays. The service reports the loss, or another agent answers."""
        self.faults += 1
        old = self.sandbox
        client = self.client
        if client.wire is not None:
            client.wire.open = False
            client.wire = None
        self.stale.clear()
        old.jobs.clear()
        if self.rng.random() < 0.5 or not client.engine.session.agent_epoch:
            client.engine.fail(error("sandbox_gone", "its node died", reason="node-lost"))
        else:
            client.engine.broken(None, "cut", self.now)
            self.sandbox = Sandbox(self, len(self.ended) + 1)
            self.sandbox.history = old.history  # its caller does not know yet
            for _ in range(200):
                if client.engine.error is not None:
                    break
                self.transfer(whole=True)
            assert client.engine.error is not None, "another agent was taken for the one that died"
            assert not self.sandbox.trace, "a command of the agent that died ran in the next"
            self.sandbox = old
        self.collect_outcomes()
        assert not self.client.calls, "a command waits for a sandbox that is gone"
        self.ended.append(old)
        self.sandbox = Sandbox(self, len(self.ended))
        self.open.clear()
        self.client = Client(self, None)
        self.callers.listen(self.client)

    # Normal operation --- ---------------------------------------------------------------------------------------------

    def transfer(self, *, whole: bool = False) -> None:
        client, engine = self.client, self.client.engine
        if engine.error is not None:
            return
        if client.wire is None:
            client.wire = Wire()
            engine.connected({}, self.now)
        wire = client.wire
        wire.up.extend(engine.outgoing())
        for _ in range(len(wire.up) if whole else self.rng.choice([0, 1, 1, 6])):
            self.up(wire)
        if wire.held is not None:
            wire.down.extend(wire.held.session.outgoing(self.rng.choice([1, 50_000, 1 << 20])))
        for _ in range(len(wire.down) if whole else self.rng.choice([0, 1, 1, 6])):
            if wire.down:
                engine.receive([wire.down.popleft()], self.now)
        if not wire.open and client.wire is wire and not wire.down:
            client.wire = None
            engine.broken(None, "closed", self.now)

    def up(self, wire: Wire) -> None:
        """One message reaches the agent."""
        if not wire.up or not wire.open:
            return
        message = wire.up.popleft()
        frame, _ = decode(message)
        if isinstance(frame, Hello):
            if frame.take_over and wire is not self.client.wire:
                wire.open = False  # of two take-overs the last one read would win (PROTOCOL §3.7), which is not tested here
                return
            try:
                self.sandbox.attach(frame, wire, self.now)
            except HoldfastError as why:
                wire.open = False
                if wire is self.client.wire and why.code == "session_lost":
                    self.client.engine.fail(why)  # as the close code says it
                elif wire is self.client.wire:
                    raise AssertionError(f"the live connection was refused: {why}") from None
        elif wire.held is not None:
            wire.held.session.receive(message, self.now)
            wire.held.dispatch(self.now)

    def step(self, *, faults: bool) -> None:
        rng, chance = self.rng, self.rng.random()
        self.now += rng.choice([0.0, 0.01, 0.3])
        if chance < 0.6:
            self.transfer()
        elif chance < 0.85:
            for job in self.sandbox.jobs:
                job.step(rng.choice(PIECES))
            if rng.random() < 0.4 and len(self.callers.all) < 30:
                self.callers.connect()
            self.callers.serve(self.client)
        elif chance < 0.9:
            self.client.engine.tick(self.now)
            for held in self.sandbox.held.values():
                held.session.tick(self.now)
        elif faults and chance < 0.96:
            self.cut()
        elif faults and chance < 0.98:
            self.kill_client()
        elif faults and chance < 0.985:
            self.kill_sandbox()
        elif faults and self.stale:
            wire = rng.choice(self.stale)
            if rng.random() < 0.5:
                self.up(wire)  # late, from a client that may be dead
            else:
                self.stale.remove(wire)
                self._notice_close(wire)
        self.collect_outcomes()

    def run(self, steps: int = 250) -> None:
        """Run under faults, then without them until all commands have outcomes; then compare the outcomes with what ran."""
        for number in range(steps):
            if number % 8 == 0:
                self.ask()
            self.step(faults=True)
        for _ in range(20_000):
            if not self.open and self.callers.settled():
                break
            self.callers.serve(self.client, eager=True)
            self.step(faults=False)
            for job in self.sandbox.jobs:
                job.step(PIECES[-1])
        assert not self.open, f"{sorted(self.open)} never had an outcome"
        self.callers.check()
        for sandbox in (*self.ended, self.sandbox):
            verdict = check(sandbox.history, sandbox.trace)
            assert verdict.clean, verdict.violations
