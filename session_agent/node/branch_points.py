"""Snapshots that exist only while branches are created from them.

Owns their files in the image store, where no name finds them, and the variables of the sandbox that each was taken of. ``sandboxes`` adds
one, creates branches from it, and removes it when the gateway says so. One whose gateway has ended is removed when the next is added
after ``KEPT_S``, and at the start of the node.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast_wire.errors import HoldfastError

from session_agent.node.images.spec import ImageSpec
from session_agent.node.images.store import ImageStore
from session_agent.node.images.upper import Copied
from session_agent.node.sandbox import Sandbox

KEPT_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Point:
    owner: str
    env: dict[str, str]
    taken_at: float


class BranchPoints:
    """All of one node."""

    def __init__(self, images: ImageStore) -> None:
        self._images = images
        self._points: dict[str, _Point] = {}

    async def add(self, box: Sandbox, copy: Callable[[str, str], Awaitable[Copied]]) -> str:
        """Store the files and variables of a sandbox; returns the name of the branch point. Raises what ``ImageStore.commit`` raises."""
        oldest = time.monotonic() - KEPT_S
        for name in [name for name, point in self._points.items() if point.taken_at < oldest]:
            await self.remove(name)
        name = secrets.token_hex(16)
        await self._images.commit(box.image, None, copy, holder=_holder(name))
        self._points[name] = _Point(box.request.owner, box.request.env, time.monotonic())
        return name

    def files(self, name: str, owner: str) -> tuple[ImageSpec, dict[str, str]]:
        """The files and variables of a branch point. Raises HoldfastError(image_not_found)."""
        point = self._points.get(name)
        if point is None or point.owner != owner:
            raise HoldfastError("image_not_found", "the state to branch from exists no more", hint="branch again")
        return self._images.held(_holder(name)), point.env

    async def remove(self, name: str) -> None:
        """Remove a branch point, if it exists. Raises OSError."""
        if self._points.pop(name, None) is not None:
            await self._images.release_held([_holder(name)])


def _holder(name: str) -> str:
    # Not the form of a sandbox's id.
    return f"+{name}"
