"""Fetching an image from a registry with skopeo, if it is installed.

Owns skopeo's command line, the process it runs in, and the meaning of its failures. It runs without rights and reaches only what
``registries`` allows (``fetch_process``, ``fetch_proxy``), with limits of time, bytes and number, and outside the lock of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from session_agent.node.images.fetch_proxy import FetchProxy
from session_agent.node.images.registries import Registries, split

_TIMEOUT_S: Final = 1800
_START_S: Final = 30.0
_MOST_OUTPUT = 500
"""Characters of skopeo's messages that are shown, the last ones."""
_LOGGED: Final = re.compile(r'msg="((?:[^"\\]|\\.)*)"')
"""The text in a line of skopeo's log."""
_MODULE: Final = "session_agent.node.images.fetch_process"
LAYOUT: Final = "image"
"""The OCI layout in the directory of a pull."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """``user_id`` is the id that pulls run with where the node is root; ``auth_files`` are tried in order for the operator's logins."""

    registries: Registries = field(default_factory=Registries)
    user_id: int = 65534
    size_bytes: int = 100 << 30
    auth_files: tuple[str, ...] = ()
    proxy: str = ""


@dataclass(slots=True)
class Progress:
    """How far a pull is. ``state``: ``waiting``, ``fetching``, ``importing``, ``done`` or ``failed``, with the ``error``'s code."""

    name: str
    owner: str
    state: str = "waiting"
    received_bytes: int = 0
    error: str = ""

    def add(self, size_bytes: int) -> None:
        """Count received bytes."""
        self.received_bytes += size_bytes


async def fetch(name: str, directory: str, settings: PullSettings, on_bytes: Callable[[int], None]) -> str:
    """Copy *name* into an OCI layout in the empty *directory*; returns its path.

    Raises HoldfastError(image_not_found, image_pull_failed, unsupported).
    """
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        raise HoldfastError(
            "unsupported",
            f"cannot pull {name}: skopeo is not installed",
            hint="install skopeo, or import an archive with `holdfast image import`",
        )
    received = 0

    def count(size: int) -> None:
        nonlocal received
        received += size
        if received > settings.size_bytes:
            raise OSError("the image is too large")
        on_bytes(size)

    if os.geteuid() == 0:
        os.chown(directory, settings.user_id, settings.user_id)
    _copy_logins(directory, settings)
    command = [skopeo, "copy", "--quiet", f"docker://{name}", f"oci:{{}}/{LAYOUT}:image"]
    host, port = split(name.partition("/")[0])
    local = port if host == "localhost" and settings.registries.names(host, port) else None
    argument = {"directory": directory, "id": settings.user_id, "size_bytes": settings.size_bytes, "command": command, "forward": local}
    proxy = FetchProxy(settings.registries, count, settings.proxy)
    process, ours = await _start(argument)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            listeners = await _listeners(ours)
            if listeners:
                await proxy.start(listeners[0])
            for listener in listeners[1:]:
                await proxy.forward(listener, host, port)
            _, errors = await process.communicate()
    except TimeoutError:
        raise HoldfastError("image_pull_failed", f"cannot pull {name} within {_TIMEOUT_S} s", reason="image-pull") from None
    finally:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await proxy.aclose()
    if process.returncode != 0:
        raise _failure(
            name, errors.decode("utf-8", "replace").strip()[-_MOST_OUTPUT:], proxy.refusal, too_large=received > settings.size_bytes
        )
    return os.path.join(directory, LAYOUT)


def _failure(name: str, problem: str, refusal: str, *, too_large: bool) -> HoldfastError:
    if refusal:
        hint = "import the image as an archive, or ask the operator to list the host in HOLDFAST_REGISTRIES"
        return HoldfastError("image_pull_failed", f"cannot pull {name}: {refusal}", hint=hint, fault="caller", retryable=False)
    if too_large:
        return HoldfastError("image_invalid", f"cannot pull {name}: it is too large")
    code = "image_not_found" if "manifest unknown" in problem or "not found" in problem else "image_pull_failed"
    if logged := _LOGGED.findall(problem):
        problem = logged[-1].replace('\\"', '"')
    return HoldfastError(code, f"cannot pull {name}: {problem}", reason="image-pull")


async def _start(argument: dict[str, Any]) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Start the process in a session of its own; and our end of its channel."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _MODULE, json.dumps({**argument, "channel": theirs.fileno()}),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            pass_fds=(theirs.fileno(),), start_new_session=True, env={**os.environ, **paths},
        )  # fmt: skip
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


async def _listeners(ours: socket.socket) -> list[socket.socket]:
    """The sockets on which the process expects the proxy; none if it ended before, as its output says."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(ours.fileno(), readable.set)
    try:
        async with asyncio.timeout(_START_S):
            await readable.wait()
    finally:
        loop.remove_reader(ours.fileno())
    listeners = [socket.socket(fileno=fd) for fd in socket.recv_fds(ours, 1, 2)[1]]
    for listener in listeners:
        listener.setblocking(False)
    return listeners


def _copy_logins(directory: str, settings: PullSettings) -> None:
    """Give the process the operator's logins to registries, as ``skopeo login`` stores them."""
    for path in settings.auth_files:
        with contextlib.suppress(OSError):
            with open(path, "rb") as source, open(os.path.join(directory, "auth.json"), "xb", opener=_private) as copy:
                shutil.copyfileobj(source, copy)
                if os.geteuid() == 0:
                    os.fchown(copy.fileno(), settings.user_id, settings.user_id)
            return


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
