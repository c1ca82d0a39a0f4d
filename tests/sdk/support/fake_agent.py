"""A scripted session agent behind a real WebSocket on loopback: the protocol is real, the commands are simulated.

Owns one server in its own thread and loop. Sessions outlive connections as the agent's do; connections can be cut, refused, fenced
or closed with GoAway by the test. Commands are a few words: ``echo TEXT``, ``exit N``, ``flood N``, ``hang``, ``greet`` (greets and
hangs), ``cat``, ``quiet`` (never starts).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from holdfast_wire.codec import decode, encode
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Close, Closed, Exited, Failed, GoAway, Hello, Open, Opened, Resize, Run, Signal, Write
from holdfast_wire.limits import Timing
from holdfast_wire.session.agent_session import AgentSession
from holdfast_wire.session.events import Dropped, Writable
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.sdk.support.fake_command import FakeCommand
from tests.support.front import READY_RECORD

TICKET = "ticket-of-the-fake"


class HeldSession:
    """One session on the agent's side."""

    def __init__(self, agent: FakeAgent, session: AgentSession) -> None:
        self.agent, self.session = agent, session
        self.commands: dict[int, FakeCommand] = {}
        self.shells: set[int] = set()
        self.connection: ServerConnection | None = None

    def finish(self, command: FakeCommand, result: dict[str, Any]) -> None:
        if command.number in self.shells:
            result["shell"] = {"cwd": "/tmp", "restarted": False, "restored": False}
        self.commands.pop(command.number, None)
        self.agent.records[command.command_id] = result
        self.session.send(Exited(command.number, command.command_id, result))

    def handle(self, event: Any) -> None:
        agent, number = self.agent, getattr(event, "channel", 0)
        command = self.commands.get(number)
        if isinstance(event, Open):
            agent.opened.append(event)
            if event.kind in ("command", "follow", "terminal"):
                argv = event.params.get("argv")
                text = " ".join(argv) if argv else event.params.get("script", "hang")
                self.begin(number, event.params["id"], text)
            elif event.kind == "shell":
                self.shells.add(number)
                self.session.send(Opened(number, {"name": event.params.get("name", "s1"), "pid": 7, "shell": "bash", "created": True}))
            elif agent.transfer is not None:
                agent.transfer(self, event)
            else:
                self.session.send(Failed(number, HoldfastError("file_not_found", "no such file").to_map()))
        elif isinstance(event, Run):
            self.begin(number, event.command_id, event.params["script"])
        elif isinstance(event, Write):
            if agent.typed is not None:
                agent.typed(self, event.data)
            if command is not None:
                command.write(event.data, event.eof)
            elif agent.written is not None:
                agent.written(self, event)
        elif isinstance(event, Signal):
            agent.signals.append(event.name)
            if command is not None and event.name not in agent.ignored_signals:
                command.exit(130 if event.name == "INT" else 137, event.name)
        elif isinstance(event, Close):
            agent.closes.append(event)
            if command is not None and number not in self.shells:
                command.exit(137, "KILL")
            elif number in self.shells:
                self.session.send(Closed(number, {}))
            else:
                with contextlib.suppress(HoldfastError):
                    self.session.send(Failed(number, HoldfastError("cancelled", "closed").to_map()))
        elif isinstance(event, Writable) and command is not None:
            command.pump()
        elif isinstance(event, Resize):
            agent.other.append(event)
        elif isinstance(event, Dropped):
            self.commands.pop(number, None)

    def begin(self, number: int, command_id: str, text: str) -> None:
        command = self.commands[number] = FakeCommand(self, number, command_id, text)
        command.begin()

    async def flush(self) -> None:
        if self.connection is not None:
            for message in self.session.outgoing():
                await self.connection.send(message)


