"""Counts what a node could leave behind on the machine: mounts, processes, cgroups, directories, namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from pathlib import Path

from holdfast_server.datadir import DataDir

from session_agent.node.settings import NodeSettings

DEADLINE_S = 60.0


def census(data: Path) -> dict[str, int]:
    """Count what the node of *data* has on the machine, apart from its own process."""
    return {
        "mounts": len(_mounts(data)),
        "sandboxed processes": len(sandboxed(data)),
        "cgroups": len(_cgroups(data)),
        "directories": len([*data.glob("sandboxes/*")]),
        "files": len(_files(data)),
    }


def _files(data: Path) -> list[str]:
    """Names of sockets."""
    run_dir = Path(NodeSettings(str(data), "").run_dir)
    return [path.name for path in run_dir.glob("*") if not (path.is_dir() or path.is_symlink())]


def sandboxed(data: Path) -> list[int]:
    """Processes in a pid namespace below ours and in a cgroup of this node; other nodes may run at the same time."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                rows = Path(f"/proc/{name}/status").read_text().splitlines()
                groups = Path(f"/proc/{name}/cgroup").read_text()
            except OSError:
                continue
            ids = next((row.split()[1:] for row in rows if row.startswith("NSpid:")), [])
            # The machine's init reaps what a killed node leaves, at some later time.
            dead = any(row.startswith("State:\tZ") for row in rows)
            if len(ids) > 1 and not dead and _tag(data) in groups:
                found.append(int(name))
    return found


def _mounts(data: Path) -> list[str]:
    """Mounts of this node; the other mounts of the machine may change at any time."""
    return [row for row in Path("/proc/self/mountinfo").read_text().splitlines() if str(data) in row]


def _tag(data: Path) -> str:
    return f"holdfast-{NodeSettings(str(data), '').tag}"


def _cgroups(data: Path) -> list[str]:
    return [
        directory for base, directories, _ in os.walk("/sys/fs/cgroup") if os.path.basename(base) == _tag(data) for directory in directories
    ]


def unclaimed(data: Path) -> dict[str, int]:
    """Count what belongs to no container of the node, neither to a ready spare nor to one in use, when no sandbox is left."""
    spares = _spares(data)
    return {
        "mounts": len(_mounts(data)),
        "processes": max(0, len(sandboxed(data)) - spares),
        "cgroups": max(0, len(set(_cgroups(data))) - spares),
        "directories": max(0, len([*data.glob("sandboxes/*/")]) - spares),
        "files": len(_files(data)),
    }


def _spares(data: Path) -> int:
    """How many the node has; each is one process with one group and, without a disk, one directory."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(str(DataDir(data).node_socket))
        connection.sendall(b'{"id": 0, "op": "spares"}\n')
        return int(json.loads(connection.makefile().readline())["spares"])


def first_process(data: Path, sandbox_id: str) -> int:
    """The process id of a sandbox's agent, which has the sandbox's id as the name of its host."""
    for pid in sandboxed(data):
        with contextlib.suppress(OSError):
            ids = re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
            if ids and ids[1] == "1" and Path(f"/proc/{pid}/root/etc/hostname").read_text().strip() == sandbox_id:
                return pid
    raise LookupError(sandbox_id)
