"""The interfaces between a session and the handlers of its channels.

Owns ``Channel``, through which a handler sends facts, and ``Handler``, which a session calls for requests. The session knows frames,
offsets and connections; handlers know processes, files and sockets. All methods are synchronous: a handler changes state and returns, and
the session sends later, in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast_wire.frames import Fact

if TYPE_CHECKING:
    from session_agent.agent.context import AgentContext


class Channel(Protocol):
    """The agent's end of one channel."""

    @property
    def number(self) -> int:
        """The channel's number, to put into facts."""
        ...

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of Open as the client sent them: untrusted types."""
        ...

    @property
    def attached(self) -> bool:
        """Whether a client is connected now."""
        ...

    def send(self, fact: Fact) -> None:
        """Send a fact. Output must fit ``room()`` and ``DATA_BYTES``; after a final fact nothing may follow."""
        ...

    def queue(self, fact: Fact) -> None:
        """Send a fact with the next one, or with ``wake``."""
        ...

    def wake(self) -> None:
        """Send the queued facts; no other one follows."""
        ...

    def room(self) -> int:
        """Bytes of Output that may be sent now, limited by credit and memory. ``writable`` is called when it grows."""
        ...

    @property
    def is_memory_full(self) -> bool:
        """Whether there is credit but no memory: the limit of unacknowledged bytes is reached."""
        ...

    @property
    def settled(self) -> bool:
        """Whether the client has acknowledged everything that was sent to it."""
        ...

    def consume(self, size_bytes: int) -> None:
        """``size_bytes`` of Write data were used: return the credit to the client."""
        ...


class ListenerChannel(Channel, Protocol):
    """The agent's end of a channel of kind ``listen``."""

    def may_accept(self) -> bool:
        """Whether a connection may be accepted now. ``writable`` is called when it may again."""
        ...

    def accept(self, info: dict[str, Any], serving: Callable[[Channel], Handler]) -> None:
        """Open a channel for a connection of this listener. ``serving`` returns the handler of that channel."""
        ...


class Handler:
    """Serves one channel. Its methods are called on the loop; they must not block, and raise only ``HoldfastError``.

    A subclass implements the requests that its kind of channel accepts. The session refuses all others
    (``holdfast_wire.session.channels.IMPERATIVES``), so the methods here do nothing.
    """

    def run(self, command_id: str, params: dict[str, Any]) -> None:
        """Run a command in the shell."""

    def write(self, data: bytes, eof: bool) -> None:
        """Accept input; call ``Channel.consume`` as it is used."""

    def resize(self, rows: int, columns: int) -> None:
        """Resize the terminal."""

    def signal(self, name: str) -> None:
        """Signal the process."""

    def close(self, detach: bool) -> None:
        """The client closes the channel; answer with a final fact."""

    def writable(self) -> None:
        """Credit returned, or the client attached or detached: send what waits."""

    def delivered(self, command_id: str) -> None:
        """The client has received the result of ``command_id``."""

    def drop(self) -> None:
        """The channel was removed: stop using it. Commands, shells and terminals continue."""


Factory = Callable[["AgentContext", Channel], Handler]
