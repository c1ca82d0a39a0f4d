"""The interface of a runtime: create and delete sandboxes, list them, and report events.

Owns the records and the protocol; one conformance suite (``tests/conformance/runtimes.py``) tests every implementation.
Called by the gateway's lifecycle routes and by the controller.

    HoldfastError └── RuntimeUnavailableError   the runtime does not answer; whether the request was carried out is not known
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from holdfast_wire.errors import HoldfastError

from gateway.model.options import Egress
from gateway.model.records import Cause, Paused, SandboxSpec


class RuntimeUnavailableError(HoldfastError):
    """The runtime does not answer.

    A create may or may not have been carried out, which the controller checks. ``made_nothing``: it was certainly not carried out, so it
    leaves nothing behind and can be repeated under the same key.
    """

    def __init__(
        self, message: str = "the sandbox runtime does not answer", *, made_nothing: bool = False, retry_after_s: int | None = None
    ) -> None:
        super().__init__("runtime_unavailable", message, detail={} if retry_after_s is None else {"retry_after_s": retry_after_s})
        self.made_nothing = made_nothing
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A sandbox to create. ``token`` is the secret with which the agent proves its identity; ``spec`` is returned in ``list_all``.

    ``other_tokens``: those of an agent that another replica started for the same incarnation while the deployment's secret is rotated.
    ``branch_point``: what ``Snapshots.hold`` returned; the sandbox then gets those files and the parent's variables below ``env``.
    """

    spec: SandboxSpec
    token: str
    env: dict[str, str] = field(default_factory=dict)
    other_tokens: tuple[str, ...] = ()
    branch_point: str = ""


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """A sandbox as the runtime sees it."""

    spec: SandboxSpec
    """The requested specification, with later changes of its network access."""
    endpoint: str
    created_at: float
    state: Literal["starting", "ready", "failed"] = "ready"
    """``starting``: it is being created (even if its creator has ended), or it runs and its agent may not listen yet."""
    cause: Cause | None = None
    """Why it failed."""
    adopted: bool = False
    """Whether it was a spare. Its readiness does not prove that its agent has the new identity: only the adopting replica learns that."""
    paused: Paused = ""

    @property
    def sandbox_id(self) -> str:
        return self.spec.sandbox_id

    @property
    def incarnation(self) -> str:
        return self.spec.incarnation


@dataclass(frozen=True, slots=True)
class Synced:
    """The first event of a watch, sent again after any break.

    Sandboxes that ended before it are not reported, and are missing in ``list_watched``.
    """

    began_at: float | None = None
    """When the runtime last started (seconds since the epoch), if a restart ends all its sandboxes; else None."""


@dataclass(frozen=True, slots=True)
class SandboxEnded:
    """A sandbox ended, on request or not."""

    sandbox_id: str
    incarnation: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class EndAnnounced:
    """A sandbox will end soon: its node is drained, or is a preempted spot instance. Sent once."""

    sandbox_id: str
    incarnation: str
    cause: Cause
    deadline: float
    """Seconds since the epoch."""


Event = Synced | EndAnnounced | SandboxEnded


@dataclass(frozen=True, slots=True)
class Image:
    """An image the runtime can create sandboxes from."""

    name: str
    digest: str = ""
    size_bytes: int = 0
    created: str | float | None = None
    ready: int | None = None
    """In a cluster: how many nodes have it, of ``wanted``."""
    wanted: int | None = None
    shared: bool = True
    """Whether every owner may use it."""
    parent: str = ""
    """Of a snapshot: the digest of the image that its sandbox was created from."""


class Images(Protocol):
    """An image store, where the runtime has one.

    ``owner`` is whose images these are; empty, they are the operator's, which all owners share. A name means the owner's own image, else
    the shared one; another owner's is indistinguishable from one that does not exist. In a cluster images belong to registries, and
    ``owner`` has no effect.
    """

    async def list_all(self, owner: str = "", *, steps: bool = False) -> list[Image]:
        """``steps``: also those that are kept only for later builds."""
        ...

    async def pull(self, name: str, owner: str = "") -> Image: ...
    async def remove(self, name: str, owner: str = "") -> None: ...


