"""API keys, projects and limits.

Pure. Owns the reading of answers about them; ``_async.tenants`` asks for them.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire.fast_dataclass import dataclass

from ._results import Fields, take_all


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What the service knows of an API key. Times are seconds since the epoch."""

    key_id: str
    """Names the key; it reveals nothing about it."""
    owner: str
    """Whose sandboxes the key reaches."""
    project: str | None = None
    """The project to which it is limited."""
    scopes: tuple[str, ...] = ()
    """What it permits: of ``read``, ``create``, ``exec``, ``files``, ``images`` and ``admin``."""
    created_at: float | None = None
    """When it was made; None for a key of the keys file."""
    created_by: str | None = None
    """The owner of the key that made it."""
    expires_at: float | None = None
    """When it ends; None: it has no end."""
    revoked_at: float | None = None
    """When it was revoked."""
    replaced_by: str | None = None
    """The id of the key that a rotation made in its place."""
    used_at: float | None = None
    """When it was used last, within half a minute."""
    note: str = ""
    """What its maker noted."""
    valid: bool = True
    """False once it is revoked or has expired."""
    in_file: bool = False
    """Whether it is a line of the keys file, which only an editor changes."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was made: what is known of it, and the key itself, which nobody can see again."""

    info: KeyInfo
    """What is known of it."""
    key: str
    """The key."""

    def __repr__(self) -> str:
        return f"NewKey(info={self.info!r}, key=...)"


@dataclass(frozen=True, slots=True)
class ProjectInfo:
    """A project."""

    project: str
    """Its name."""
    members: tuple[str, ...] = ()
    """The owners whose keys are valid in it."""
    sharing: str = "none"
    """What a member may do with the sandboxes of the others: ``none``, ``read`` (look at them) or ``use`` (all that its key permits)."""
    created_at: float = 0.0
    """When it was made, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """One limit that holds, and how much of it is used."""

    subject: str
    """Whose limit it is: ``owner:NAME``, ``project:NAME`` or ``key:ID``."""
    name: str
    """Which: ``sandboxes``, ``cores``, ``memory_bytes``, ``creates_per_minute``, ``requests_per_minute``, ``output_bytes_per_minute`` or
    ``upload_bytes_per_minute``."""
    most: float
    """The limit."""
    used: float | None = None
    """Of a quota: how much is used."""
    left: float | None = None
    """Of a rate: how much there is at the moment."""


_NUMBER = (int, float)
_LIMIT: Fields = (("subject", (str,), ""), ("name", (str,), ""), ("most", _NUMBER, 0.0), ("used", _NUMBER, None), ("left", _NUMBER, None))
_KEY: Fields = (
    ("key_id", (str,), ""), ("owner", (str,), ""), ("project", (str,), None), ("scopes", (list,), []), ("created_at", _NUMBER, None),
    ("created_by", (str,), None), ("expires_at", _NUMBER, None), ("revoked_at", _NUMBER, None), ("replaced_by", (str,), None),
    ("used_at", _NUMBER, None), ("note", (str,), ""), ("valid", (bool,), True), ("in_file", (bool,), False),
)  # fmt: skip
_PROJECT: Fields = (("project", (str,), ""), ("members", (list,), []), ("sharing", (str,), "none"), ("created_at", _NUMBER, 0.0))


def read_key(body: Any) -> KeyInfo:
    """From a REST answer."""
    key_id, owner, project, scopes, *rest = take_all(body, _KEY)
    return KeyInfo(key_id, owner, project, tuple(map(str, scopes)), *rest)


def read_new_key(body: Any) -> NewKey:
    """From the answer that makes a key."""
    return NewKey(read_key(body), *take_all(body, (("key", (str,), ""),)))


def read_project(body: Any) -> ProjectInfo:
    """From a REST answer."""
    project, members, *rest = take_all(body, _PROJECT)
    return ProjectInfo(project, tuple(map(str, members)), *rest)


def read_limit(body: Any) -> LimitInfo:
    """From a REST answer."""
    return LimitInfo(*take_all(body, _LIMIT))


for _public in (KeyInfo, LimitInfo, NewKey, ProjectInfo):
    _public.__module__ = "holdfast"  # where they are imported from
