"""``top`` and ``stats``: the processes in sandboxes and their use of CPU and memory.

Owns reading /proc through the file operations of the sandbox, so that no program of the image is needed or run. The agent, which is process
1, is left out.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from holdfast import HoldfastError, RemoteFileError, Sandbox, SandboxClient
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import print_json, print_note, table
from holdfast.cli.sandbox_names import opened
from holdfast.cli.signals import raised_on_exit_signals

INTERVAL_S = 2.0
FIRST_INTERVAL_S = 0.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_AGENT = 1
_GONE = (RemoteFileError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Row:
    """One process."""

    pid: int
    parent: int
    uid: int
    cpu_s: float
    age_s: float
    memory_bytes: int
    command: str


def rows(sandbox: Sandbox) -> Iterator[Row]:
    """All processes except the agent; a process that ends meanwhile is left out."""
    files = sandbox.files
    up_s = float(files.read_text("/proc/uptime").split()[0])
    for entry in files.list("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == _AGENT:
            continue
        with contextlib.suppress(*_GONE):
            yield _row(sandbox, int(entry.name), up_s)


def _row(sandbox: Sandbox, pid: int, up_s: float) -> Row:
    files = sandbox.files
    name, _, rest = files.read(f"/proc/{pid}/stat").decode(errors="replace").partition("(")[2].rpartition(") ")
    fields = rest.split()
    status = dict(line.partition(":")[::2] for line in files.read(f"/proc/{pid}/status").decode(errors="replace").splitlines())
    words = files.read(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
    command = b" ".join(words).decode(errors="replace") or f"[{name}]"
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    age_s = max(up_s - int(fields[19]) / _TICKS_PER_S, 0.0)
    memory = int(status.get("VmRSS", "0").split()[0]) * 1024
    return Row(pid, int(fields[1]), int(status.get("Uid", "0").split()[0]), cpu_s, age_s, memory, command)


def top(arguments: Arguments) -> None:
    with raised_on_exit_signals(), SandboxClient() as client, opened(client, arguments.sandbox) as sandbox:
        found = sorted(rows(sandbox), key=lambda row: row.pid)
        names = _user_names(sandbox)
    if arguments.json:
        print_json([asdict(row) for row in found])
        return
    head = ("PID", "PPID", "USER", "%CPU", "RSS", "TIME", "COMMAND")
    table(head, ((r.pid, r.parent, names.get(r.uid, r.uid), f"{100 * r.cpu_s / max(r.age_s, 0.01):.1f}", _shown(r.memory_bytes),
                  f"{int(r.cpu_s) // 60}:{r.cpu_s % 60:05.2f}", r.command) for r in found))  # fmt: skip


def _user_names(sandbox: Sandbox) -> dict[int, str]:
    with contextlib.suppress(HoldfastError, ValueError, IndexError):
        lines = [line.split(":") for line in sandbox.files.read("/etc/passwd").decode(errors="replace").splitlines()]
        return {int(line[2]): line[0] for line in lines if len(line) > 2}
    return {}


class _Watched:
    """One sandbox, and the usage of its processes at the last reading."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._limit = str(sandbox.info().memory)
        self._before = self._look()

    def _look(self) -> tuple[float, list[Row]]:
        return time.monotonic(), [*rows(self._sandbox)]

    def usage(self) -> dict[str, Any]:
        """The usage since the last reading."""
        then, before = self._before
        now, found = self._before = self._look()
        had = {row.pid: row.cpu_s for row in before}
        used_s = sum(max(row.cpu_s - had.get(row.pid, 0.0), 0.0) for row in found)
        return {
            "sandbox": self._sandbox.id,
            "cpu_percent": 100 * used_s / max(now - then, 0.01),
            "memory_bytes": sum(row.memory_bytes for row in found),
            "memory_limit": self._limit,
            "processes": len(found),
        }


def stats(arguments: Arguments) -> int:
    once = arguments.no_stream or arguments.json or not sys.stdout.isatty()
    with raised_on_exit_signals(), SandboxClient() as client, contextlib.ExitStack() as stack:
        words = arguments.sandbox or [info.sandbox_id for info in client.list_sandboxes() if info.ready]
        watched = [_Watched(stack.enter_context(opened(client, word))) for word in words]
        wait_s = FIRST_INTERVAL_S
        while True:
            time.sleep(wait_s)
            wait_s = INTERVAL_S
            found = [*_usages(watched)]
            if arguments.json:
                print_json(found)
                return 0
            if not once:
                sys.stdout.write("\x1b[H\x1b[J")
            head = ("SANDBOX", "CPU %", "MEMORY / LIMIT", "PROCESSES")
            table(head, ((u["sandbox"], f"{u['cpu_percent']:.1f}", f"{_shown(u['memory_bytes'])} / {u['memory_limit']}", u["processes"])
                         for u in found))  # fmt: skip
            sys.stdout.flush()
            if once or not watched:
                return 0


def _usages(watched: list[_Watched]) -> Iterator[dict[str, Any]]:
    for one in list(watched):
        try:
            yield one.usage()
        except HoldfastError as gone:
            print_note(f"holdfast: {gone.message}")
            watched.remove(one)


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f}Mi" if size_bytes < 2**30 else f"{size_bytes / 2**30:.2f}Gi"