@runtime_checkable
class ImageArchives(Protocol):
    """An image store that reads and writes archives, and in which an image may have several names."""

    async def load(self, path: Path, name: str, owner: str = "") -> Image:
        """Import the archive in a file."""
        ...

    async def save(self, name: str, path: Path, owner: str = "") -> None:
        """Write an image to a new file, as an OCI archive. Raises ``image_not_found``, and ``unsupported`` for the machine's own image."""
        ...

    async def tag(self, name: str, other: str, owner: str = "", config: dict[str, Any] | None = None, *, shared: bool = False) -> Image:
        """Give an image that the owner may use another name, of the owner's or ``shared``, with ``config`` as one with this configuration.

        Raises ``image_not_found``.
        """
        ...

    async def config(self, name: str, owner: str = "") -> dict[str, Any]:
        """``name``, ``digest``, the configuration in OCI's form as ``config``, and ``architecture``. Raises ``image_not_found``."""
        ...


@runtime_checkable
class KeptImages(Protocol):
    """An image store that brings images to every node in advance."""

    async def keep(self, names: Sequence[str]) -> list[Image]:
        """Keep these images on every node as long as they are listed; called periodically by the acting controller."""
        ...


class Runtime(Protocol):
    """What every runtime can do. What only some can do are the protocols below, which callers ask for with ``isinstance``.

    Every method raises ``RuntimeUnavailableError`` when the runtime is down, and HoldfastErrors of the table otherwise.
    """

    async def create(self, request: CreateRequest, timeout_s: float) -> str:
        """Create it, wait until its agent answers, and return the endpoint. The same id and incarnation again returns what exists.

        Raises ``sandbox_exists`` (another incarnation exists), ``image_not_found``, ``no_capacity``, ``create_timeout``, and
        ``unsupported`` for network access or options of ``spec`` that it cannot provide, rather than create a sandbox without them.
        A failed sandbox may remain: the caller deletes it, once it has recorded the cause and knows that no other replica has created it.
        """
        ...

    async def delete(self, sandbox_id: str, incarnation: str | None = None) -> bool:
        """End a sandbox and remove everything of it; True when it existed. With ``incarnation``, only that one."""
        ...

    async def get(self, sandbox_id: str) -> list[SandboxStatus]:
        """The sandbox of that id, beside which a previous incarnation may still be ending."""
        ...

    async def list_all(self) -> list[SandboxStatus]: ...

    async def list_watched(self) -> list[SandboxStatus]:
        """As ``list_all``, but from the events of a running ``watch`` if the runtime stores them: cheap, and possibly out of date.

        No sandbox is ended because of it without a call of ``get``.
        """
        ...

    def watch(self) -> AsyncIterator[Event]:
        """Events until cancelled, beginning with ``Synced``. Reconnects by itself, with a new ``Synced``."""
        ...

    async def doctor(self) -> list[dict[str, Any]]:
        """Checks of this machine or cluster: name, ok, detail, fix."""
        ...

    async def ping(self) -> None:
        """Raises when the runtime is down. Cheap, however many sandboxes there are."""
        ...

    async def stats(self) -> dict[str, Any]:
        """At least ``cpu_total`` and ``memory_total`` (None where unknown), ``cpu_requested`` and ``memory_requested``."""
        ...

    async def largest(self) -> tuple[float, int] | None:
        """Cores and bytes of memory of the largest machine that a sandbox can be placed on; None if that is not known."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class OneMachine(Protocol):
    """All sandboxes run on one machine: a limit of cpu above its cores is no limit there, and so it is lowered to them."""

    @property
    def cores(self) -> float:
        """How many the machine has."""
        ...


@runtime_checkable
class HasImages(Protocol):
    """It has an image store, which may be an ``ImageArchives`` or ``KeptImages`` too."""

    @property
    def images(self) -> Images: ...


@runtime_checkable
class Pools(Protocol):
    """It turns spares of warm pools into sandboxes."""

    async def adopt(self, spare_id: str, request: CreateRequest, timeout_s: float) -> str:
        """Turn a spare sandbox of a warm pool, created with the same image, size and options, into the requested one.

        At most one caller gets a spare. Raises ``sandbox_not_found`` when it is gone or taken; then create one instead.
        """
        ...


@runtime_checkable
class EgressChanges(Protocol):
    """It changes the network access of running sandboxes."""

    async def set_egress(self, sandbox_id: str, incarnation: str, egress: Egress) -> None:
        """Change what a running sandbox may reach, only if it is that incarnation.

        Raises ``unsupported`` if that cannot be enforced, or ``sandbox_not_found``.
        """
        ...


@runtime_checkable
class Snapshots(Protocol):
    """It stores the files of running sandboxes as images, and stops and continues sandboxes.

    Every method raises ``sandbox_not_found`` where that incarnation does not run.
    """

    async def snapshot(self, sandbox_id: str, incarnation: str, name: str | None) -> Image:
        """Store the files, as they are at one instant, as an image of the sandbox's owner; without a name it is named by its digest."""
        ...

    async def hold(self, sandbox_id: str, incarnation: str) -> str:
        """Store the files and variables for sandboxes that are created from them (``CreateRequest.branch_point``), until ``release``."""
        ...

    async def release(self, branch_point: str) -> None:
        """Remove what ``hold`` stored. Sandboxes that were created from it are not affected. May be repeated."""
        ...

    async def pause(self, sandbox_id: str, incarnation: str) -> None:
        """Stop all processes until ``resume``. May be repeated."""
        ...

    async def suspend(self, sandbox_id: str, incarnation: str, shells: bytes) -> None:
        """End all processes and keep the files until ``resume``, together with ``shells``; both outlive the runtime. May be repeated."""
        ...

    async def resume(self, sandbox_id: str, incarnation: str) -> bytes:
        """Continue a paused sandbox; returns the ``shells`` of ``suspend`` when its agent answers. Does nothing for one that runs.

        Where there are shells it is listed as paused until ``resumed``, and another call returns the same.
        """
        ...

    async def resumed(self, sandbox_id: str, incarnation: str) -> None:
        """The shells that ``resume`` has returned are restored. May be repeated."""
        ...