class FakeAgent:
    """The server. Attributes may be set by the test while it runs; ``call`` runs a function on its loop."""

    def __init__(self, timing: Timing | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.timing = timing or Timing()
        self.epoch = "epoch-1"
        self.sessions: dict[str, HeldSession] = {}
        self.ran: list[str] = []
        self.records: dict[str, dict[str, Any]] = {}
        self.opened: list[Open] = []
        self.closes: list[Close] = []
        self.signals: list[str] = []
        self.ignored_signals: set[str] = set()
        self.attaches = 0
        self.requests: list[Headers] = []
        self.refuse: list[tuple[int, dict[str, str], bytes]] = []
        self.record: tuple[int, dict[str, Any]] = (200, {})
        """What the service's record says about the sandbox."""
        self.looks = 0
        """How often the record was requested."""
        self.transfer: Callable[[HeldSession, Open], None] | None = None
        self.written: Callable[[HeldSession, Write], None] | None = None
        self.typed: Callable[[HeldSession, bytes], None] | None = None
        self.other: list[Resize] = []
        self.cut_after: int | None = None
        self.cut_always = False
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._up = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def call(self, step: Callable[[], Any]) -> Any:
        async def once() -> Any:
            result = step()
            if asyncio.iscoroutine(result):
                result = await result
            for held in self.sessions.values():
                with contextlib.suppress(ConnectionClosed):
                    await held.flush()
            return result

        return asyncio.run_coroutine_threadsafe(once(), self._loop).result(60)

    # Called by tests --------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break all connections without a closing handshake."""
        self.call(self._cut)

    def close(self, code: int, reason: str = "") -> None:
        """Close all connections with ``code``."""
        for held in list(self.sessions.values()):
            if held.connection is not None:
                self.call(partial(held.connection.close, code, reason))

    def go_away(self, jitter_s: float = 0.01) -> None:
        for held in list(self.sessions.values()):
            if held.connection is not None:
                self.call(partial(held.connection.send, encode(GoAway(10.0, jitter_s, "drain"))))

    def send_raw(self, data: bytes | str) -> None:
        for held in list(self.sessions.values()):
            if held.connection is not None:
                self.call(partial(held.connection.send, data))

    def finish(self, command_id: str, code: int = 0) -> None:
        """End a hanging command."""

        def end() -> None:
            for held in self.sessions.values():
                for command in list(held.commands.values()):
                    if command.command_id == command_id:
                        command.exit(code)

        self.call(end)

    def restart(self) -> None:
        """Simulate a restart: all state is lost and the epoch changes."""

        def forget() -> None:
            self._cut()
            self.sessions.clear()
            self.epoch += "'"

        self.call(forget)

    def refuse_with(self, code: str, times: int = 1, **more: Any) -> None:
        """Refuse the next handshakes with a problem document."""
        error = HoldfastError(code, f"refused: {code}", **more)
        body = {**error.to_map(), "detail": error.message, "status": error.kind.status}
        answer = (error.kind.status, {"Content-Type": "application/problem+json"}, json.dumps(body).encode())
        self.refuse += [answer] * times

    # Inside -----------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        for held in self.sessions.values():
            if held.connection is not None:
                held.connection.transport.abort()
                held.connection = None
                held.session.disconnected()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._up.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    async def _start(self) -> None:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            ssl=self._tls,
            compression=None,
            ping_interval=None,
            process_request=self._request,
            process_response=self._response,
            close_timeout=0.2,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._cut()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)  # transports close on the loop's next turns

    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        if "upgrade" not in request.headers:  # the sandbox's record
            self.looks += 1
            status, record = self.record
            body = json.dumps({**READY_RECORD, **record} if status < 400 else record).encode()
            kind = "application/json" if status < 400 else "application/problem+json"
            return Response(status, "", Headers({"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}), body)
        self.requests.append(request.headers)
        if self.refuse:
            status, headers, body = self.refuse.pop(0)
            return Response(status, "Refused", Headers({**headers, "Content-Length": str(len(body))}), body)
        return None

    def _response(self, connection: ServerConnection, request: Request, response: Response) -> None:
        response.headers["X-Holdfast-Ticket"] = TICKET

    async def _serve(self, connection: ServerConnection) -> None:
        try:
            await self._converse(connection)
        except (ConnectionClosed, OSError):
            pass
        except HoldfastError as error:
            await connection.close(error.kind.close_code or 4400, error.code)

    async def _converse(self, connection: ServerConnection) -> None:
        first = await connection.recv()
        assert isinstance(first, bytes)
        hello, _ = decode(first)
        assert isinstance(hello, Hello)
        held = self.sessions.get(hello.session_id)
        if held is None:
            held = self.sessions[hello.session_id] = HeldSession(
                self, AgentSession(hello.session_id, hello.secret, self.epoch, self.timing)
            )
        held.session.attach(hello, time.monotonic())
        held.connection = connection
        self.attaches += 1
        if self.cut_always:
            self._cut()
            return
        seen = 0
        try:
            while True:
                for event in held.session.events():
                    held.handle(event)
                await held.flush()
                message = await connection.recv()
                if held.connection is not connection:
                    return
                assert isinstance(message, bytes)
                seen += 1
                if self.cut_after is not None and seen >= self.cut_after:
                    self.cut_after = None
                    self._cut()
                    return
                held.session.receive(message, time.monotonic())
        finally:
            if held.connection is connection:
                held.connection = None
                held.session.disconnected()
