"""Many sandboxes in one request: created or deleted, each with a result of its own.

Owns the form of these requests and answers. What each item means is ``sandboxes``'; one that is refused changes nothing for the others.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Iterable
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import note, parts, program_of
from gateway.http.request_fields import read_json
from gateway.http.responses import json_response, problem
from gateway.use_cases.create import create as create_sandbox
from gateway.use_cases.delete import delete as delete_sandbox

from .sandboxes import idempotency_key, new_sandbox, shown

_MOST: Final = 100


async def create(request: Request) -> Response:
    """``POST /batch/create``: ``{"sandboxes": [{…}, …]}``, each as in ``POST /sandboxes``. The results have the same order.

    With an ``Idempotency-Key`` the same request makes the same sandboxes however often it is sent.
    """
    gateway, principal = parts(request)
    key = idempotency_key(request, "Idempotency-Key")
    wanted = _items(await read_json(request, 8 * 1024 * 1024), "sandboxes", dict)

    async def one(number: int, body: dict[str, Any]) -> dict[str, Any]:
        new = new_sandbox(gateway, principal, body, None if key is None else _key_of(key, number))
        return {"status": 200, "sandbox": shown(gateway, await create_sandbox(gateway, principal, new))}

    results = await _each(one(number, body) for number, body in enumerate(wanted))
    note(request, sandboxes=[result["sandbox"]["sandbox_id"] for result in results if "sandbox" in result])
    return json_response({"results": results})


async def delete(request: Request) -> Response:
    """``POST /batch/delete``: ``{"sandbox_ids": [id, …]}``. The results have the same order."""
    gateway, principal = parts(request)
    names = _items(await read_json(request, 64 * 1024), "sandbox_ids", str)
    note(request, sandboxes=names)
    program = program_of(request)

    async def one(name: str) -> dict[str, Any]:
        existed = await delete_sandbox(gateway, principal, name, program=program)
        return {"status": 200, "sandbox_id": name, "existed": existed}

    return json_response({"results": await _each(one(name) for name in names)})


async def _each(work: Iterable[Awaitable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The results in order; a refusal is its problem document."""

    async def result(one: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        try:
            return await one
        except HoldfastError as error:
            document = problem(error)
            return {"status": document["status"], "problem": document}

    return await asyncio.gather(*map(result, work))


def _key_of(key: str, number: int) -> str:
    """The idempotency key of one item."""
    return hashlib.sha256(f"{number} {key}".encode()).hexdigest()


def _items(body: dict[str, Any], name: str, kind: type) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST or not all(isinstance(one, kind) for one in value):
        raise HoldfastError("invalid_argument", f"{name} must be a list of 1 to {_MOST} {'objects' if kind is dict else 'strings'}")
    return value
