"""The listeners of a simulated world: programs in the sandbox connect, and the client's application takes the connections.

Each connection carries numbered bytes both ways, in odd pieces. ``Listening.check`` checks that every connection was reported once and in
the order in which it was accepted, that every byte arrived, and that the client never had more waiting connections than permitted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast_wire.frames import Accepted, AnyItem, Close, Closed, Failed, Output, Write
from holdfast_wire.limits import ACCEPTED_WINDOW_BYTES, DATA_BYTES

from .plans import ViolationError, pattern

if TYPE_CHECKING:
    from .simulation import World


@dataclass(eq=False)
class Link:
    """One connection: what the program and the client's application send each other, and what has arrived."""

    name: str
    output: bytes
    input: bytes
    one_sided: bool
    """The program sends its bytes and closes, without waiting for the application."""
    resets: bool
    """The program resets the connection when it has sent its bytes."""
    printed: int = 0
    end_printed: bool = False
    over: bool = False
    received: bytearray = field(default_factory=bytearray)
    input_ended: bool = False
    seen: bytearray = field(default_factory=bytearray)
    end_seen: bool = False
    reported: int = 0
    taken: bool = False
    unread: int = 0
    input_sent: int = 0
    eof_sent: bool = False
    closing: bool = False
    ended: bool = False


