"""What the node knows of one sandbox: its request, its container and its state. Data only; ``sandboxes`` changes it, under its lock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from session_agent.node.containers import Container
from session_agent.node.images.spec import ImageSpec
from session_agent.node.request import CreateRequest

Paused = Literal["", "memory", "disk"]
"""How a sandbox is paused: stopped with its memory, or with its files alone. Empty if it is not."""


@dataclass(slots=True, eq=False)
class Sandbox:
    """One sandbox: its request, its container and its state."""

    request: CreateRequest
    image: ImageSpec
    socket_path: str
    created_at: float
    lasting_image: bool = True
    """Whether others may be created from the image: then spares of it are kept."""
    container: Container | None = None
    state: str = "creating"
    paused: Paused = ""
    shells: str = ""
    """What ``suspend`` was given, until the gateway has restored it after a ``resume``."""
    reason: str = ""
    fault: str = ""
    message: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its processes have ended and its end was reported: from then on another sandbox may use its id."""
    before: Sandbox | None = None
    """The sandbox that had this id and is ending, until its id is free."""

    def to_map(self) -> dict[str, Any]:
        request = self.request
        return {
            "sandbox_id": request.sandbox_id,
            "incarnation": request.incarnation,
            "image": request.image,
            "endpoint": f"unix://{self.socket_path}",
            "owner": request.owner,
            "labels": request.labels,
            "cpu": request.limits.cpu,
            "memory": request.limits.memory_bytes,
            "network": request.network,
            "created_at": self.created_at,
            "state": self.state,
            "paused": self.paused or ("disk" if self.shells else ""),
            "reason": self.reason,
            "fault": self.fault,
            "message": self.message,
        }
