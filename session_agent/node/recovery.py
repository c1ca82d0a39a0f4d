"""Cleaning up after a node that was killed.

Owns the small state file per sandbox and the sweep at start: processes, cgroups and folders of the last run go, and
what was running is reported as lost. Mounts need no sweep: they live in namespaces that die with their processes.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import signal
from typing import Any

from session_agent.node import removal
from session_agent.node.hierarchies import Hierarchies, detect, remove
from session_agent.node.settings import NodeSettings

log = logging.getLogger(__name__)
STATE = "state.json"
_DEATH_MS = 10_000
_LOST = {"state": "failed", "reason": "node-lost", "fault": "infrastructure", "message": "the node that ran the sandbox was killed"}


def sweep(settings: NodeSettings, hierarchies: Hierarchies) -> list[dict[str, Any]]:
    """Remove what an earlier node of this data directory left; the records of its sandboxes, now lost."""
    lost = []
    with os.scandir(settings.sandboxes_dir) as entries:
        folders = [entry.path for entry in entries]
    for folder in folders:
        state = _state(folder)
        if state is not None:
            _end(state.pop("pid", 0), state.pop("started", ""), folder)
            for path in state.pop("cgroups", []):
                if f"/holdfast-{settings.tag}/" in str(path):
                    _try(remove, str(path))
            lost.append(state | _LOST)
        _try(removal.remove_tree, folder, settings.trash_dir)
    for base in (*hierarchies.v1.values(), *filter(None, [hierarchies.v2])):
        for name in os.listdir(base):
            if os.path.isdir(os.path.join(base, name)):
                _try(remove, os.path.join(base, name))
    removal.empty_directory(settings.trash_dir)
    if settings.sockets_dir:
        shutil.rmtree(settings.sockets_dir, ignore_errors=True)
        os.makedirs(settings.sockets_dir, mode=0o700)
    return lost


def sweep_all(settings: NodeSettings) -> None:
    """Without a node to follow: what the one that was killed left, and the groups that it made for itself."""
    if not os.path.isdir(settings.sandboxes_dir):
        return
    hierarchies = detect(settings.tag)
    sweep(settings, hierarchies)
    for base in hierarchies.bases:
        _try(remove, base)
    if settings.sockets_dir:
        shutil.rmtree(settings.sockets_dir, ignore_errors=True)


def _state(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, STATE), encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and isinstance(state.get("sandbox_id"), str) else None


def start_time(pid: int) -> str:
    """When *pid* started, in ticks since boot: with the id it names a process for good. Empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _end(pid: object, started: object, folder: str) -> None:
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
            log.error("process %d of %s could not be killed", pid, folder)
    except OSError:
        return
    finally:
        os.close(pidfd)


def _try(step: Any, *args: Any) -> None:
    try:
        step(*args)
    except OSError as error:
        log.error("left over from an earlier run and not removable: %s", error)
