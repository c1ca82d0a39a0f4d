"""Routes of limits: what holds for the caller and how much of it is used, and their change by operators."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import note, parts
from gateway.http.request_fields import read_json
from gateway.http.responses import json_response
from gateway.identity.limits import Limits
from gateway.identity.principal import Scope
from gateway.use_cases import limits

_BODY_BYTES = 16 * 1024


async def held(request: Request) -> Response:
    """``GET /limits``; with ``?subjects=all``, for operators, the limits of every owner, project and key that has some."""
    gateway, principal = parts(request)
    subjects = request.query_params.get("subjects", "own")
    if subjects not in ("own", "all"):
        raise HoldfastError("invalid_argument", "subjects must be own or all")
    if subjects == "all":
        principal.require(Scope.ADMIN)
        return json_response({"limits": [_of(subject, one) for subject, one in limits.every(gateway).items()]})
    return json_response({"limits": [asdict(one) for one in await limits.held(gateway, principal)]})


async def put(request: Request) -> Response:
    """``PUT /limits/{subject}``: all limits of an owner, a project or a key; a number, or null for none."""
    gateway, _ = parts(request)
    subject = request.path_params["subject"]
    wanted = limits.limits_of(await read_json(request, _BODY_BYTES))
    note(request, limits={name: value for name, value in asdict(wanted).items() if value is not None})
    await limits.put(gateway, subject, wanted)
    return json_response(_of(subject, wanted))


async def delete(request: Request) -> Response:
    """``DELETE /limits/{subject}``."""
    gateway, _ = parts(request)
    subject = request.path_params["subject"]
    await limits.put(gateway, subject, Limits())
    return json_response(_of(subject, Limits()))


def _of(subject: str, one: Limits) -> dict[str, Any]:
    return {"subject": subject, **asdict(one)}