class Listening:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.open: set[int] = set()
        """Listeners that the client has not closed."""
        self.closing: set[int] = set()
        self.closed: set[int] = set()
        self.waiting: dict[int, deque[Link]] = {}
        """Connections that the agent has not accepted, for each listener that it serves."""
        self.agent_links: dict[int, Link] = {}
        self.links: list[Link] = []
        """Accepted connections, in that order."""
        self.client_links: dict[int, Link] = {}
        self.untaken: deque[int] = deque()
        self.made = 0
        self.most_untaken = 0

    # The client's application -----------------------------------------------------------------------------------

    def act(self) -> None:
        rng = self.world.rng
        if len(self.open) < 2 and len(self.open | self.closing) < 8:
            self.open.add(self.world.client.open("listen", {}))
        elif self.open and rng.random() < 0.4:
            self.close(rng.choice(sorted(self.open)))

    def close(self, number: int) -> None:
        self.open.discard(number)
        self.closing.add(number)
        self.world.client.send(Close(number))

    def serve(self, *, eager: bool = False) -> None:
        """The application takes connections, reads and writes."""
        rng, client = self.world.rng, self.world.client
        while self.untaken and (eager or rng.random() < 0.5):
            number = self.untaken.popleft()
            self.client_links[number].taken = True
            client.take(number)
        for number, link in list(self.client_links.items()):
            if not link.taken:
                continue
            used = link.unread if eager or rng.random() < 0.7 else link.unread // 2
            link.unread -= used
            client.consume(number, used)
            if link.ended or link.closing:
                continue
            if rng.random() < 0.01:
                link.closing = True
                client.send(Close(number))
                continue
            size = min(client.room(number), rng.choice([1, 500, 40_000]))
            piece = link.input[link.input_sent : link.input_sent + size]
            last = link.input_sent + len(piece) == len(link.input)
            if not link.eof_sent and (piece or last):
                client.send(Write(number, piece, last))
                link.input_sent += len(piece)
                link.eof_sent = last

    def client_event(self, item: AnyItem) -> None:
        number = item.channel
        if isinstance(item, Accepted):
            link = self.agent_links[number]
            link.reported += 1
            self.client_links[number] = link
            self.untaken.append(number)
            self.most_untaken = max(self.most_untaken, len([n for n in self.untaken if n in self.client_links]))
            if item.listener in self.closed:
                raise ViolationError(f"{link.name} was reported after the end of its listener")
            if list(self.client_links) != sorted(self.client_links):
                raise ViolationError(f"{link.name} was reported out of turn")
            return
        link = self.client_links[number]
        if isinstance(item, Output) and item.data:
            link.seen += item.data
            link.unread += len(item.data)
            if not link.taken and len(link.seen) > ACCEPTED_WINDOW_BYTES:
                raise ViolationError(f"{link.name} sent {len(link.seen)} bytes before it was taken")
        elif isinstance(item, Output):
            link.end_seen = True
        elif isinstance(item, Closed | Failed):
            link.ended = True

    # The agent's side -------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """A program connects."""
        rng = self.world.rng
        served = [number for number, queue in self.waiting.items() if len(queue) < 20]
        if not served or self.made >= 25:
            return
        name = f"link-{self.made}"
        self.made += 1
        sizes = [0, 1, 300, 90_000, 90_000, 1_500_000] if rng.random() < 0.2 else [0, 1, 300, 5000]
        one_sided = rng.random() < 0.3
        link = Link(name, pattern("out" + name, rng.choice(sizes)), pattern("in" + name, rng.choice(sizes)), one_sided, rng.random() < 0.1)
        number = rng.choice(served)
        self.waiting[number].append(link)
        self.accept(number)

    def accept(self, number: int) -> None:
        agent, queue = self.world.agent, self.waiting.get(number)
        while queue and agent.may_accept(number):
            link = queue.popleft()
            self.links.append(link)
            self.agent_links[agent.accept(number, {"name": link.name})] = link

    def opened(self, number: int) -> None:
        self.waiting[number] = deque()

    def agent_event(self, item: AnyItem) -> None:
        number = item.channel
        if number in self.waiting:
            if isinstance(item, Close):
                del self.waiting[number]  # programs that wait are refused
                self.world.agent.send(Closed(number, {}))
            return
        link = self.agent_links[number]
        if isinstance(item, Write):
            link.received += item.data
            link.input_ended |= item.eof
            self.world.agent.consume(number, len(item.data))
        elif isinstance(item, Close):
            self._end(number, link, Closed(number, {}))

    def work(self) -> None:
        """The programs send some of their bytes."""
        agent, rng = self.world.agent, self.world.rng
        for number, link in list(self.agent_links.items()):
            if link.over:
                continue
            size = min(len(link.output) - link.printed, agent.room(number), rng.choice([1, 700, DATA_BYTES]))
            if size:
                agent.send(Output(number, 1, link.output[link.printed : link.printed + size]))
                link.printed += size
            if link.printed < len(link.output):
                continue
            if link.resets:
                self._end(number, link, Failed(number, {"code": "port_unreachable"}))
                continue
            if not link.end_printed:
                agent.send(Output(number, 1, b""))
                link.end_printed = True
            if link.one_sided or link.input_ended:
                self._end(number, link, Closed(number, {}))

    def _end(self, number: int, link: Link, fact: Closed | Failed) -> None:
        if not link.over:
            link.over = True
            self.world.agent.send(fact)

    # The end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Close all listeners on which no program waits."""
        for number in sorted(self.open):
            if not self.waiting.get(number):
                self.close(number)

    @property
    def settled(self) -> bool:
        return not self.open and self.closing <= self.closed and all(link.ended and link.taken for link in self.links)

    def check(self) -> None:
        for link in self.links:
            if link.reported != 1:
                raise ViolationError(f"{link.name} was reported {link.reported} times")
            if bytes(link.seen) != link.output[: len(link.seen)] or bytes(link.received) != link.input[: len(link.received)]:
                raise ViolationError(f"{link.name} has wrong bytes")
            if not link.closing and len(link.seen) < len(link.output):
                raise ViolationError(f"{link.name} sent {len(link.output)} bytes, {len(link.seen)} arrived")
            whole = link.closing or link.one_sided or link.resets
            if not whole and not (link.end_seen and bytes(link.received) == link.input):
                raise ViolationError(f"{link.name} was sent {len(link.input)} bytes, {len(link.received)} arrived")
