"""The frames of the protocol: one small frozen dataclass each (PROTOCOL §3, §4).

Owns names, field order and kind numbers. Imperatives go from client to agent, facts from agent to client; both are
*items*: ordered per channel and direction, numbered by absolute offset, delivered exactly once. Bookkeeping frames are about
the connection itself and are never replayed. Printing a frame never prints its payload.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from .fast_dataclass import dataclass

STDOUT = 1
STDERR = 2

Side = Literal["client", "agent"]


def _elide(data: bytes) -> str:
    return f"<{len(data)} bytes>"


@dataclass(frozen=True, slots=True)
class Item:
    """A frame that belongs to a channel and is delivered exactly once, in order."""

    KIND: ClassVar[int]
    SENDER: ClassVar[Side]

    channel: int

    @property
    def length(self) -> int:
        """How far this item moves the channel's offset: its number of bytes, or 1 if it has none (PROTOCOL §4.2)."""
        return 1


# Imperatives: client → agent ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open(Item):
    """Open a channel of ``kind`` (command, follow, shell, terminal, read, write, fs, download, upload, patch, tunnel, listen)."""

    KIND: ClassVar[int] = 1
    SENDER: ClassVar[Side] = "client"
    kind: str
    params: dict[str, Any]

    def __repr__(self) -> str:
        return f"Open(channel={self.channel}, kind={self.kind!r}, params=<{len(self.params)}>)"


@dataclass(frozen=True, slots=True)
class Run(Item):
    """Run one command in the channel's shell, after those already queued."""

    KIND: ClassVar[int] = 2
    SENDER: ClassVar[Side] = "client"
    command_id: str
    params: dict[str, Any]

    def __repr__(self) -> str:
        return f"Run(channel={self.channel}, command_id={self.command_id!r}, params=<{len(self.params)}>)"


@dataclass(frozen=True, slots=True)
class Write(Item):
    """Bytes for the channel's input; ``eof`` ends the input after them."""

    KIND: ClassVar[int] = 3
    SENDER: ClassVar[Side] = "client"
    data: bytes
    eof: bool = False

    @property
    def length(self) -> int:
        return len(self.data) or 1

    def __repr__(self) -> str:
        return f"Write(channel={self.channel}, data={_elide(self.data)}, eof={self.eof})"


@dataclass(frozen=True, slots=True)
class Resize(Item):
    """Set the terminal's size, in character cells."""

    KIND: ClassVar[int] = 4
    SENDER: ClassVar[Side] = "client"
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Signal(Item):
    """Send a signal, named without ``SIG``, to the command or program of the channel."""

    KIND: ClassVar[int] = 5
    SENDER: ClassVar[Side] = "client"
    name: str


@dataclass(frozen=True, slots=True)
class Close(Item):
    """End the channel and its command; with ``detach`` the command continues to run."""

    KIND: ClassVar[int] = 6
    SENDER: ClassVar[Side] = "client"
    detach: bool = False


# Facts: agent → client ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened(Item):
    """The channel is open; ``info`` depends on its kind."""

    KIND: ClassVar[int] = 16
    SENDER: ClassVar[Side] = "agent"
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Started(Item):
    """The command has begun: from here on it may have had effects."""

    KIND: ClassVar[int] = 17
    SENDER: ClassVar[Side] = "agent"
    command_id: str
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Output(Item):
    """Bytes of ``stream`` (1 stdout, 2 stderr); no bytes mean the end of that stream."""

    KIND: ClassVar[int] = 18
    SENDER: ClassVar[Side] = "agent"
    stream: int
    data: bytes

    @property
    def length(self) -> int:
        return len(self.data) or 1

    def __repr__(self) -> str:
        return f"Output(channel={self.channel}, stream={self.stream}, data={_elide(self.data)})"


@dataclass(frozen=True, slots=True)
class Gap(Item):
    """``dropped`` bytes of ``stream`` are missing here and cannot be recovered."""

    KIND: ClassVar[int] = 19
    SENDER: ClassVar[Side] = "agent"
    stream: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Exited(Item):
    """The command has ended; ``result`` is its outcome (PROTOCOL §7.4)."""

    KIND: ClassVar[int] = 20
    SENDER: ClassVar[Side] = "agent"
    command_id: str
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Closed(Item):
    """The channel ended normally."""

    KIND: ClassVar[int] = 21
    SENDER: ClassVar[Side] = "agent"
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed(Item):
    """The channel ended because of ``error`` (the map of ``HoldfastError.to_map``)."""

    KIND: ClassVar[int] = 22
    SENDER: ClassVar[Side] = "agent"
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Accepted(Item):
    """A program has connected to what the channel ``listener`` listens on; this channel, opened by the agent, is the connection."""

    KIND: ClassVar[int] = 23
    SENDER: ClassVar[Side] = "agent"
    listener: int
    info: dict[str, Any]


# Bookkeeping: in both directions, on channel 0 unless a frame concerns another channel -----------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first frame on a connection (PROTOCOL §3.1).

    ``agent_epoch`` and ``generation`` are those of the last Welcome, empty and 0 before the first. ``attempt`` rises with every
    Hello of this client, so that a delayed one is recognised. ``received`` maps each live channel to how far the client has
    received it; ``next_channel`` is the lowest channel number it never used. ``take_over`` drops the channels of the client that held
    the session before and starts with none. ``next_accepted`` is the lowest number it accepts for a channel that the agent opens, 0 if
    the agent may open none.
    """

    KIND: ClassVar[int] = 32
    version: int
    session_id: str
    secret: bytes
    agent_epoch: str
    generation: int
    attempt: int
    received: dict[int, int]
    next_channel: int
    take_over: bool = False
    next_accepted: int = 0

    def __repr__(self) -> str:
        return f"Hello(version={self.version}, session_id={self.session_id!r}, channels={len(self.received)})"


@dataclass(frozen=True, slots=True)
class Welcome:
    """The agent's answer to Hello: its identity, and how far it has received each live channel."""

    KIND: ClassVar[int] = 33
    version: int
    agent_epoch: str
    generation: int
    resumed: bool
    received: dict[int, int]
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ack:
    """Everything of ``channel`` below ``offset`` has been received: the sender may free it."""

    KIND: ClassVar[int] = 34
    channel: int
    offset: int


@dataclass(frozen=True, slots=True)
class Credit:
    """The peer may send bytes of ``channel`` up to ``limit`` (absolute offset)."""

    KIND: ClassVar[int] = 35
    channel: int
    limit: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A liveness check. Answered by a Pong with the same number."""

    KIND: ClassVar[int] = 36
    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to Ping."""

    KIND: ClassVar[int] = 37
    number: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """This connection will end in ``deadline_s`` seconds: move to another one within ``jitter_s`` seconds."""

    KIND: ClassVar[int] = 38
    deadline_s: float
    jitter_s: float
    reason: str


Imperative = Open | Run | Write | Resize | Signal | Close
Fact = Opened | Started | Output | Gap | Exited | Closed | Failed | Accepted
Bookkeeping = Hello | Welcome | Ack | Credit | Ping | Pong | GoAway
AnyItem = Imperative | Fact
Frame = AnyItem | Bookkeeping
