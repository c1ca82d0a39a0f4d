"""The commands of the scripted agent: a few words each, with the output, digests and exit that a real one would have.

Owns the frames of a command's channel; ``fake_agent`` owns sessions, connections and the server.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Exited, Output, Started
from holdfast_wire.limits import DATA_BYTES

if TYPE_CHECKING:
    from tests.sdk.support.fake_agent import HeldSession


class FakeCommand:
    """One scripted command on one channel."""

    def __init__(self, held: HeldSession, number: int, command_id: str, text: str) -> None:
        self.held, self.number, self.command_id, self.text = held, number, command_id, text
        self.remaining = 0
        self.seen = {1: 0, 2: 0}
        self.digest = {1: hashlib.sha256(), 2: hashlib.sha256()}
        self.done = False
        self.echo = bytearray()
        self.eof = False

    def begin(self) -> None:
        word, _, rest = self.text.partition(" ")
        if word == "quiet":
            return
        self.held.agent.ran.append(self.command_id)
        self.held.session.send(Started(self.number, self.command_id, {"pid": 42, "name": "t0", "created": True}))
        if word == "echo":
            self.output(1, rest.encode() + b"\n")
            self.exit(0)
        elif word == "greet":
            self.output(1, b"hello\n")
        elif word == "both":
            self.output(1, b"out")
            self.output(2, b"err")
            self.exit(0)
        elif word == "exit":
            self.exit(int(rest))
        elif word == "true":
            self.exit(0)
        elif word == "flood":
            self.remaining = int(rest)
            self.pump()
        elif word == "lie":
            self.held.session.send(Exited(self.number, self.command_id, {"exit_code": 0, "streams": {1: [5, 0, ""]}}))
            self.done = True
        elif word == "badtype":
            self.held.session.send(Exited(self.number, self.command_id, {"exit_code": "zero"}))
            self.done = True
        elif word == "unknown":
            error = HoldfastError("outcome_unknown", "not known").to_map()
            self.held.session.send(Exited(self.number, self.command_id, {"error": error}))
            self.done = True

    def output(self, stream: int, data: bytes) -> None:
        self.seen[stream] += len(data)
        self.digest[stream].update(data)
        self.held.session.send(Output(self.number, stream, data))

    def pump(self) -> None:
        while self.remaining and (room := min(self.held.session.room(self.number), DATA_BYTES, self.remaining)):
            self.remaining -= room
            self.output(1, b"x" * room)
        while self.echo and (room := min(self.held.session.room(self.number), DATA_BYTES, len(self.echo))):
            self.output(1, bytes(self.echo[:room]))
            self.held.session.consume(self.number, room)
            del self.echo[:room]
        if (self.text.startswith("flood") and not self.remaining) or (self.eof and not self.echo):
            self.exit(0)

    def write(self, data: bytes, eof: bool) -> None:
        if self.text != "cat":
            self.held.session.consume(self.number, len(data))
            return
        self.echo += data
        self.eof = self.eof or eof
        self.pump()

    def exit(self, code: int | None, signal: str | None = None) -> None:
        if self.done:
            return
        self.done = True
        result: dict[str, Any] = {
            "exit_code": code,
            "signal": signal,
            "timed_out": False,
            "cause": None,
            "duration_s": 0.001,
            "truncated": False,
            "streams": {s: [self.seen[s], 0, self.digest[s].hexdigest()] for s in (1, 2)},
        }
        self.held.finish(self, result)
