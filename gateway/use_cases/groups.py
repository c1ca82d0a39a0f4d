"""Groups: the sandboxes of one run, which end together when the run's heartbeats stop.

Owns heartbeat, description and deletion of a group, and the refusals of a lease. The lease is in the store; the controller deletes the
sandboxes. Names are per owner. Called by faces, and by ``create`` for a sandbox that joins a group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal
from gateway.model.records import Cause, Group, GroupStatus, Record
from gateway.placement.errors import RebuildingError

from .service import Gateway

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """A group and the records of its sandboxes."""

    group: Group
    records: list[Record]


def group_name(name: str) -> str:
    """The name, if it can be one. Raises ``invalid_argument``."""
    if not _NAME.fullmatch(name):
        hint = "use letters, digits, '.', '_' and '-', at most 100, with a letter or digit at both ends"
        raise HoldfastError("invalid_argument", f"{name[:100]!r} cannot be the name of a group", hint=hint)
    return name


async def heartbeat(gateway: Gateway, principal: Principal, name: str, ttl_s: float, lease: str) -> Group:
    """Renew the lease of a group; without ``lease`` begin the group, or become another holder."""
    outcome, group = await gateway.store.group_beat(principal.owner, name, ttl_s, lease)
    raise_if_refused(outcome, group)
    return group


async def describe(gateway: Gateway, principal: Principal, name: str) -> GroupMembers:
    """The group and its sandboxes. Raises ``group_not_found``."""
    group = await gateway.store.group(principal.owner, name)
    if group is None:
        raise await _not_found(gateway, name)
    return GroupMembers(group, [one for one in await gateway.store.records(group.members) if _belongs(one, group)])


async def delete(gateway: Gateway, principal: Principal, name: str, program: str) -> Group:
    """End the group: its sandboxes are deleted within moments. May be repeated. ``program`` requested it. Raises ``group_not_found``."""
    cause = Cause("deleted", "caller", "the sandbox's group was deleted", program)
    group = await gateway.store.group_end(principal.owner, name, cause)
    if group is None:
        raise await _not_found(gateway, name)
    return group


def raise_if_refused(outcome: GroupStatus, group: Group) -> None:
    """Raises the error of a refused heartbeat or joining."""
    if outcome == "freeing":
        raise HoldfastError("group_freeing", f"{group.count} sandboxes of the previous group {group.name!r} are still being deleted")
    if outcome == "lapsed":
        cause = group.cause or Cause("group-lease", "caller", "another lease of this name has begun")
        raise HoldfastError("group_lapsed", f"the group {group.name!r} has ended: {cause.message}", reason=cause.reason)


def _belongs(record: Record, group: Group) -> bool:
    return (record.owner, record.spec.group) == (group.owner, group.name)


async def _not_found(gateway: Gateway, name: str) -> HoldfastError:
    if not await gateway.store.complete():
        return RebuildingError()
    return HoldfastError("group_not_found", f"there is no group {name!r}")
