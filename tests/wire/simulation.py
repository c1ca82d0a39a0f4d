"""A seeded simulation of the pure session core: two ends, an unreliable network, a virtual clock.

Each world runs one client and one agent through cuts at any message, late and duplicated greetings, attaches before the old
connection is noticed lost, and slow readers. The agent runs *plans*: a command takes the input it was promised and prints
numbered bytes; ``listening`` adds connections that the agent accepts. ``World.check`` then checks all guarantees: every plan ran once,
every byte arrived once and in order, and nothing is left stored. A failing seed reproduces the run exactly.
"""

from __future__ import annotations

import random
from collections import deque

from holdfast_wire.codec import decode
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Accepted, Close, Closed, Exited, Failed, Hello, Open, Opened, Output, Run, Started, Write
from holdfast_wire.limits import DATA_BYTES, FIRST_ACCEPTED, Timing
from holdfast_wire.session.agent_session import AgentSession
from holdfast_wire.session.client_session import ClientSession
from holdfast_wire.session.events import Attached, Delivered, Dropped, Lost, Retired, Silent, Writable

from .listening import Listening
from .plans import Job, Plan, ViolationError, Wire, pattern

SESSION_ID = "simulated-session"
SECRET = b"0123456789abcdef"
EPOCH = "epoch-1"