@runtime_checkable
class Collects(Protocol):
    """It leaves objects behind that have to be collected."""

    async def collect(self) -> int:
        """Remove what was created for sandboxes and is unused, and return how much. The acting controller calls it periodically."""
        ...


@runtime_checkable
class OwnMachine(Protocol):
    """It has one machine, with spares and a data folder of its own."""

    async def spares(self) -> dict[str, int]:
        """The spares of the machine: how many are ``ready``, how many are ``wanted``, and the limit ``most``."""
        ...

    async def room(self) -> dict[str, int]:
        """Bytes of the data folder: ``free``, ``promised`` to sandboxes, and ``left`` for new data."""
        ...


@runtime_checkable
class PullProgress(Protocol):
    """It knows how far the pulls of images are."""

    async def pulls(self, owner: str) -> list[dict[str, Any]]:
        """The latest pulls of an owner: ``name``, ``state`` (waiting, fetching, importing, done, failed), ``received_bytes``, ``error``."""
        ...


@runtime_checkable
class PortSockets(Protocol):
    """It connects to ports inside sandboxes without their agents, from this process."""

    async def connect_port(self, sandbox_id: str, incarnation: str, port: int) -> socket.socket:
        """A connection to a program on a loopback address of that incarnation's own network: a TCP socket that does not block.

        No process of the sandbox has it. Raises what a sandbox or port that cannot be reached means, such as ``port_unreachable``.
        """
        ...


CAPABILITIES: Final[dict[str, type]] = {
    "images": HasImages,
    "pools": Pools,
    "egress": EgressChanges,
    "snapshots": Snapshots,
    "collection": Collects,
    "machine": OwnMachine,
    "pull-progress": PullProgress,
    "port-sockets": PortSockets,
}
"""The optional protocols by the name that the doctor shows."""


def capabilities(runtime: Runtime) -> list[str]:
    """The names of what a runtime can do beyond ``Runtime``."""
    return [name for name, protocol in CAPABILITIES.items() if isinstance(runtime, protocol)]
