"""The local runtime: this machine's node, over its Unix socket.

Owns the translation of requests and answers, which are newline-delimited JSON; one persistent connection, on which requests are pipelined;
and one connection per watch. The node is trusted, and has checked what it forwards from sandboxes; every answer is still read defensively.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.documents import read_spec, write_spec
from gateway.model.labels import SPEC_LABEL
from gateway.model.options import Egress, Options
from gateway.model.records import Cause, SandboxSpec

from . import node_sockets
from .base import CreateRequest, Event, Image, RuntimeUnavailableError, SandboxEnded, SandboxStatus, Synced

log = logging.getLogger("gateway.local")

_T = TypeVar("_T")
_LINE_BYTES = 64 * 1024 * 1024
"""Longest line: a list of 100 000 sandboxes fits."""
_CONNECT_S = 2.0
_CALL_S = 10.0
"""Default time limit of a call: the node answers from memory, unless the caller sets another limit."""
_CHANGE_S = 600.0
"""Time limit of operations that copy a sandbox's files."""
_LONG_S = 3600.0
_RECONNECT_S = 0.1
_REFUSED_S = 1.0
"""Pause after an answer that is no event."""
_SPARES = {"ready": "spares", "wanted": "spares_wanted", "most": "spares_most"}
_ROOM = {"free": "disk_free", "promised": "disk_promised", "left": "disk_left"}
_PLAIN = "ask for image, cpu, memory, disk, env, labels, entrypoint, ulimits and shm_size only, or use a cluster"


