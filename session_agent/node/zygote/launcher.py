"""The node's side of the zygote: starts it, requests one fork at a time, and starts it again if it ends.

Owns the zygote process and its socket. `begin` requests a fork and `finish` returns its result, so that the caller can set up the cgroups
meanwhile. Called by sandboxes.py only.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.node.descriptors import until_readable
from session_agent.node.kernel.hierarchies import Hierarchies
from session_agent.node.kernel.namespaces import shared_ids
from session_agent.node.settings import NodeSettings

log = logging.getLogger(__name__)
_START_TIMEOUT_S = 30.0
_FORK_TIMEOUT_S = 10.0


class Launcher:
    """`privileged`: whether sandboxes get ranges of ids (as root) or only the node's own id."""

    def __init__(self, settings: NodeSettings, hierarchies: Hierarchies, *, privileged: bool) -> None:
        self._settings = settings
        self._hierarchies = hierarchies
        self._privileged = privileged
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = asyncio.Lock()
        self.id_mapping = False

    async def start(self) -> None:
        """Start the zygote. Raises HoldfastError(runtime_unavailable) with the zygote's message if it cannot work on this machine."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        mode = ("mapped" if shared_ids() else "init") if self._privileged else "own"
        argv = [sys.executable, "-m", "session_agent.node.zygote", str(theirs.fileno()), self._settings.agent_entry]
        # Without the node's own environment, which must not be in a sandbox's memory.
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # On the main thread: every sandbox is a child of the thread that starts the zygote, and dies with it.
        argv += [mode, self._settings.sandboxes_dir]
        self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, cwd="/")
        theirs.close()
        self._hierarchies.join_shared(self._process.pid)
        self._socket = ours
        answer, _ = await self._receive(_START_TIMEOUT_S)
        self.id_mapping = self._settings.id_mapping and bool(answer.get("id_mapping"))
        if not answer.get("ready"):
            self.stop()
            raise HoldfastError(
                "runtime_unavailable",
                f"this machine cannot run sandboxes: {answer.get('error', 'the zygote ended')}",
                hint="run `holdfast doctor`, which names what is missing",
            )

    async def begin(self, request: dict[str, Any], fds: list[int]) -> None:
        """Send one request. `finish` must be called afterwards, also after an error in between."""
        await self._lock.acquire()
        try:
            if self._process is None or self._process.poll() is not None:
                if self._process is not None:
                    log.warning("the zygote ended with %s; starting another", self._process.returncode)
                self.stop()
                await self.start()
            assert self._socket is not None
            message = marshal.dumps(request)
            try:
                socket.send_fds(self._socket, [message], fds)
            except OSError as error:
                self.stop()
                raise HoldfastError("runtime_unavailable", f"the request could not be sent to the zygote: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    async def finish(self) -> tuple[int, int]:
        """The result of `begin`: pid and pidfd of the new process, which is a child of this process."""
        answer, pidfd = await self._finish()
        return int(answer["pid"]), pidfd

    async def make_socket(self, network: int, family: int) -> socket.socket:
        """A TCP socket in the network namespace *network*, an open descriptor. Raises HoldfastError(no_capacity, runtime_unavailable)."""
        await self.begin({"socket": int(family)}, [network])
        _, made = await self._finish()
        return socket.socket(fileno=made)

    async def _finish(self) -> tuple[dict[str, Any], int]:
        """The answer to the request of `begin`, and the descriptor with it."""
        try:
            answer, fds = await self._receive(_FORK_TIMEOUT_S)
            if answer.get("errno") in (errno.ENOSPC, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
                raise HoldfastError(
                    "no_capacity",
                    f"the kernel refused another sandbox: {answer.get('error')}",
                    hint="delete sandboxes, or raise user.max_*_namespaces, kernel.pid_max or the open files limit",
                )
            if not fds:
                if not answer:
                    self.stop()
                raise HoldfastError("runtime_unavailable", f"the zygote cannot do it: {answer.get('error', 'the zygote was lost')}")
            return answer, fds[0]
        except (TimeoutError, OSError) as error:
            self.stop()
            raise HoldfastError("runtime_unavailable", f"the zygote does not answer: {error}") from error
        except asyncio.CancelledError:
            # Otherwise the answer to this request would be read as the answer to the next one.
            self.stop()
            raise
        finally:
            self._lock.release()

    async def _receive(self, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        assert self._socket is not None
        await until_readable(self._socket.fileno(), timeout_s)
        raw, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
        answer: dict[str, Any] = json.loads(raw) if raw else {}
        return answer, fds

    def stop(self) -> None:
        """End the zygote. Its sandboxes are children of the node and continue to run."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
