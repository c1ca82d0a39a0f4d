"""Cleaning up after a node that was killed.

Owns reading the state file of each sandbox, and the cleanup at start: it removes the processes, cgroups and files of the last run and
reports the sandboxes that ran as lost. Mounts need no cleanup: they are in namespaces that end with their processes.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.node import removal
from session_agent.node.hierarchies import Hierarchies, detect, remove
from session_agent.node.settings import NodeSettings

log = logging.getLogger(__name__)
_DEATH_MS = 10_000
_LOST = {"state": "failed", "reason": "node-lost", "fault": "infrastructure", "message": "the node that ran the sandbox was killed"}


def sweep(settings: NodeSettings, hierarchies: Hierarchies) -> list[dict[str, Any]]:
    """Remove what an earlier node of this data directory left; the records of its sandboxes, now lost."""
    lost = []
    for name in os.listdir(settings.run_dir):
        state = _state(os.path.join(settings.run_dir, name)) if name.endswith(".json") else None
        if state is not None:
            _end(state.pop("pid", 0), state.pop("started", ""), name)
            for path in state.pop("cgroups", []):
                if f"/holdfast-{settings.tag}/" in str(path):
                    _try(remove, str(path))
            state.pop("folder", None)  # removed below, with all others
            lost.append(state | _LOST)
    for directory in {settings.run_dir, settings.sandboxes_dir}:
        for name in os.listdir(directory):
            _try(removal.remove, os.path.join(directory, name), settings.trash_dir)
    for base in (*hierarchies.v1.values(), *filter(None, [hierarchies.v2])):
        for name in os.listdir(base):
            if os.path.isdir(os.path.join(base, name)):
                _try(remove, os.path.join(base, name))
    for name in os.listdir(settings.trash_dir):
        removal.remove(os.path.join(settings.trash_dir, name), settings.trash_dir)
    return lost


def make_directories(settings: NodeSettings) -> None:
    """The folders of sandboxes, closed to other users. Raises ``HoldfastError`` where one belongs to another user."""
    for path in (settings.sandboxes_dir, settings.trash_dir, settings.run_dir):
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.lstat(path).st_uid != os.geteuid():
            raise HoldfastError("runtime_unavailable", f"{path} belongs to another user", hint="remove it, or choose another HOLDFAST_DATA")
        os.chmod(path, 0o700)


def sweep_all(settings: NodeSettings) -> None:
    """For a node that is not started again: remove what the last one left, and the groups that it made for itself."""
    if not os.path.isdir(settings.sandboxes_dir):
        return
    make_directories(settings)
    hierarchies = detect(settings.tag)
    sweep(settings, hierarchies)
    for base in hierarchies.bases:
        _try(remove, base)
    if settings.run_dir != settings.sandboxes_dir:
        _try(os.rmdir, settings.run_dir)


def _state(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and isinstance(state.get("sandbox_id"), str) else None


def start_time(pid: int) -> str:
    """When *pid* started, in ticks since boot: id and start identify a process. Empty when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _end(pid: object, started: object, name: str) -> None:
    """Kill *pid* and wait for its end, if it is still the process that was recorded."""
    if not isinstance(pid, int) or pid <= 1:
        return
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if not started or start_time(pid) != started:
            return
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(_DEATH_MS):
            log.error("process %d of %s could not be killed", pid, name)
    except OSError:
        return
    finally:
        os.close(pidfd)


def _try(step: Any, *args: Any) -> None:
    try:
        step(*args)
    except OSError as error:
        log.error("cannot remove what an earlier run left: %s", error)