class LocalRuntime:
    """See ``base.Runtime``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._node = NodeClient(path)
        self._images = NodeImages(self._node)
        # Requested once: glibc's sysconf makes the kernel walk through all block devices, and each sandbox has one.
        self._size = float(os.cpu_count() or 1), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def cores(self) -> float:
        return self._size[0]

    @property
    def images(self) -> NodeImages:
        return self._images

    async def create(self, request: CreateRequest, timeout_s: float) -> str:
        spec, options = request.spec, request.spec.options
        if replace(options, entrypoint=False, ulimits={}, shm_bytes=None) != Options():
            raise HoldfastError("unsupported", "the one-machine runtime does not support cluster options", hint=_PLAIN)
        if spec.egress not in (Egress(), Egress("internet"), Egress("internet", dns=True)):
            hint = "request all of the internet (block_network=false) or none, or use a cluster"
            raise HoldfastError("unsupported", "the one-machine runtime supports only full network access or none", hint=hint)
        arguments: dict[str, Any] = {
            "sandbox_id": spec.sandbox_id,
            "name": spec.name,
            "incarnation": spec.incarnation,
            "token": request.token,
            "image": spec.image,
            "cpu": spec.cores,
            "memory": spec.memory_bytes,
            "disk": spec.disk_bytes,
            "env": request.env,
            "labels": {SPEC_LABEL: write_spec(spec).decode()},
            "network": spec.egress.mode == "internet",
            "owner": spec.owner,
            "entrypoint": options.entrypoint,
            "ulimits": options.ulimits,
            "shm": options.shm_bytes,
        }
        if request.branch_point:
            arguments["branch_point"] = request.branch_point
        try:
            body = await self._node.call("create", arguments, timeout_s)
        except HoldfastError as error:
            if error.code != "sandbox_exists":
                raise
            for sandbox in await self.get(spec.sandbox_id):
                if (sandbox.incarnation, sandbox.state) == (spec.incarnation, "ready"):
                    return sandbox.endpoint
            raise
        return _text(body, "endpoint")

    async def delete(self, sandbox_id: str, incarnation: str | None = None) -> bool:
        arguments = {"sandbox_id": sandbox_id} | ({} if incarnation is None else {"incarnation": incarnation})
        body = await self._node.call("delete", arguments, timeout_s=30.0)
        return body.get("existed") is True

    async def snapshot(self, sandbox_id: str, incarnation: str, name: str | None) -> Image:
        return _image((await self._change("snapshot", sandbox_id, incarnation, {"name": name})).get("image"))

    async def hold(self, sandbox_id: str, incarnation: str) -> str:
        return _text(await self._change("hold", sandbox_id, incarnation), "branch_point")

    async def release(self, branch_point: str) -> None:
        await self._node.call("release", {"branch_point": branch_point}, _CHANGE_S)

    async def pause(self, sandbox_id: str, incarnation: str) -> None:
        await self._change("pause", sandbox_id, incarnation)

    async def suspend(self, sandbox_id: str, incarnation: str, shells: bytes) -> None:
        await self._change("suspend", sandbox_id, incarnation, {"shells": base64.b64encode(shells).decode()})

    async def resume(self, sandbox_id: str, incarnation: str) -> bytes:
        return base64.b64decode(_text(await self._change("resume", sandbox_id, incarnation), "shells"))

    async def resumed(self, sandbox_id: str, incarnation: str) -> None:
        await self._change("resumed", sandbox_id, incarnation)

    async def _change(self, op: str, sandbox_id: str, incarnation: str, more: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self._node.call(op, {"sandbox_id": sandbox_id, "incarnation": incarnation, **(more or {})}, _CHANGE_S)

    async def get(self, sandbox_id: str) -> list[SandboxStatus]:
        found = _statuses(await self._node.call("get", {"sandbox_id": sandbox_id}))
        return [status for status in found if status.sandbox_id == sandbox_id]

    async def list_all(self) -> list[SandboxStatus]:
        return _statuses(await self._node.call("list"))

    async def list_watched(self) -> list[SandboxStatus]:
        return await self.list_all()  # the node answers from memory

    async def watch(self) -> AsyncIterator[Event]:
        while True:
            pause_s = _RECONNECT_S
            try:
                reader, writer = await _in_time(asyncio.open_unix_connection(str(self._path), limit=_LINE_BYTES))
                try:
                    writer.write(b'{"id":1,"op":"watch"}\n')
                    while line := await reader.readline():
                        body = orjson.loads(line)
                        event = _event(body if "event" in body else _result(body))
                        if event is not None:
                            yield event
                finally:
                    writer.close()
            except (OSError, RuntimeUnavailableError):
                pass
            except (HoldfastError, AttributeError, LookupError, TypeError, ValueError) as error:  # a refusal, or an unknown message
                log.warning("the watch of the node broke: %s: %s", type(error).__name__, error)
                pause_s = _REFUSED_S
            await asyncio.sleep(pause_s)

    async def doctor(self) -> list[dict[str, Any]]:
        checks = (await self._node.call("doctor", timeout_s=30.0)).get("checks")
        return [check for check in checks if isinstance(check, dict)] if isinstance(checks, list) else []

    async def ping(self) -> None:
        await self._node.call("images")  # answered from memory, while stats reads every sandbox's usage

    async def stats(self) -> dict[str, Any]:
        cores, memory = self._size
        return {**await self._node.call("stats"), "cpu_total": cores, "memory_total": memory}

    async def spares(self) -> dict[str, int]:
        return _counts(await self._node.call("spares", timeout_s=_CONNECT_S), _SPARES)

    async def room(self) -> dict[str, int]:
        return _counts(await self._node.call("spares", timeout_s=_CONNECT_S), _ROOM)

    async def pulls(self, owner: str) -> list[dict[str, Any]]:
        found = (await self._node.call("image_pulls", {"owner": owner})).get("pulls")
        fields = ("name", "state", "received_bytes", "error")
        return [{name: one.get(name) for name in fields} for one in found] if isinstance(found, list) else []

    async def connect_port(self, sandbox_id: str, incarnation: str, port: int) -> socket.socket:
        request = {"id": 1, "op": "connect", "sandbox_id": sandbox_id, "incarnation": incarnation, "port": port}
        answer, made = await _in_time(node_sockets.ask(self._path, orjson.dumps(request)), _CALL_S)
        _result(answer)
        if made is None:
            raise RuntimeUnavailableError("the node answered without a socket")
        return made

    async def largest(self) -> tuple[float, int] | None:
        return self._size

    async def aclose(self) -> None:
        await self._node.aclose()


class NodeImages:
    """The node's image store. See ``base.ImageArchives``."""

    def __init__(self, node: NodeClient) -> None:
        self._node = node

    async def list_all(self, owner: str = "", *, steps: bool = False) -> list[Image]:
        images = (await self._call("images", owner, {"steps": steps})).get("images")
        return [_image(image) for image in images] if isinstance(images, list) else []

    async def load(self, path: Path, name: str, owner: str = "") -> Image:
        return _image((await self._call("image_import", owner, {"path": str(path), "name": name}, _LONG_S)).get("image"))

    async def pull(self, name: str, owner: str = "") -> Image:
        return _image((await self._call("image_pull", owner, {"name": name}, _LONG_S)).get("image"))

    async def remove(self, name: str, owner: str = "") -> None:
        await self._call("image_remove", owner, {"name": name}, 60.0)

    async def save(self, name: str, path: Path, owner: str = "") -> None:
        await self._call("image_export", owner, {"name": name, "path": str(path)}, _LONG_S)

    async def tag(self, name: str, other: str, owner: str = "", config: dict[str, Any] | None = None, *, shared: bool = False) -> Image:
        body = {"name": name, "other": other, "shared": shared} | ({} if config is None else {"config": config})
        return _image((await self._call("image_tag", owner, body)).get("image"))

    async def config(self, name: str, owner: str = "") -> dict[str, Any]:
        answer = await self._call("image_config", owner, {"name": name})
        return {key: answer.get(key) for key in ("name", "digest", "config", "architecture")}

    async def _call(self, op: str, owner: str, arguments: dict[str, Any] | None = None, timeout_s: float = _CALL_S) -> dict[str, Any]:
        return await self._node.call(op, (arguments or {}) | ({"owner": owner} if owner else {}), timeout_s)


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise RuntimeUnavailableError(f"the node answered without {name}")
    return value


