"""The legal frames of a channel, as tables (PROTOCOL §7).

Owns the kinds of channels, the imperatives that each accepts and the order of its facts. Both ends check against the same table: the agent
checks a client's requests, the client checks an agent's facts (code in the sandbox may have replaced it). Called by both ends.
"""

from __future__ import annotations

from enum import Enum

from holdfast_wire.errors import ProtocolError
from holdfast_wire.frames import (
    Accepted,
    Close,
    Closed,
    Exited,
    Failed,
    Gap,
    Item,
    Open,
    Opened,
    Output,
    Resize,
    Run,
    Signal,
    Started,
    Write,
)


class State(Enum):
    """The state of a channel, given by the last fact on it."""

    OPENING = "opening"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"

    __hash__ = object.__hash__  # Enum's own is Python code that hashes the name: too much for a key that every fact looks up


_Table = dict[tuple[State, type[Item]], State]

_O, _R, _B, _E = State.OPENING, State.READY, State.RUNNING, State.ENDED

_COMMAND: _Table = {
    (_O, Started): _B,
    (_B, Output): _B,
    (_B, Gap): _B,
    (_B, Exited): _E,
    (_O, Failed): _E,
    (_B, Failed): _E,
}
_SHELL: _Table = {
    (_O, Opened): _R,
    (_R, Started): _B,
    (_B, Output): _B,
    (_B, Gap): _B,
    (_B, Exited): _R,
    (_R, Output): _B,  # any fact of a Run shows that it started
    (_R, Gap): _B,
    (_R, Exited): _R,  # or it was refused before it started
    (_R, Closed): _E,
    (_B, Closed): _E,
    (_O, Failed): _E,
    (_R, Failed): _E,
    (_B, Failed): _E,
}
_TRANSFER: _Table = {
    (_O, Opened): _R,
    (_R, Output): _R,
    (_R, Closed): _E,
    (_O, Closed): _E,
    (_O, Failed): _E,
    (_R, Failed): _E,
}
_LISTEN: _Table = {
    (_O, Opened): _R,
    (_O, Closed): _E,
    (_R, Closed): _E,
    (_O, Failed): _E,
    (_R, Failed): _E,
}
_CONNECTION: _Table = {
    (_O, Accepted): _R,
    (_R, Output): _R,
    (_R, Closed): _E,
    (_O, Failed): _E,
    (_R, Failed): _E,
}

CONNECTION = "connection"
"""The kind of a channel that an agent opens; no client opens one."""

FACTS: dict[str, _Table] = {
    **dict.fromkeys(("command", "follow", "terminal"), _COMMAND),
    "shell": _SHELL,
    **dict.fromkeys(
        ("read", "write", "fs", "watch", "download", "upload", "patch", "tunnel", "dump", "restore", "history", "activity"), _TRANSFER
    ),
    "listen": _LISTEN,
    CONNECTION: _CONNECTION,
}
"""For each kind of channel: (state, fact) → next state. A transition that is not in the table is illegal."""

NO_FACTS: _Table = {}
"""For an unknown kind, for which ``next_state`` decides."""

IMPERATIVES: dict[str, frozenset[type[Item]]] = {
    **dict.fromkeys(("command", "follow"), frozenset({Write, Signal, Close})),
    "terminal": frozenset({Write, Resize, Signal, Close}),
    "shell": frozenset({Run, Write, Resize, Signal, Close}),
    **dict.fromkeys(("write", "upload", "patch", "tunnel", "restore", CONNECTION), frozenset({Write, Close})),
    **dict.fromkeys(("read", "fs", "watch", "download", "listen", "dump", "history", "activity"), frozenset({Close})),
}
"""For each kind of channel: the items that the client may send after Open."""

UNKNOWN_KIND = frozenset({Run, Write, Resize, Signal, Close})
"""The items that a client may have sent on a channel of an unknown kind before it reads the refusal."""


def next_state(kind: str, state: State, fact: Item) -> State:
    """The state after ``fact``. Raises ``ProtocolError`` when the table has no such transition."""
    following = FACTS.get(kind, _TRANSFER).get((state, type(fact)))
    if following is None:
        raise ProtocolError(f"{type(fact).__name__} is illegal on a {kind} channel that is {state.value}")
    return following


def check_imperative(kind: str, item: Item) -> None:
    """Raise ``ProtocolError`` when a client may not send ``item`` on a channel of ``kind``."""
    if isinstance(item, Open) or type(item) not in IMPERATIVES.get(kind, UNKNOWN_KIND):
        raise ProtocolError(f"{type(item).__name__} is illegal on a {kind} channel")
