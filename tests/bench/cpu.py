"""P1c and P3c: CPU time of a command in each process that takes part in it.

Owns the accounts: user and system time of all threads of a process, in nanoseconds, by the scheduler's own count. Wall time
includes other work on the machine; CPU time shows which process to improve.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holdfast import AsyncShell

from tests.bench.figures import Figure
from tests.bench.prototype import Prototype
from tests.node.leftovers import sandboxed

Pids = Mapping[str, Sequence[int]]
Spent = dict[str, float]
"""Microseconds of a command, by process."""


def of_stack(data: Path, clients: Sequence[int]) -> Pids:
    """The current processes of a stack, those of all its sandboxes together."""
    inside = sandboxed(data)
    agents = [pid for pid in inside if _is_first(pid)]
    gateway = int((data / "run" / "gateway.pid").read_text())
    return {"client": clients, "gateway": [gateway], "agent": agents, "bash": [pid for pid in inside if pid not in agents]}


def of_prototype(bare: Prototype, clients: Sequence[int]) -> Pids:
    """The processes of the prototype."""
    below = [pid for pid in _of_session(bare.agents_pid) if pid != bare.agents_pid]
    shells = [pid for pid in below if Path(f"/proc/{pid}/comm").read_text().strip() == "bash"]
    agents = [bare.agents_pid, *(pid for pid in below if pid not in shells)]
    return {"client": clients, "gateway": [bare.relay_pid], "agent": agents, "bash": shells}


class Account:
    """The CPU time that processes use after its creation."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self._before = self._read()

    def for_each(self, commands: int) -> Spent:
        """Microseconds for each of `commands` commands."""
        return {name: (after - self._before[name]) / commands / 1e3 for name, after in self._read().items()}

    def _read(self) -> dict[str, int]:
        return {name: sum(map(_cpu_ns, pids)) for name, pids in self._pids.items()}


async def one_session(shell: AsyncShell, data: Path, count: int = 2000) -> Spent:
    """Commands one after the other in one living shell; this process is the client."""
    for _ in range(count // 10):
        await shell.run("true")
    account = Account(of_stack(data, [os.getpid()]))
    for _ in range(count):
        result = await shell.run("true")
        assert result.exit_code == 0, result
    return account.for_each(count)


def table(rows: Iterable[tuple[str, Spent]]) -> str:
    """Microseconds of a command, by process."""
    lines = [f"    {'µs of CPU a command':<24}" + "".join(f"{name:>10}" for name in ("client", "gateway", "agent", "bash", "all"))]
    lines += [f"    {name:<24}" + "".join(f"{value:>10.0f}" for value in (*spent.values(), sum(spent.values()))) for name, spent in rows]
    return "\n".join(lines)


def figure(number: str, name: str, spent: Spent, floor: Spent | None = None) -> Figure:
    """The sum of all processes; ``how`` states the share of each."""

    def split(each: Spent) -> str:
        return ", ".join(f"{process} {value:.0f}" for process, value in each.items())

    total, under = sum(spent.values()), sum(floor.values()) if floor else None
    how = split(spent) + (f"; floor: the bare relay prototype: {split(floor)}" if floor else "")
    return Figure(number, name, total, "µs", under, total / under if under else None, "", "", True, how)


def _is_first(pid: int) -> bool:
    """Whether it is the first process of its pid namespace."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(row.split()[-1] for row in rows if row.startswith("NSpid:")) == "1"


def _of_session(leader: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found


def _cpu_ns(pid: int) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return total