class World:
    """One run. ``faults`` counts the connections cut, ``messages`` those delivered."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        timing = Timing(ack_delay_s=0.2, ack_bytes=self.rng.choice([1, 2000, 64 * 1024]))
        self.client = ClientSession(SESSION_ID, SECRET, timing, accepts=True)
        self.agent = AgentSession(SESSION_ID, SECRET, EPOCH, timing)
        self.wire: Wire | None = None
        self.agent_wire: Wire | None = None  # the connection that the agent considers open
        self.stale: list[Wire] = []
        self.plans: dict[str, Plan] = {}
        self.channels: dict[int, list[Plan]] = {}  # client's channel → plans in order
        self.jobs: dict[int, deque[Job]] = {}  # agent's channel → queued jobs
        self.shells: set[int] = set()
        self.closing: set[int] = set()
        self.asked_to_close: set[int] = set()
        self.unread: dict[int, int] = {}  # bytes the client has not consumed yet
        self.faults = 0
        self.messages = 0
        self.ended: set[int] = set()
        self.listening = Listening(self)

    # The client's application -----------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        command_id = f"c{len(self.plans)}"
        big = self.rng.random() < 0.08
        size = self.rng.randrange(1_200_000, 2_600_000) if big else self.rng.choice([0, 1, 5, 300, 5000])
        given = pattern("in" + command_id, self.rng.choice([0, 0, 0, 10, 4000]))
        plan = Plan(command_id, pattern(command_id, size), given)
        self.plans[command_id] = plan
        return plan

    def act(self) -> None:
        """The client starts a command or a channel."""
        if self.shells - self.closing and self.rng.random() < 0.6:
            number = self.rng.choice(sorted(self.shells - self.closing))
            plan = self._plan()
            plan.input = b""
            self.channels[number].append(plan)
            self.client.send(Run(number, plan.command_id, {}))
        elif self.rng.random() < 0.3:
            number = self.client.open("shell", {})
            self.shells.add(number)
            self.channels[number] = []
        else:
            plan = self._plan()
            number = self.client.open("command", {"id": plan.command_id})
            self.channels[number] = [plan]

    def feed(self) -> None:
        """The client writes some more input where its commands still want it."""
        for number, plans in self.channels.items():
            if number in self.shells or number in self.ended:
                continue
            plan = plans[0]
            if plan.eof_sent:
                continue
            room = self.client.room(number)
            piece = plan.input[plan.input_sent : plan.input_sent + min(room, self.rng.choice([1, 500, 5000]))]
            last = plan.input_sent + len(piece) == len(plan.input)
            if not piece and not last:
                continue
            self.client.send(Write(number, piece, last))
            plan.input_sent += len(piece)
            plan.eof_sent = last

    def read(self) -> None:
        """The client consumes some of what it has received."""
        self.listening.serve()
        for number, size in list(self.unread.items()):
            used = size if self.rng.random() < 0.7 else size // 2
            self.unread[number] -= used
            self.client.consume(number, used)

    def client_events(self) -> None:
        for event in self.client.events():
            match event:
                case Opened():
                    pass
                case Accepted() | Output() | Closed() | Failed() if event.channel >= FIRST_ACCEPTED:
                    self.listening.client_event(event)
                case Closed() if event.channel in self.listening.closing:
                    self.listening.closed.add(event.channel)
                case Started():
                    plan = self._current(event.channel, event.command_id)
                    plan.started += 1
                case Output():
                    plan = next(p for p in self.channels[event.channel] if not p.exited)
                    plan.seen += event.data
                    if bytes(event.data) != plan.output[len(plan.seen) - len(event.data) : len(plan.seen)]:
                        raise ViolationError(f"{plan.command_id}: wrong bytes at {len(plan.seen)}")
                    self.unread[event.channel] = self.unread.get(event.channel, 0) + len(event.data)
                case Exited():
                    plan = self._current(event.channel, event.command_id)
                    plan.exited += 1
                    if event.channel not in self.shells:
                        self.ended.add(event.channel)
                        self.unread.pop(event.channel, None)
                case Closed():
                    self.ended.add(event.channel)
                    self.unread.pop(event.channel, None)
                case Silent():
                    self._client_lost()
                case Lost():
                    raise ViolationError(f"the session was lost: {event.error}")
                case Attached() | Writable():
                    pass
                case _:
                    raise ViolationError(f"unexpected {event}")

    def _current(self, number: int, command_id: str) -> Plan:
        plan = next((p for p in self.channels[number] if not p.exited), None)
        if plan is None or plan.command_id != command_id:
            raise ViolationError(f"channel {number} reports {command_id} out of turn")
        return plan

    # The agent's application ------------------------------------------------------------------------------------

    def agent_events(self) -> None:
        for event in self.agent.events():
            match event:
                case Open(kind="command"):
                    plan = self.plans[event.params["id"]]
                    plan.ran += 1
                    self.agent.send(Started(event.channel, plan.command_id, {}))
                    self.jobs[event.channel] = deque([Job(event.channel, plan)])
                case Open(kind="listen"):
                    self.agent.send(Opened(event.channel, {}))
                    self.listening.opened(event.channel)
                case Write() | Close() if event.channel >= FIRST_ACCEPTED or event.channel in self.listening.waiting:
                    self.listening.agent_event(event)
                case Writable() if event.channel in self.listening.waiting:
                    self.listening.accept(event.channel)
                case Open():
                    self.agent.send(Opened(event.channel, {}))
                    self.jobs[event.channel] = deque()
                case Run():
                    plan = self.plans[event.command_id]
                    plan.ran += 1
                    plan.input_ended = 1
                    self.jobs[event.channel].append(Job(event.channel, plan))
                    if len(self.jobs[event.channel]) == 1:
                        self.agent.send(Started(event.channel, plan.command_id, {}))
                case Write():
                    plan = self.jobs[event.channel][0].plan
                    plan.received += event.data
                    plan.input_ended += event.eof
                    self.agent.consume(event.channel, len(event.data))
                case Close():
                    self.asked_to_close.add(event.channel)
                case Attached() | Writable() | Delivered() | Retired():
                    pass
                case Silent():
                    self.agent_wire = None
                case Dropped():
                    raise ViolationError("a channel was dropped that the client never gave up")
                case _:
                    raise ViolationError(f"unexpected {event}")

    def work(self) -> None:
        """The agent's commands and programs print a little."""
        if self.rng.random() < 0.5:
            self.listening.connect()
        self.listening.work()
        for number, queue in self.jobs.items():
            if not queue:
                if number in self.asked_to_close:
                    self.asked_to_close.discard(number)
                    self.agent.send(Closed(number, {}))
                continue
            job = queue[0]
            plan = job.plan
            if not plan.input_ended:
                continue
            rest = len(plan.output) - job.printed
            size = min(rest, self.agent.room(number), self.rng.choice([1, 700, DATA_BYTES, DATA_BYTES]))
            if size:
                self.agent.send(Output(number, 1, plan.output[job.printed : job.printed + size]))
                job.printed += size
            if job.printed == len(plan.output):
                self.agent.send(Exited(number, plan.command_id, {"exit_code": 0}))
                queue.popleft()
                if queue:
                    self.agent.send(Started(number, queue[0].plan.command_id, {}))

    # The network ------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        if self.wire is not None:
            return
        self.wire = Wire()
        self.client.connect(self.now)

    def lose_everything(self) -> None:
        """The connection loses everything without an error: only the silence reveals it."""
        wire = self.wire
        if wire is None:
            return
        self.faults += 1
        wire.hole = True
        wire.up.clear()
        wire.down.clear()
        for _ in range(40):
            self.tick(0.9)
        if self.wire is wire:
            raise ViolationError("a dead connection was never noticed")

    def _client_lost(self) -> None:
        self.client.disconnected()
        if self.wire is not None:
            self.stale.append(self.wire)  # what was on its way may still reach the agent, late
            self.wire = None

    def cut(self) -> None:
        """The connection breaks at any message; the agent may notice now, later, or never."""
        if self.wire is None:
            return
        self.faults += 1
        wire = self.wire
        keep = self.rng.randrange(len(wire.up) + 1)
        while len(wire.up) > keep:
            wire.up.pop()
        wire.down.clear()
        self._client_lost()
        if self.rng.random() < 0.5:
            self._agent_lost(wire)

    def _agent_lost(self, wire: Wire) -> None:
        wire.open = False
        if self.agent_wire is wire:
            self.agent.disconnected()
            self.agent_wire = None

    def carry_up(self, wire: Wire) -> None:
        """One message reaches the agent on ``wire``."""
        if not wire.up or not wire.open or wire.hole:
            return
        message = wire.up.popleft()
        self.messages += 1
        frame, _ = decode(message)
        if isinstance(frame, Hello):
            try:
                self.agent.attach(frame, self.now)
            except HoldfastError as error:
                if error.code != "session_fenced" or wire is self.wire:
                    raise ViolationError(f"the live connection was refused: {error}") from None
                wire.open = False
                return
            if self.agent_wire is not None and self.agent_wire is not wire:
                self.agent_wire.open = False
            self.agent_wire = wire
        elif self.agent_wire is wire:
            self.agent.receive(message, self.now)
        self.agent_events()

    def carry_down(self) -> None:
        wire = self.wire
        if wire is None or not wire.down or wire.hole:
            return
        self.messages += 1
        self.client.receive(wire.down.popleft(), self.now)
        self.client_events()

    def flush(self) -> None:
        limit = self.rng.choice([1, 5000, 1 << 20])
        if self.wire is not None:
            self.wire.up.extend(self.client.outgoing(limit))
        if self.agent_wire is not None:
            self.agent_wire.down.extend(self.agent.outgoing(limit))  # onto a dead wire: lost

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.client.tick(self.now)
        self.agent.tick(self.now)
        self.client_events()
        self.agent_events()

    # The run ----------------------------------------------------------------------------------------------------

    def step(self, *, faults: bool) -> None:
        rng = self.rng
        choice = rng.random()
        if choice < 0.30:
            self.flush()
        elif choice < 0.55:
            for _ in range(rng.choice([1, 1, 6])):
                self.carry_down()
        elif choice < 0.80 and self.wire is not None:
            for _ in range(rng.choice([1, 1, 6])):
                if self.wire is not None:
                    self.carry_up(self.wire)
        elif choice < 0.86:
            self.work()
        elif choice < 0.90:
            self.feed()
        elif choice < 0.94:
            self.read()
        elif choice < 0.97:
            self.tick(rng.choice([0.0, 0.05, 0.3, 1.0]))
        elif faults:
            if self.stale and rng.random() < 0.5:
                self.carry_up(rng.choice(self.stale))
            elif rng.random() < 0.1:
                self.lose_everything()
            else:
                self.cut()
        if self.wire is None and (not faults or rng.random() < 0.3):
            self.connect()

    def run(self, steps: int = 300) -> None:
        """Act under faults, then let everything settle, then check."""
        self.connect()
        for i in range(steps):
            if i % 12 == 0 and len(self.plans) < 14:
                self.act()
            if i % 20 == 0:
                self.listening.act()
            self.step(faults=True)
        for number in sorted(self.shells):
            self.client.send(Close(number))
            self.closing.add(number)
        for _ in range(60_000):
            if self._settled():
                break
            self.step(faults=False)
            self.work()
            self.feed()
            self.listening.serve(eager=True)
            self.listening.finish()
            self.flush()
        self.check()

    def _settled(self) -> bool:
        return (
            all(p.exited for p in self.plans.values())
            and self.shells <= self.ended
            and self.listening.settled
            and not self.client._channels
            and not self.agent._channels
        )

    def check(self) -> None:
        """Raise ``ViolationError`` unless all guarantees were kept."""
        self.listening.check()
        for plan in self.plans.values():
            counts = (plan.ran, plan.started, plan.exited)
            if counts != (1, 1, 1):
                raise ViolationError(f"{plan.command_id} ran, started, exited {counts} times")
            if bytes(plan.seen) != plan.output:
                raise ViolationError(f"{plan.command_id} printed {len(plan.output)} bytes, {len(plan.seen)} arrived")
            if bytes(plan.received) != plan.input:
                raise ViolationError(f"{plan.command_id} was sent {len(plan.input)} bytes, {len(plan.received)} arrived")
        if not self.shells <= self.ended:
            raise ViolationError("a shell never closed")
        if self.client._channels or self.agent._channels:
            raise ViolationError("a channel that ended is still stored")
