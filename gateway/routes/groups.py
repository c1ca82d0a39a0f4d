"""Routes of groups: the sandboxes of one run, which end together when the run's heartbeats stop.

Owns heartbeat, status and deletion over REST. The lease is in the store; the controller deletes the sandboxes. Group names are per owner.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.model.records import Cause, Group, GroupStatus, Record
from gateway.placement.errors import RebuildingError
from gateway.service import Gateway, authenticated, program_of

GROUP_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_TTL_MOST_S = 24 * 3600.0
_LEASE_CHARACTERS = 64


async def heartbeat(request: Request) -> Response:
    """``POST /groups/{name}/heartbeat`` ``{ttl_s, lease}``: without ``lease`` it begins the group, or becomes another holder."""
    gateway, owner = authenticated(request)
    name = group_name(request.path_params["name"])
    fields = Fields(await read_json(request, 64 * 1024))
    ttl_s = fields.seconds("ttl_s", most=_TTL_MOST_S)
    if ttl_s is None:
        raise HoldfastError("invalid_argument", "ttl_s must be a number of seconds")
    lease = fields.text("lease", "", most=_LEASE_CHARACTERS) or ""
    outcome, group = await gateway.store.group_beat(owner, name, ttl_s, lease)
    raise_if_refused(outcome, group)
    return json_response({**_describe(group), "lease": group.lease})


async def read(request: Request) -> Response:
    """``GET /groups/{name}``: its sandboxes, and which of them are about to leave."""
    gateway, owner = authenticated(request)
    group = await gateway.store.group(owner, group_name(request.path_params["name"]))
    if group is None:
        raise await _not_found(gateway, request.path_params["name"])
    records = [one for one in await gateway.store.records(group.members) if _belongs(one, group)]
    return json_response(
        {
            **_describe(group),
            "sandboxes": [record.sandbox_id for record in records],
            "leaving": [record.sandbox_id for record in records if record.leaving is not None],
        }
    )


async def delete(request: Request) -> Response:
    """``DELETE /groups/{name}``: its sandboxes are deleted within moments; may be repeated."""
    gateway, owner = authenticated(request)
    cause = Cause("deleted", "caller", "the sandbox's group was deleted", program_of(request))
    group = await gateway.store.group_end(owner, group_name(request.path_params["name"]), cause)
    if group is None:
        raise await _not_found(gateway, request.path_params["name"])
    return json_response({"status": "deleted", "name": group.name, "count": group.count})


def group_name(name: str) -> str:
    if not GROUP_NAME.fullmatch(name):
        hint = "use letters, digits, '.', '_' and '-', at most 100, with a letter or digit at both ends"
        raise HoldfastError("invalid_argument", f"{name[:100]!r} cannot be the name of a group", hint=hint)
    return name


def raise_if_refused(outcome: GroupStatus, group: Group) -> None:
    """Raises the error of a refused heartbeat or joining."""
    if outcome == "freeing":
        raise HoldfastError("group_freeing", f"{group.count} sandboxes of the previous group {group.name!r} are still being deleted")
    if outcome == "lapsed":
        cause = group.cause or Cause("group-lease", "caller", "another lease of this name has begun")
        raise HoldfastError("group_lapsed", f"the group {group.name!r} has ended: {cause.message}", reason=cause.reason)


def _describe(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "status": "ended" if group.cause else "open",
        "ttl_s": group.ttl_s,
        "expires_at": group.expires_at,
        "count": group.count,
        "reason": group.cause.reason if group.cause else None,
    }


def _belongs(record: Record, group: Group) -> bool:
    return (record.owner, record.spec.group) == (group.owner, group.name)


async def _not_found(gateway: Gateway, name: str) -> HoldfastError:
    if not await gateway.store.complete():
        return RebuildingError()
    return HoldfastError("group_not_found", f"there is no group {name!r}")
