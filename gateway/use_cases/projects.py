"""Projects: made, changed and removed by an operator.

Owns what a project may be, and that one with sandboxes is not removed. A project decides whose keys are valid in it, and what its members
may see of each other. Changes are in ``gateway.tenants``. Called by faces, for principals with the scope ``admin``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, get_args

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import OWNER, PROJECT, space_of
from gateway.identity.tenants import Project, Sharing, Tenants, write_key, write_project
from gateway.tenants.copy import PROJECTS_MOST

from .service import Gateway

_MEMBERS_MOST: Final = 1000


async def create(gateway: Gateway, name: str, members: Sequence[str], sharing: Sharing) -> Project:
    """Raises ``invalid_argument``, ``in_use`` if there is one of this name, ``quota_exceeded``."""
    if not PROJECT.fullmatch(name):
        raise HoldfastError("invalid_argument", f"{name[:100]!r} cannot be a project", hint="1 to 40 small letters, digits and -")
    project = _checked(Project(name, tuple(dict.fromkeys(members)), sharing, time.time()))

    def decide(tenants: Tenants) -> dict[str, str | None]:
        if name in tenants.projects:
            raise HoldfastError(
                "in_use", f"there is a project {name!r} already", hint=f"holdfast project members {name} shows its members", retryable=False
            )
        if len(tenants.projects) >= PROJECTS_MOST:
            raise HoldfastError(
                "quota_exceeded", f"this service has {PROJECTS_MOST} projects already", hint="delete projects that are not used"
            )
        return {f"project:{name}": write_project(project)}

    await gateway.tenants.change(decide)
    return project


def list_all(gateway: Gateway) -> list[Project]:
    """Every project, by name."""
    return sorted(gateway.tenants.tenants.projects.values(), key=lambda project: project.name)


def read(gateway: Gateway, name: str) -> Project:
    """Raises ``not_found``."""
    return _found(gateway.tenants.tenants, name)


async def share(gateway: Gateway, name: str, sharing: Sharing) -> Project:
    """Change what members may see of each other. Raises ``not_found``, ``invalid_argument``."""
    return await _change(gateway, name, lambda project: replace(project, sharing=sharing))


async def add_member(gateway: Gateway, name: str, owner: str) -> Project:
    """Raises ``not_found``, ``invalid_argument``."""
    return await _change(gateway, name, lambda project: replace(project, members=tuple(dict.fromkeys((*project.members, owner)))))


async def remove_member(gateway: Gateway, name: str, owner: str) -> Project:
    """The owner's keys of the project are not valid any more; the sandboxes stay, for an operator to end. Raises ``not_found``."""

    def without(project: Project) -> Project:
        if owner not in project.members:
            raise HoldfastError("not_found", f"{owner[:80]!r} is no member of the project {name!r}", hint="")
        return replace(project, members=tuple(member for member in project.members if member != owner))

    return await _change(gateway, name, without)


async def delete(gateway: Gateway, name: str) -> None:
    """Delete a project and revoke its keys. Raises ``in_use`` if a member has sandboxes in it, ``not_found``."""
    for member in _found(gateway.tenants.tenants, name).members:
        if (await gateway.store.list_owned(space_of(member, name), limit=1)).records:
            hint = f"holdfast rm --owner {member} --project {name} --all"
            raise HoldfastError("in_use", f"{member} has sandboxes in the project {name!r}", hint=hint)
    now = time.time()

    def decide(tenants: Tenants) -> dict[str, str | None]:
        _found(tenants, name)
        keys = [key for key in tenants.keys.values() if key.project == name and key.revoked_at is None]
        return {f"project:{name}": None, **{f"key:{key.key_id}": write_key(replace(key, revoked_at=now)) for key in keys}}

    await gateway.tenants.change(decide)


def sharing_of(text: str) -> Sharing:
    """Raises ``invalid_argument``."""
    found: Sharing | None = next((one for one in get_args(Sharing) if one == text), None)
    if found is None:
        raise HoldfastError("invalid_argument", f"sharing must be one of {', '.join(get_args(Sharing))}, not {text[:40]!r}")
    return found


async def _change(gateway: Gateway, name: str, changed: Callable[[Project], Project]) -> Project:
    made: list[Project] = []

    def decide(tenants: Tenants) -> dict[str, str | None]:
        made[:] = [_checked(changed(_found(tenants, name)))]
        return {f"project:{name}": write_project(made[0])}

    await gateway.tenants.change(decide)
    return made[0]


def _checked(project: Project) -> Project:
    wrong = [member for member in project.members if not OWNER.fullmatch(member)]
    if wrong:
        raise HoldfastError("invalid_argument", f"{wrong[0][:100]!r} cannot be an owner", hint="1 to 64 letters, digits and . _ @ -")
    if len(project.members) > _MEMBERS_MOST:
        raise HoldfastError("invalid_argument", f"a project has at most {_MEMBERS_MOST} members")
    return project


def _found(tenants: Tenants, name: str) -> Project:
    found = tenants.projects.get(name)
    if found is None:
        raise HoldfastError("not_found", f"there is no project {name[:80]!r}", hint="`holdfast project list` shows all projects")
    return found
