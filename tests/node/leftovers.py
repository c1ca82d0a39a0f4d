"""Counts what a node could leave behind on the machine: mounts, processes, cgroups, directories, namespaces."""

from __future__ import annotations

import os
from pathlib import Path

from session_agent.node.settings import NodeSettings


def census(data: Path) -> dict[str, int]:
    """Count what the node of *data* has on the machine, apart from its own process."""
    return {
        "mounts": len(_mounts(data)),
        "sandboxed processes": len(sandboxed(data)),
        "cgroups": len(_cgroups(data)),
        "directories": len([*data.glob("sandboxes/*"), *data.glob("trash/*")]),
        "files": len(_files(data)),
    }


def _files(data: Path) -> list[str]:
    """Names of state files and sockets."""
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
    files = _files(data)
    spares = {name[1:] for name in files if name.startswith(".")}
    groups = {pid: Path(f"/proc/{pid}/cgroup").read_text() for pid in sandboxed(data) if Path(f"/proc/{pid}").exists()}
    return {
        "mounts": len(_mounts(data)),
        "processes": sum(not any(f"/{name}" in text for name in spares) for text in groups.values()),
        "cgroups": len([name for name in _cgroups(data) if name not in spares]),
        "directories": len([path for path in data.glob("sandboxes/*/") if path.name not in spares]) + len([*data.glob("trash/*")]),
        "files": len([name for name in files if not name.startswith(".")]),
    }
