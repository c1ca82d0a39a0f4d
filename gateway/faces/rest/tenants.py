"""Routes of keys and projects, for operators.

Owns the form of their requests and answers. The text of a key is in the answer that makes it and in no other.
"""

from __future__ import annotations

import time
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import gateway_of, note, parts
from gateway.http.conditions import document_response
from gateway.http.paging import latest_first, paged
from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.identity.tenants import Project, StoredKey
from gateway.use_cases import keys, projects
from gateway.use_cases.keys import MOST_GRACE_S, MOST_LIFE_S, Listed, NewKey

_BODY_BYTES: Final = 64 * 1024
_NO_STORE: Final = {"Cache-Control": "no-store"}


async def create_key(request: Request) -> Response:
    """``POST /keys``: ``{"owner", "project", "scopes": […], "expires_s", "note"}``."""
    gateway, principal = parts(request)
    fields = Fields(await read_json(request, _BODY_BYTES))
    expires_s = fields.seconds("expires_s", most=MOST_LIFE_S)
    new = NewKey(
        fields.required("owner", most=100),
        fields.text("project", "", most=100) or "",
        keys.scopes_of(_texts(fields, "scopes")),
        None if expires_s is None else time.time() + expires_s,
        fields.text("note", "", most=1000) or "",
    )
    note(request, key_owner=new.owner, key_project=new.project, scopes=sorted(new.scopes))
    key, text = await keys.create(gateway, principal, new)
    note(request, made=key.key_id)
    return json_response(_shown(Listed(key)) | {"key": text}, 201, _NO_STORE)


async def list_keys(request: Request) -> Response:
    """``GET /keys?owner=&project=&limit=&cursor=``."""
    query = request.query_params
    found = await keys.list_all(gateway_of(request), query.get("owner", ""), query.get("project", ""))

    def order(one: Listed) -> str:
        return f"{one.in_file:d}{latest_first(one.key.created_at, one.key.key_id)}"

    return json_response(paged(request, "keys", found, order, _shown), headers=_NO_STORE)


async def read_key(request: Request) -> Response:
    """``GET /keys/{key_id}``."""
    return json_response(_shown(await keys.read(gateway_of(request), request.path_params["key_id"])), headers=_NO_STORE)


async def rotate_key(request: Request) -> Response:
    """``POST /keys/{key_id}/rotate``: ``{"grace_s"}``, how long the old key still works (default: not at all)."""
    gateway, principal = parts(request)
    grace_s = Fields(await read_json(request, _BODY_BYTES)).seconds("grace_s", most=MOST_GRACE_S) or 0.0
    key, text = await keys.rotate(gateway, principal, request.path_params["key_id"], grace_s)
    note(request, made=key.key_id)
    return json_response(_shown(Listed(key)) | {"key": text}, 201, _NO_STORE)


async def revoke_key(request: Request) -> Response:
    """``DELETE /keys/{key_id}``."""
    return json_response(_shown(Listed(await keys.revoke(gateway_of(request), request.path_params["key_id"]))), headers=_NO_STORE)


async def create_project(request: Request) -> Response:
    """``POST /projects``: ``{"project", "members": […], "sharing"}``."""
    fields = Fields(await read_json(request, _BODY_BYTES))
    sharing = projects.sharing_of(fields.text("sharing", "none", most=100) or "none")
    note(request, project=fields.text("project", "", most=100), sharing=sharing)
    made = await projects.create(gateway_of(request), fields.required("project", most=100), _texts(fields, "members"), sharing)
    return json_response(_project(made), 201)


async def list_projects(request: Request) -> Response:
    """``GET /projects?limit=&cursor=``."""
    return json_response(paged(request, "projects", projects.list_all(gateway_of(request)), lambda one: one.name, _project))


async def read_project(request: Request) -> Response:
    """``GET /projects/{project}``."""
    return document_response(request, _project(projects.read(gateway_of(request), request.path_params["project"])))


async def change_project(request: Request) -> Response:
    """``PATCH /projects/{project}``: ``{"sharing"}``."""
    fields = Fields(await read_json(request, _BODY_BYTES))
    sharing = projects.sharing_of(fields.required("sharing", most=100))
    return json_response(_project(await projects.share(gateway_of(request), request.path_params["project"], sharing)))


async def delete_project(request: Request) -> Response:
    """``DELETE /projects/{project}``."""
    name = request.path_params["project"]
    await projects.delete(gateway_of(request), name)
    return json_response({"status": "deleted", "project": name})


async def add_member(request: Request) -> Response:
    """``PUT /projects/{project}/members/{member}``."""
    return json_response(_project(await projects.add_member(gateway_of(request), *_member(request))))


async def remove_member(request: Request) -> Response:
    """``DELETE /projects/{project}/members/{member}``."""
    return json_response(_project(await projects.remove_member(gateway_of(request), *_member(request))))


def _member(request: Request) -> tuple[str, str]:
    return request.path_params["project"], request.path_params["member"]


def _texts(fields: Fields, name: str) -> list[str]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise HoldfastError("invalid_argument", f"{name} must be a list of strings")
    return value


def _shown(one: Listed) -> dict[str, Any]:
    key: StoredKey = one.key
    return {
        "key_id": key.key_id,
        "owner": key.owner,
        "project": key.project or None,
        "scopes": list(key.scopes),
        "created_at": key.created_at or None,
        "created_by": key.created_by or None,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "replaced_by": key.replaced_by or None,
        "used_at": one.used_at,
        "note": key.note,
        "valid": key.is_valid(time.time()),
        "in_file": one.in_file,
    }


def _project(project: Project) -> dict[str, Any]:
    return {
        "project": project.name,
        "members": list(project.members),
        "sharing": project.sharing,
        "created_at": project.created_at,
    }
