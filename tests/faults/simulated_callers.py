"""Programs of a simulated sandbox that connect to a listener of the client, and the client's application that answers them.

Runs the agent's session and the SDK's sinks; only the sockets are simulated. ``Callers.check`` checks that no caller is served twice, that
none is answered with something else than its own answer, and that each is answered whose client and sandbox did not die.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast._transport.session.listen_sink import ConnectionSink, ListenSink
from holdfast_wire.frames import Closed, Opened, Output

from session_agent.agent.session.channels import Channel, Handler, ListenerChannel

if TYPE_CHECKING:
    from .simulated import Client, World


def answer_to(question: bytes) -> bytes:
    return b"answer to " + question


@dataclass(eq=False)
class Caller:
    """A program that sends its question, ends its side and waits for the answer."""

    name: str
    question: bytes
    client: Client
    sent: int = 0
    question_ended: bool = False
    answer: bytearray = field(default_factory=bytearray)
    over: bool = False
    served: int = 0


class CallerHandler(Handler):
    """The agent's end of one caller's connection."""

    def __init__(self, channel: Channel, caller: Caller) -> None:
        self._channel, self._caller = channel, caller
        self.writable()

    def writable(self) -> None:
        caller, channel = self._caller, self._channel
        while not caller.over and not caller.question_ended:
            piece = caller.question[caller.sent : caller.sent + min(channel.room(), 50_000)]
            if not piece and caller.sent < len(caller.question):
                return
            channel.send(Output(channel.number, 1, piece))
            caller.sent += len(piece)
            caller.question_ended = not piece

    def write(self, data: bytes, eof: bool) -> None:
        self._caller.answer += data
        self._channel.consume(len(data))
        if eof:
            self.close(False)

    def close(self, detach: bool) -> None:
        if not self._caller.over:
            self._caller.over = True
            self._channel.send(Closed(self._channel.number, {}))

    def drop(self) -> None:
        self._caller.over = True


class ListenerHandler(Handler):
    """The agent's end of a listener: callers wait in ``queue`` until the session permits another connection."""

    def __init__(self, channel: ListenerChannel) -> None:
        self._channel = channel
        self.queue: list[Caller] = []
        channel.send(Opened(channel.number, {"host": "127.0.0.1", "port": 1}))

    def writable(self) -> None:
        while self.queue and self._channel.may_accept():
            caller = self.queue.pop(0)
            self._channel.accept({"name": caller.name}, lambda channel, caller=caller: CallerHandler(channel, caller))  # type: ignore[misc]

    def close(self, detach: bool) -> None:
        self._channel.send(Closed(self._channel.number, {}))


class Callers:
    """The callers of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: list[Caller] = []
        self.listener: ListenerHandler | None = None
        """The one that the client which lives now has opened, once the agent serves it."""

    def opener(self, context: Any, channel: Any) -> Handler:
        """Serves channels of kind ``listen``."""
        handler = ListenerHandler(channel)
        if channel.params.get("client") == id(self._world.client):
            self.listener = handler
        return handler

    def listen(self, client: Client) -> None:
        """The client's application opens its listener."""
        self.listener = None
        client.listener = ListenSink(client.engine.session, client.engine.new_event)
        client.engine.open("listen", {"client": id(client)}, client.listener)

    def connect(self) -> None:
        """A program connects."""
        if self.listener is None:
            return
        name = f"caller {len(self.all)}"
        size = self._world.rng.choice([10, 10, 5_000, 200_000, 1_500_000])
        caller = Caller(name, (name.encode() + b";").ljust(size, b"x"), self._world.client)
        self.all.append(caller)
        self.listener.queue.append(caller)
        self.listener.writable()

    def serve(self, client: Client, *, eager: bool = False) -> None:
        """The client's application takes connections, reads questions and writes answers."""
        if client.engine.error is not None or client.listener is None:
            return
        while eager or self._world.rng.random() < 0.5:
            taken = client.listener.next()
            if taken is None:
                break
            client.connections[taken] = bytearray()
        for connection, question in list(client.connections.items()):
            self._answer(client, connection, question)

    def _answer(self, client: Client, connection: ConnectionSink, question: bytearray) -> None:
        while data := connection.take():
            question += data
        if data is None:
            return
        del client.connections[connection]
        caller = next(each for each in self.all if question.startswith(each.name.encode() + b";"))
        caller.served += 1
        if bytes(question) != caller.question:
            raise AssertionError(f"{caller.name} asked {len(caller.question)} bytes, {len(question)} arrived")
        connection.queue(answer_to(caller.name.encode()), eof=True)

    def settled(self) -> bool:
        """Whether every caller of the client that lives is answered. There are at least three: the last client may have begun just now."""
        own = [caller for caller in self.all if caller.client is self._world.client]
        if len(own) < 3:
            self.connect()
            return False
        return all(caller.over for caller in own)

    def check(self) -> None:
        for caller in self.all:
            expected = answer_to(caller.name.encode())
            if caller.served > 1:
                raise AssertionError(f"{caller.name} was served {caller.served} times")
            if not expected.startswith(bytes(caller.answer)) or (caller.answer and not caller.served):
                raise AssertionError(f"{caller.name} got the answer {bytes(caller.answer)!r}")
            if caller.client is self._world.client and bytes(caller.answer) != expected:
                raise AssertionError(f"{caller.name} was never answered")
