"""The interface of a runtime: make sandboxes, end them, say what there is and what becomes of it.

Owns the records and the protocol; one conformance suite (``tests/conformance/runtimes.py``) holds every implementation to it.
Implementations own how. Called by the gateway's lifecycle routes and by the controller.

    HoldfastError
    └── RuntimeUnavailableError   the runtime does not answer; nothing is known to have happened
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from holdfast_wire.errors import HoldfastError

from gateway.model.options import Egress, Options
from gateway.model.records import Cause


class RuntimeUnavailableError(HoldfastError):
    """The runtime is away. A create may or may not have happened: the controller finds out.

    ``made_nothing``: it has certainly not happened, so the request leaves nothing behind and can be repeated under the same key.
    """

    def __init__(
        self, message: str = "the sandbox runtime does not answer", *, made_nothing: bool = False, retry_after_s: int | None = None
    ) -> None:
        super().__init__("runtime_unavailable", message, detail={} if retry_after_s is None else {"retry_after_s": retry_after_s})
        self.made_nothing = made_nothing


@dataclass(frozen=True, slots=True)
class Order:
    """A sandbox to make. ``token`` is what its agent proves itself with; ``labels`` come back in ``list``.

    ``other_tokens`` are what one may have that another replica made for the same incarnation, while the deployment rotates its secret.
    """

    sandbox_id: str
    incarnation: str
    token: str
    owner: str
    image: str
    cores: float
    memory_bytes: int
    disk_bytes: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    egress: Egress = field(default_factory=Egress)
    options: Options = field(default_factory=Options)
    other_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """A sandbox whose agent answers at ``endpoint``."""

    endpoint: str
    agent_epoch: str


@dataclass(frozen=True, slots=True)
class Present:
    """A sandbox the runtime has."""

    sandbox_id: str
    incarnation: str
    owner: str
    image: str
    endpoint: str
    created_at: float
    cores: float = 0.0
    memory_bytes: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    state: Literal["starting", "ready", "failed"] = "ready"
    """``starting``: it is being made, also where whoever asked for it is gone, or runs and it is not known yet that its agent listens."""
    cause: Cause | None = None
    """Why it failed."""
    egress: Egress = field(default_factory=Egress)
    options: Options = field(default_factory=Options)
    adopted: bool = False
    """It was a spare: that it is ready does not say that its agent knows whose it is by now; only who makes the sandbox can."""


@dataclass(frozen=True, slots=True)
class Synced:
    """First event of a watch, and again after any break: everything there is now."""

    sandboxes: list[Present]
    began_at: float | None = None
    """Where a restart of the runtime ends all it had: when it began with nothing (seconds since the epoch). None elsewhere."""


@dataclass(frozen=True, slots=True)
class BecameReady:
    """A sandbox's agent answers."""

    sandbox_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class WentAway:
    """A sandbox ended, asked for or not."""

    sandbox_id: str
    incarnation: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Leaving:
    """A sandbox will end soon whatever it does: its node is drained, or was bought at an auction and lost. Sent once."""

    sandbox_id: str
    incarnation: str
    cause: Cause
    deadline: float
    """Seconds since the epoch."""


Event = Synced | BecameReady | Leaving | WentAway


@dataclass(frozen=True, slots=True)
class Image:
    """An image the runtime can make sandboxes from."""

    name: str
    digest: str = ""
    size_bytes: int = 0
    created: str | float | None = None
    ready: int | None = None
    """In a cluster: how many nodes have it, of ``wanted``."""
    wanted: int | None = None


class Images(Protocol):
    """An image store, where the runtime has one of its own."""

    async def list_all(self) -> list[Image]: ...
    async def load(self, path: Path, name: str) -> Image: ...
    async def pull(self, name: str) -> Image: ...
    async def remove(self, name: str) -> None: ...

    async def keep(self, names: Sequence[str]) -> list[Image]:
        """Have these wherever sandboxes are made, as long as they are named; called again and again by the acting controller."""
        ...


class Runtime(Protocol):
    """Every method raises ``RuntimeUnavailableError`` when the runtime is away, and HoldfastErrors of the table otherwise."""

    @property
    def images(self) -> Images | None:
        """The image store, None where images live elsewhere."""
        ...

    async def create(self, order: Order, timeout_s: float) -> Made:
        """Make it and wait until its agent answers. The same id and incarnation again answers what exists.

        Raises ``sandbox_exists`` (another incarnation lives), ``image_not_found``, ``no_capacity``, ``create_timeout``. What is late or has
        failed may still be there: the caller removes it, once it has written down why and nobody else can have made it.
        """
        ...

    async def delete(self, sandbox_id: str, incarnation: str | None = None) -> bool:
        """End it and remove everything of it; True when there was something. With ``incarnation``, only if it is that one."""
        ...

    async def adopt(self, spare_id: str, order: Order, timeout_s: float) -> Made:
        """Turn a spare sandbox of a warm pool, made with the same image, size and options, into the ordered one.

        At most one caller gets a spare. Raises ``sandbox_not_found`` when it is gone or taken; then make one instead.
        """
        ...

    async def allow(self, sandbox_id: str, incarnation: str, egress: Egress) -> None:
        """Change what a running sandbox may reach, only if it is that incarnation.

        Raises ``unsupported`` where that cannot be enforced, ``sandbox_not_found``.
        """
        ...

    async def list_all(self) -> list[Present]: ...

    def watch(self) -> AsyncIterator[Event]:
        """Events until cancelled, beginning with ``Synced``. Reconnects by itself, with a new ``Synced``."""
        ...

    async def collect(self) -> int:
        """Remove what was made for sandboxes and is needed by none any more; how many. The acting controller calls it now and then."""
        ...

    async def doctor(self) -> list[dict[str, Any]]:
        """Checks of this machine or cluster: name, ok, detail, fix."""
        ...

    async def ping(self) -> None:
        """Raises when the runtime is away. Cheap, however many sandboxes there are."""
        ...

    async def stats(self) -> dict[str, Any]:
        """What there is and what is taken: cpu and memory."""
        ...

    async def largest(self) -> tuple[float, int] | None:
        """Cores and bytes of memory of the largest machine that a sandbox may come to; None where that cannot be said."""
        ...

    async def aclose(self) -> None: ...
