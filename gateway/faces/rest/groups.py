"""Routes of groups: the sandboxes of one run, which end together when the run's heartbeats stop.

Owns the form of their requests and answers.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import parts, program_of
from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.model.records import Group
from gateway.use_cases import groups

_TTL_MOST_S = 24 * 3600.0
_LEASE_CHARACTERS = 64


async def heartbeat(request: Request) -> Response:
    """``POST /groups/{name}/heartbeat`` ``{ttl_s, lease}``: without ``lease`` it begins the group, or becomes another holder."""
    gateway, principal = parts(request)
    name = groups.group_name(request.path_params["name"])
    fields = Fields(await read_json(request, 64 * 1024))
    ttl_s = fields.seconds("ttl_s", most=_TTL_MOST_S)
    if ttl_s is None:
        raise HoldfastError("invalid_argument", "ttl_s must be a number of seconds")
    lease = fields.text("lease", "", most=_LEASE_CHARACTERS) or ""
    group = await groups.heartbeat(gateway, principal, name, ttl_s, lease)
    return json_response({**_describe(group), "lease": group.lease})


async def read(request: Request) -> Response:
    """``GET /groups/{name}``: its sandboxes, and which of them are about to leave."""
    gateway, principal = parts(request)
    found = await groups.describe(gateway, principal, groups.group_name(request.path_params["name"]))
    return json_response(
        {
            **_describe(found.group),
            "sandboxes": [record.name for record in found.records],
            "leaving": [record.name for record in found.records if record.leaving is not None],
        }
    )


async def delete(request: Request) -> Response:
    """``DELETE /groups/{name}``: its sandboxes are deleted within moments; may be repeated."""
    gateway, principal = parts(request)
    group = await groups.delete(gateway, principal, groups.group_name(request.path_params["name"]), program_of(request))
    return json_response({"status": "deleted", "name": group.name, "count": group.count})


def _describe(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "status": "ended" if group.cause else "open",
        "ttl_s": group.ttl_s,
        "expires_at": group.expires_at,
        "count": group.count,
        "reason": group.cause.reason if group.cause else None,
    }