def _statuses(body: dict[str, Any]) -> list[SandboxStatus]:
    return [
        SandboxStatus(
            spec=_spec(one),
            endpoint=str(one.get("endpoint") or ""),
            created_at=float(one.get("created_at") or 0.0),
            state="failed" if one.get("state") == "failed" else "ready",
            cause=_cause(one) if one.get("state") == "failed" else None,
            paused=paused if (paused := one.get("paused")) in ("memory", "disk") else "",
        )
        for one in body.get("sandboxes") or []
    ]


def _spec(body: dict[str, Any]) -> SandboxSpec:
    """The specification that was stored when the sandbox was created; without it, a specification from the node's own data."""
    labels = dict(body.get("labels") or {})
    with contextlib.suppress(TypeError, ValueError):
        return read_spec(labels.pop(SPEC_LABEL, ""))
    return SandboxSpec(
        sandbox_id=_text(body, "sandbox_id"),
        owner=str(body.get("owner") or ""),
        incarnation=_text(body, "incarnation"),
        image=str(body.get("image") or ""),
        cores=float(body.get("cpu") or 0.0),
        memory_bytes=int(body.get("memory") or 0),
        labels=labels,
        egress=Egress("internet" if body.get("network") is True else "none"),
    )


def _event(body: dict[str, Any]) -> Event | None:
    event = body.get("event")
    if not isinstance(event, dict):
        return None
    match event.get("type"):
        case "sync":
            began = event.get("began_at")
            return Synced(float(began) if isinstance(began, int | float) and began > 0 else None)
        case "gone" | "failed":
            return SandboxEnded(_text(event, "sandbox_id"), _text(event, "incarnation"), _cause(event))
    return None


def _cause(body: dict[str, Any]) -> Cause:
    fault = body.get("fault")
    return Cause(
        str(body.get("reason") or "exited"),
        fault if fault in ("workload", "infrastructure", "caller") else "infrastructure",
        str(body.get("message") or ""),
    )


def _image(body: Any) -> Image:
    if not isinstance(body, dict):
        raise RuntimeUnavailableError("the node answered without an image")
    size = body.get("size_bytes")
    return Image(
        name=str(body.get("name") or ""),
        digest=str(body.get("digest") or ""),
        size_bytes=size if isinstance(size, int) else 0,
        created=body.get("created"),
        shared=body.get("shared") is not False,
        parent=str(body.get("parent") or ""),
    )


class NodeClient:
    """Requests and answers on one connection, which is opened when needed and again after it broke."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = itertools.count(1)
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(self, op: str, arguments: dict[str, Any] | None = None, timeout_s: float = _CALL_S) -> dict[str, Any]:
        """One request; the answer's map. Raises the node's error, or ``RuntimeUnavailableError``."""
        number, connection = next(self._numbers), self._connection
        try:
            async with asyncio.timeout(timeout_s):
                if connection is None or connection.ended.done():
                    connection = await self._connect()
                body = await connection.ask(number, orjson.dumps({"id": number, "op": op, **(arguments or {})}))
        except TimeoutError:
            raise RuntimeUnavailableError(f"the node did not answer {op} within {timeout_s:g} s") from None
        finally:
            if connection is not None:
                connection.pending.pop(number, None)
        return _result(body)

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
            await self._connection.ended

    async def _connect(self) -> _Connection:
        async with self._connecting:
            if self._connection is None or self._connection.ended.done():
                loop = asyncio.get_running_loop()
                _, connection = await _in_time(loop.create_unix_connection(_Connection, str(self._path)))
                self._connection = connection
            return self._connection


class _Connection(asyncio.Protocol):
    """Matches answers to requests by their numbers."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts: list[bytes] = []
        """The received part of the current line."""
        self._size = 0

    def ask(self, number: int, line: bytes) -> asyncio.Future[dict[str, Any]]:
        """Send a request; returns the future of its answer."""
        answer = self.pending[number] = asyncio.get_running_loop().create_future()
        self.transport.write(line + b"\n")
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses

    def data_received(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        try:
            for line in lines:
                body = orjson.loads(line)
                answer = self.pending.get(body.get("id"))
                if answer is not None and not answer.done():
                    answer.set_result(body)
        except ValueError:
            self.transport.abort()
        if self._size > _LINE_BYTES:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)
        for answer in self.pending.values():
            if not answer.done():
                answer.set_exception(RuntimeUnavailableError("the node closed the connection"))


async def _in_time(connecting: Awaitable[_T], timeout_s: float = _CONNECT_S) -> _T:
    try:
        async with asyncio.timeout(timeout_s):
            return await connecting
    except (OSError, TimeoutError) as error:
        raise RuntimeUnavailableError("the node is not running", made_nothing=True) from error


def _counts(body: dict[str, Any], names: dict[str, str]) -> dict[str, int]:
    return {ours: int(body[name]) for ours, name in names.items() if isinstance(body.get(name), int)}


def _result(body: dict[str, Any]) -> dict[str, Any]:
    """An answer's map, or the node's error raised."""
    if body.get("ok") is True:
        return body
    raise HoldfastError.from_map(body.get("error"))
