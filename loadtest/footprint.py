"""The resources of a stack's processes on this machine: memory, descriptors, threads, event loop tasks, mounts, namespaces, cgroups.

Owns the reading of /proc, of the node's control groups and of three metrics: ``holdfast_tasks``, ``holdfast_creates_total`` and the
ready ``holdfast_node_spares``. A process that ends while it is read is left out. ``growth`` judges the numbers. Called by ``watch``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

STACK = "stack"
"""The name for numbers that belong to no single process."""
AGENT = "agent"
_METRIC = re.compile(r'^holdfast_(tasks|creates_total|node_spares)(?:\{state="ready"\})? ([0-9.e+]+)$', re.MULTILINE)
_METRICS_S = 5.0
_KIB = 1024
_AGENT_SOCKET = ".s"
"""How the path of an agent's socket ends (``agent_socket`` in session_agent/node/settings.py)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One number of one process; ``pid`` is 0 for numbers of the whole stack."""

    process: str
    pid: int
    measure: str
    value: float


class Footprint:
    """One stack: ``data`` is its folder, ``others`` are further processes by name, ``metrics`` the addresses of /metrics by process."""

    def __init__(self, data: Path, others: Mapping[str, int], metrics: Mapping[str, str]) -> None:
        self._data = data
        self._others = others
        self._metrics = metrics
        tag = f"holdfast-{hashlib.sha256(str(data).encode()).hexdigest()[:12]}"
        self._folders = [Path(base) / tag for base in ("/run", "/dev/shm", "/tmp")] + [data / "sandboxes"]
        self._groups = [Path(base) / name for base, names, _ in os.walk("/sys/fs/cgroup") for name in names if name == tag]

    def read(self) -> list[Reading]:
        """Read all numbers now."""
        named = self._named()
        found = []
        for name, pid in named:
            with contextlib.suppress(OSError):
                found += _of_process(name, pid, str(self._data))
        agents = [pid for pid in _below([pid for _, pid in named]) if _is_first(pid)]
        for pid in agents:
            with contextlib.suppress(OSError):
                found += _of_process(AGENT, pid, str(self._data))
        pids = dict(named)
        spares = 0.0
        for name, address in self._metrics.items():
            if name in pids:
                metrics = _of_metrics(address)
                spares += metrics.pop("node_spares", 0.0)
                found += [Reading(name, pids[name], measure, count) for measure, count in metrics.items()]
        return [*found, *self._of_stack([pid for _, pid in named], agents, spares)]

    def unclaimed(self) -> dict[str, int]:
        """The counts that do not belong to spares. All are 0 when no sandbox is left."""
        files = self._files()
        sockets = [path for path in files if path.suffix == _AGENT_SOCKET]
        spares = int(sum(_of_metrics(address).get("node_spares", 0.0) for address in self._metrics.values()))
        firsts = [pid for pid in _below([pid for _, pid in self._named()]) if _is_first(pid)]
        return {
            "files": len(sockets) + max(0, len(files) - len(sockets) - spares),
            "cgroups": max(0, len({path.name for path in self._children()}) - spares),
            "first processes": max(0, len(firsts) - spares),
            "mounts": len(_mounts("self", str(self._data))),
        }

    def _named(self) -> list[tuple[str, int]]:
        """The long-lived processes by name, each once."""
        found = list(self._others.items())
        for path in sorted(self._data.glob("run/*.pid")):
            with contextlib.suppress(OSError, ValueError):
                found.append((path.stem, int(path.read_text())))
        for name, pid in [pair for pair in found if pair[0] in ("node", "locust")]:
            for number, child in enumerate(_children(pid)):
                if name == "node" and _is_zygote(child):
                    found.append(("zygote", child))
                if name == "locust":
                    found.append((f"locust worker {number}", child))
        return found

    def _files(self) -> list[Path]:
        """Sockets and folders of the node's sandboxes, of spares only folders."""
        paths = [path for folder in self._folders for path in folder.glob("*")]
        return [path for path in paths if not path.is_symlink()]  # the node's own link to its data folder

    def _children(self) -> list[Path]:
        return [path for group in self._groups for path in group.iterdir() if path.is_dir()]

    def _of_stack(self, named: list[int], agents: list[int], spares: float) -> Iterator[Reading]:
        namespaces: set[str] = set()
        for pid in {*named, *agents}:
            with contextlib.suppress(OSError):
                namespaces |= {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")}
        files = self._files()
        counts = {
            "sandboxes": sum(path.suffix == _AGENT_SOCKET for path in files),
            "spares": spares,
            "files": len(files),
            "namespaces": len(namespaces),
            "cgroups": len(self._children()),
        }
        for measure, count in counts.items():
            yield Reading(STACK, 0, measure, count)


def _of_process(name: str, pid: int, data: str) -> list[Reading]:
    """Memory is what the end of the process would free: anonymous, shared-memory and swapped pages, however many processes map them."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_bytes().decode().splitlines())
    if "RssAnon" not in status:
        raise ProcessLookupError(pid)  # the process has ended and was not reaped yet
    kib = sum(int(status[field].split()[0]) for field in ("RssAnon", "RssShmem", "VmSwap"))
    values = {
        "memory_bytes": kib * _KIB,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "mounts": len(_mounts(str(pid), data)),
    }
    return [Reading(name, pid, measure, value) for measure, value in values.items()]


def _mounts(pid: str, data: str) -> list[bytes]:
    """Rows of a process's mount table; in the machine's own one only those of the stack, because others come and go."""
    rows = Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines()
    if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
        return rows
    return [row for row in rows if data.encode() in row]


def _is_first(pid: int) -> bool:
    """Whether it is the first process of a pid namespace below this one."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"NSpid:"):
                ids = line.split()[1:]
                return len(ids) > 1 and ids[-1] == b"1"
    return False


def _below(pids: list[int]) -> set[int]:
    """All descendants."""
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        more = set(_children(waiting.pop())) - found
        found |= more
        waiting += more
    return found


def _children(pid: int) -> list[int]:
    """Of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


def _is_zygote(pid: int) -> bool:
    """Not one of its forks that has not yet changed its name."""
    with contextlib.suppress(OSError):
        return b"holdfast-zygote" in Path(f"/proc/{pid}/cmdline").read_bytes() and not _is_first(pid)
    return False


def _of_metrics(address: str) -> dict[str, float]:
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=_METRICS_S) as answer:
        return {name: float(value) for name, value in _METRIC.findall(answer.read().decode())}
    return {}
