"""Many sandboxes in one request: created or deleted, each with a result of its own.

Owns how a batch is divided into requests, and how results are read. Does not own what one create means (``client``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast._arguments import bad, name_of, new_id, sandbox_id_of
from holdfast._async.group import AsyncGroup
from holdfast._errors import HoldfastError
from holdfast._public import public
from holdfast._results import SandboxInfo, take
from holdfast._transport.session.policy import from_problem

if TYPE_CHECKING:
    from holdfast import AsyncSandboxClient

_MOST = 100
"""Items of one request."""
_NOT_HERE = frozenset({"exist_ok", "heartbeat_timeout_s"})
"""Arguments of ``create_sandbox`` that need a client that waits for one sandbox, or sends heartbeats for it."""
Items = list[dict[str, Any]]


@public
class AsyncBatch:
    """``client.batch``: many sandboxes in one request."""

    def __init__(self, client: AsyncSandboxClient) -> None:
        self._client = client

    async def create(self, requests: Iterable[Mapping[str, Any]]) -> Created:
        """Create sandboxes; ``requests`` are the arguments of ``create_sandbox`` for each, with ``image``.

        Returns when each is ready or has failed, in the order of the requests: the ``AsyncSandbox``, or its ``HoldfastError``. A full
        quota is an error of that item; this method does not wait for it. Requests that are lost are repeated, and make no sandbox twice.
        Raises ``InvalidArgumentError`` if one request is malformed, and ``ServiceUnavailableError``.
        """
        bodies = [_body(request) for request in requests]
        found: list[Any] = []
        for at in range(0, len(bodies), _MOST):
            part = bodies[at : at + _MOST]
            rows = await self._client._rest.batch("create", {"sandboxes": part}, new_id(), max(body["timeout"] for body in part))
            for row, body in zip(rows, part, strict=True):
                record = take(row, "sandbox", dict)
                if record is None:
                    found.append(from_problem(take(row, "problem", dict, default={})))
                    continue
                info = SandboxInfo.read(record)
                sandbox = self._client._sandbox(info.sandbox_id, info)
                sandbox._request = body | {"sandbox_id": info.sandbox_id}
                found.append(sandbox)
        return found

    async def delete(self, sandbox_ids: Iterable[str]) -> Deleted:
        """Delete the sandboxes ``sandbox_ids``; returns for each whether it existed, or its error, in the order of the ids."""
        ids = [sandbox_id_of(one) for one in sandbox_ids]
        found: list[Any] = []
        for at in range(0, len(ids), _MOST):
            rows = await self._client._rest.batch("delete", {"sandbox_ids": ids[at : at + _MOST]}, new_id())
            found += [_deleted(row) for row in rows]
        return found


Created = list[Any]
"""Sandboxes and errors."""
Deleted = list[bool | HoldfastError]


def _deleted(row: dict[str, Any]) -> bool | HoldfastError:
    document = take(row, "problem", dict)
    if document is None:
        return take(row, "existed", bool, default=True) is True
    why = from_problem(document)
    return False if why.code in ("sandbox_not_found", "sandbox_gone") else why


def _body(request: Mapping[str, Any]) -> dict[str, Any]:
    """The body of one item. Raises ``InvalidArgumentError``."""
    from holdfast._requests import ClusterOptions, create_body

    if not isinstance(request, Mapping):
        raise bad("each request of a batch must be a map of the arguments of create_sandbox")
    options = dict(request)
    if refused := _NOT_HERE & options.keys():
        raise bad(f"{min(refused)} cannot be an argument in a batch", "create that sandbox with create_sandbox()")
    group = options.pop("group", None)
    if isinstance(group, AsyncGroup):
        options |= {"group_lease": group._lease}
        group = group.name
    cluster = {name: options.pop(name) for name in ClusterOptions.__annotations__ if name in options}
    chosen = name_of(options.pop("sandbox_id", None), "sandbox_id")
    try:
        return create_body(
            options.pop("image", ""),
            sandbox_id=chosen or f"sb-{os.urandom(8).hex()}",
            exist_ok=chosen is None,
            group=group,
            cluster=cluster,  # type: ignore[arg-type]
            **options,
        )
    except KeyError as unknown:
        raise bad(f"{str(unknown.args[0])[:100]} is not an argument of create_sandbox") from None
