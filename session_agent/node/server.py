"""The node's RPC: newline-delimited JSON over a unix socket.

Owns connections, the operations and the bounds on both. Requests of one connection run concurrently, and each answer has the id of its
request. A request is completed even if its connection is lost, so a gateway that dies leaves no incomplete sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.node.doctor import Check
from session_agent.node.images.store import ImageStore
from session_agent.node.request import branch_point, parse_create, port, sandbox_id
from session_agent.node.sandboxes import Sandboxes
from session_agent.node.settings import NodeSettings

log = logging.getLogger(__name__)
MAX_LINE = 32 << 20
"""Longest request: the state of a paused sandbox's shells is part of one."""
MAX_REQUESTS = 4096


def _is_served(path: str) -> bool:
    """Whether a process listens on this socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except TimeoutError:
            return True  # its backlog is full
        except OSError:
            return False
    return True


class NodeServer:
    """Listens on the node's socket until `stop`."""

    def __init__(self, settings: NodeSettings, sandboxes: Sandboxes, images: ImageStore) -> None:
        self._settings = settings
        self._sandboxes = sandboxes
        self._images = images
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._held: dict[asyncio.StreamWriter, set[str]] = {}
        """The branch points of each connection."""

    async def start(self) -> None:
        """Listen. Raises ``OSError`` with the path of the socket, also where another node listens there."""
        path = self._settings.socket_path
        if _is_served(path):
            raise OSError(errno.EADDRINUSE, "another node listens there", path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._connection, path, limit=MAX_LINE, backlog=128)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        """Refuse new connections, delete every sandbox, answer the pending requests, and close."""
        if self._server:
            self._server.close()
        await self._sandboxes.stop()
        if self._requests:
            await asyncio.wait(self._requests, timeout=5)
        for task in list(self._requests):
            task.cancel()
        for writer in list(self._writers):
            writer.close()
        if self._server:  # otherwise another node may listen there
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._settings.socket_path)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        watches: set[asyncio.Task[None]] = set()
        try:
            while line := await reader.readline():
                try:
                    body = json.loads(line)
                    if not isinstance(body, dict):
                        raise ValueError("a request must be a JSON object")
                except ValueError as error:
                    await _send(writer, {"id": None, "ok": False, **_error("invalid_argument", str(error))})
                    continue
                if len(self._requests) >= MAX_REQUESTS:
                    error_map = _error("no_capacity", "too many requests at once")
                    await _send(writer, {"id": body.get("id"), "ok": False, **error_map})
                    continue
                task = self._own(self._request(body, writer), "node request")
                if body.get("op") == "watch":
                    watches.add(task)
                    task.add_done_callback(watches.discard)
        except (ValueError, ConnectionError) as error:
            log.info("connection ended: %s", error)
        finally:
            for task in list(watches):
                task.cancel()
            self._writers.discard(writer)
            writer.close()
            for point in self._held.pop(writer, ()):
                self._own(self._release(point), "release of a branch point")

    async def _request(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        answer: dict[str, Any] = {"id": body.get("id")}
        try:
            operation = body.get("op")
            if operation == "watch":
                await self._watch(body, writer)
                return
            if operation == "connect":
                with await self._sandboxes.connect(sandbox_id(body), _incarnation(body), port(body)) as connected:
                    await _send_socket(writer, answer | {"ok": True}, connected)
                return
            answer |= {"ok": True, **await self._perform(operation, body)}
            if operation == "hold":
                await self._bind(str(answer["branch_point"]), writer)
            elif operation == "release":
                self._held.get(writer, set()).discard(branch_point(body))
        except HoldfastError as error:
            answer |= {"ok": False, "error": error.to_map()}
        except (ConnectionError, asyncio.CancelledError):
            return
        except OSError as error:
            log.warning("%s: %s", body.get("op"), error)
            answer |= {"ok": False, "error": _refused(error).to_map()}
        except Exception as error:
            log.exception("request failed: %s", body.get("op"))
            answer |= {"ok": False, **_error("internal", f"{type(error).__name__}: {error}")}
        with contextlib.suppress(ConnectionError):
            await _send(writer, answer)

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return task

    async def _bind(self, point: str, writer: asyncio.StreamWriter) -> None:
        """A branch point ends with the connection of the gateway that asked for it, since no other process knows its name."""
        if writer in self._writers:
            self._held.setdefault(writer, set()).add(point)
        else:
            await self._release(point)

    async def _release(self, point: str) -> None:
        with contextlib.suppress(HoldfastError, OSError):
            await self._sandboxes.release(point)

    async def _watch(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            async with contextlib.aclosing(self._sandboxes.events.watch()) as events:
                async for event in events:
                    await _send(writer, {"id": body.get("id"), "event": event})
        writer.close()

    async def _perform(self, operation: object, body: dict[str, Any]) -> dict[str, Any]:
        """Perform one operation; returns its answer. Raises HoldfastError and OSError."""
        sandboxes, images = self._sandboxes, self._images
        match operation:
            case "create":
                return await sandboxes.create(parse_create(body, self._settings.default_pids))
            case "delete":
                return {"existed": await sandboxes.delete(sandbox_id(body), _incarnation(body))}
            case "snapshot":
                name = None if body.get("name") is None else _text(body, "name")
                return {"image": await sandboxes.snapshot(sandbox_id(body), _incarnation(body), name)}
            case "pause":
                await sandboxes.pause(sandbox_id(body), _incarnation(body))
                return {}
            case "suspend":
                await sandboxes.suspend(sandbox_id(body), _incarnation(body), _text(body, "shells") if body.get("shells") else "")
                return {}
            case "resume":
                return {"shells": await sandboxes.resume(sandbox_id(body), _incarnation(body))}
            case "resumed":
                sandboxes.resumed(sandbox_id(body), _incarnation(body))
                return {}
            case "hold":
                return {"branch_point": await sandboxes.hold(sandbox_id(body), _incarnation(body))}
            case "release":
                await sandboxes.release(branch_point(body))
                return {}
            case "get":
                return {"sandboxes": sandboxes.get(sandbox_id(body))}
            case "list":
                return {"sandboxes": sandboxes.list()}
            case "images":
                return {"images": images.list(_owner(body), steps=body.get("steps") is True)}
            case "image_import":
                return {"image": await images.import_path(_text(body, "path"), _text(body, "name"), _owner(body))}
            case "image_pull":
                return {"image": await images.pull(_text(body, "name"), _owner(body))}
            case "image_pulls":
                return {"pulls": [asdict(one) for one in images.progress if one.owner == _owner(body)]}
            case "image_export":
                await images.export(_text(body, "name"), _text(body, "path"), _owner(body))
                return {}
            case "image_tag":
                name, other, shared = _text(body, "name"), _text(body, "other"), body.get("shared") is True
                return {"image": await images.tag(name, other, _owner(body), body.get("config"), shared=shared)}
            case "image_config":
                return images.config(_text(body, "name"), _owner(body))
            case "image_remove":
                await images.remove(_text(body, "name"), _owner(body))
                return {}
            case "doctor":
                return {"checks": await self._doctor()}
            case "spares":
                return {**sandboxes.spares.stats(), **sandboxes.room().to_map()}
            case "stats":
                return sandboxes.stats()
        raise HoldfastError("invalid_argument", f"no such operation: {operation!r}")

    async def _doctor(self) -> list[dict[str, Any]]:
        # In a separate process: the checks fork, which a process with threads should not do.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "session_agent.node", "doctor", "--json",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        output, _ = await process.communicate()
        detail = "{spares} of {spares_wanted} wanted by recent creates are ready; at most {spares_most}"
        spares = Check("spares", True, detail.format(**self._sandboxes.spares.stats()), required=False)
        return [*json.loads(output), asdict(spares), asdict(self._room())]

    def _room(self) -> Check:
        room = self._sandboxes.room()
        free, promised, left = (f"{size / (1 << 30):.1f} GiB" for size in (room.free, room.promised, max(0, room.left)))
        detail = f"{free} of the data folder are free, {promised} of these are promised to sandboxes, {left} are left for new data"
        if room.refuses:
            detail += "; creates are refused, and writes get ENOSPC when nothing is left"
        fix = "delete sandboxes or images, or set HOLDFAST_DATA to a larger disk"
        return Check("disk room", not room.refuses, detail, fix, required=False)


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def _send_socket(writer: asyncio.StreamWriter, message: dict[str, Any], passed: socket.socket) -> None:
    """An answer with a descriptor. Raises HoldfastError(invalid_argument) if other answers are still to be sent on the same connection."""
    if writer.transport.get_write_buffer_size() or writer.transport.is_closing():
        raise HoldfastError("invalid_argument", "a connection to a port must be asked for on a connection of its own")
    with writer.get_extra_info("socket").dup() as own:
        socket.send_fds(own, [json.dumps(message).encode() + b"\n"], [passed.fileno()])


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise HoldfastError("invalid_argument", f"{key} must be a non-empty string")
    return value


def _owner(body: dict[str, Any]) -> str:
    """Whose image it is; empty for shared ones."""
    return "" if body.get("owner") is None else _text(body, "owner")


def _incarnation(body: dict[str, Any]) -> str | None:
    return None if body.get("incarnation") is None else _text(body, "incarnation")


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": HoldfastError(code, message).to_map()}


def _refused(error: OSError) -> HoldfastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "make room below HOLDFAST_DATA, or remove images"
        return HoldfastError("no_space", f"this machine has no room for it: {error.strerror}", hint=hint, fault="infrastructure")
    return HoldfastError("internal", f"{type(error).__name__}: {error}")
