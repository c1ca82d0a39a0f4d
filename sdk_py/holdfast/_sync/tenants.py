# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""API keys and projects, for operators: make, list, change, end; and limits, which everybody may look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast._arguments import given
from holdfast._sync.rest import Rest
from holdfast._public import public
from holdfast._results import take
from holdfast._tenant_results import KeyInfo, LimitInfo, NewKey, ProjectInfo, read_key, read_limit, read_new_key, read_project
from holdfast._urls import quoted

KeyList = list[KeyInfo]
ProjectList = list[ProjectInfo]
LimitList = list[LimitInfo]


@public
class Keys:
    """``client.keys``: the API keys of the service. Needs a key with the scope ``admin``."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def create(
        self, owner: str, *, project: str | None = None, scopes: Iterable[str] = (), expires_s: float | None = None, note: str = ""
    ) -> NewKey:
        """Make a key of ``owner``; only the result has the key itself.

        ``project``: the key is limited to a project of which the owner is a member. ``scopes`` are of ``read``, ``create``, ``exec``,
        ``files``, ``images`` and ``admin``; without any the key has all but ``admin``. It ends after ``expires_s`` seconds, or without
        that when it is revoked. ``note`` is shown in lists. Raises ``InvalidArgumentError``.
        """
        names = [scopes] if isinstance(scopes, str) else list(scopes)
        body = {"owner": owner, "note": note, **given(project=project, scopes=names or None, expires_s=expires_s)}
        return read_new_key((self._rest.request("POST", "/keys", json=body, idempotent=False)).map())

    def list(self, *, owner: str | None = None, project: str | None = None) -> KeyList:
        """All keys, the latest first; with ``owner`` and ``project`` only those of theirs. Keys of the keys file come last."""
        answer = self._rest.request("GET", "/keys", params=given(owner=owner, project=project))
        return [read_key(row) for row in take(answer.map(), "keys", list, default=[]) if isinstance(row, dict)]

    def get(self, key_id: str) -> KeyInfo:
        """The key ``key_id``. Raises ``NotFoundError``."""
        return read_key((self._rest.request("GET", f"/keys/{quoted(key_id)}")).map())

    def rotate(self, key_id: str, *, grace_s: float | None = None) -> NewKey:
        """Make a key in place of ``key_id``, which ends at once, or after ``grace_s`` seconds. Raises ``NotFoundError``."""
        answer = self._rest.request("POST", f"/keys/{quoted(key_id)}/rotate", json=given(grace_s=grace_s), idempotent=False)
        return read_new_key(answer.map())

    def revoke(self, key_id: str) -> KeyInfo:
        """End the key ``key_id`` at once, with the sessions, streams and previews that use it. Raises ``NotFoundError``."""
        return read_key((self._rest.request("DELETE", f"/keys/{quoted(key_id)}")).map())


@public
class Projects:
    """``client.projects``: the projects of the service. Needs a key with the scope ``admin``."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def create(self, project: str, *, members: Iterable[str] = (), sharing: str = "none") -> ProjectInfo:
        """Make a project with these ``members``, which are owners.

        ``sharing``: what a member may do with the sandboxes of the others: ``none``, ``read`` (look at them) or ``use`` (all that the
        scopes of its key permit). Raises ``ConflictError`` if there is a ``project`` of this name, ``InvalidArgumentError``.
        """
        body = {"project": project, "members": [members] if isinstance(members, str) else list(members), "sharing": sharing}
        return read_project((self._rest.request("POST", "/projects", json=body, idempotent=False)).map())

    def list(self) -> ProjectList:
        """All projects, by name."""
        rows = take((self._rest.request("GET", "/projects")).map(), "projects", list, default=[])
        return [read_project(row) for row in rows if isinstance(row, dict)]

    def get(self, project: str) -> ProjectInfo:
        """The project ``project``. Raises ``NotFoundError``."""
        return read_project((self._rest.request("GET", f"/projects/{quoted(project)}")).map())

    def share(self, project: str, sharing: str) -> ProjectInfo:
        """Change what members of ``project`` may do with each other's sandboxes: ``sharing`` as in ``create``. Raises ``NotFoundError``."""
        return read_project((self._rest.request("PATCH", f"/projects/{quoted(project)}", json={"sharing": sharing})).map())

    def add_member(self, project: str, owner: str) -> ProjectInfo:
        """Add ``owner`` to ``project``. Raises ``NotFoundError``."""
        return read_project((self._rest.request("PUT", f"/projects/{quoted(project)}/members/{quoted(owner)}")).map())

    def remove_member(self, project: str, owner: str) -> ProjectInfo:
        """Remove ``owner`` from ``project``: its keys of the project are refused. Its sandboxes stay. Raises ``NotFoundError``."""
        return read_project((self._rest.request("DELETE", f"/projects/{quoted(project)}/members/{quoted(owner)}")).map())

    def delete(self, project: str) -> None:
        """Delete ``project`` and revoke its keys. Raises ``ConflictError`` while there are sandboxes in it, ``NotFoundError``."""
        self._rest.request("DELETE", f"/projects/{quoted(project)}")


@public
class Limits:
    """``client.limits``: how much owners, projects and keys may have at a time, and do in a minute."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def list(self) -> LimitList:
        """The limits that hold for this key, and how much of them is used."""
        rows = take((self._rest.request("GET", "/limits")).map(), "limits", list, default=[])
        return [read_limit(row) for row in rows if isinstance(row, dict)]

    def every(self) -> LimitMaps:
        """The limits of every subject that has some, as maps with ``subject`` and each limit by name. Needs an operator's key."""
        answer = self._rest.request("GET", "/limits", params={"subjects": "all"})
        return [row for row in take(answer.map(), "limits", list, default=[]) if isinstance(row, dict)]

    def set(self, subject: str, limits: Mapping[str, float | None]) -> None:
        """Set all limits of ``subject``: ``owner:NAME``, ``owner:*`` (each owner without own limits), ``project:NAME`` or ``key:ID``.

        ``limits`` are those of ``LimitInfo.name``; what is not in it is not limited. Needs an operator's key. Raises
        ``InvalidArgumentError``, and ``NotFoundError`` for an unknown project.
        """
        self._rest.request("PUT", f"/limits/{quoted(subject)}", json=dict(limits))


LimitMaps = list[dict[str, Any]]
