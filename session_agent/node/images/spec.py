"""The facts about an image that the node needs to create a sandbox. Data only; store.py and host.py fill it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """`layers` are directories, topmost first; `trees` (source, target) are mounted read-only; `hidden` paths are masked.

    `entrypoint` is the command that `docker run` would start: ENTRYPOINT and CMD.
    """

    digest: str
    layers: tuple[str, ...]
    trees: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    """The rest of its configuration, for snapshots (``ImageRecord.config``)."""
    origin: str = ""
    """The digest of the image that users know it by, where this is the state of a sandbox of that image."""
