"""What a handler sees of its channel, and what a channel asks of its handler.

Owns the two interfaces between the session (which knows frames, offsets and connections) and the things that run in the
sandbox (which know processes, files and sockets). Every method on both sides is synchronous: a handler changes state and
returns, the session sends when the loop comes round.
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
        """Nothing follows what was queued."""
        ...

    def room(self) -> int:
        """Bytes of Output that may be sent now: as the client's credit allows, and what the agent can hold. ``writable`` is called when
        it grows.
        """
        ...

    @property
    def crowded(self) -> bool:
        """Whether there is credit, and the agent holds as much as it can of what clients have yet to take."""
        ...

    def consume(self, size_bytes: int) -> None:
        """``size_bytes`` of Write data were used: the client gets the credit back."""
        ...


class Handler:
    """What serves one channel. Called on the loop; must neither block nor raise anything but ``HoldfastError``.

    A handler has the methods for what its kind of channel takes. The session refuses everything else before it gets here
    (``holdfast_wire.channels.IMPERATIVES``), so the others do nothing.
    """

    def run(self, command_id: str, params: dict[str, Any]) -> None:
        """Run a command in the shell."""

    def write(self, data: bytes, eof: bool) -> None:
        """Take input; call ``consume`` as it is used."""

    def resize(self, rows: int, columns: int) -> None:
        """Resize the terminal."""

    def signal(self, name: str) -> None:
        """Signal what runs."""

    def close(self, detach: bool) -> None:
        """The client is done with the channel; answer with a final fact."""

    def writable(self) -> None:
        """Credit came back, or a client came or went: send on."""

    def delivered(self, command_id: str) -> None:
        """The client has the exit of ``command_id``."""

    def drop(self) -> None:
        """The channel is gone without an end: stop using it. What the sandbox owns lives on."""


Factory = Callable[["AgentContext", Channel], Handler]
