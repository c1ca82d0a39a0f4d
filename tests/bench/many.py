"""P7: many sandboxes at once, from the create to the delete, by time and by CPU time of each process.

Owns two ways to use them: as rollouts do, each of which creates a sandbox, runs Orchard's four commands in it and deletes it, all started
at once (P7, P7c); and with all of them alive at the same time, in three phases, each of which starts when all sandboxes have ended the
one before (P7a, P7b). Also owns the accounts of CPU time and the count of leftovers. The floor is the kernel's part of one sandbox
(`floors.BareSandbox`), taken in the same run.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from holdfast import AsyncSandbox, AsyncSandboxClient
from redis.asyncio import Redis

from session_agent.node.settings import NodeSettings
from tests.bench import floors
from tests.bench.figures import Figure, percentile
from tests.node.leftovers import unclaimed
from tests.support.until import until_async

COUNT = 1000
_BUDGET_S, _AIM_S = 26.0, 15.0
"""For COUNT sandboxes on two cores; proportionally less for fewer."""
_BUDGET_CPU_MS = 45.0
_RELEASE = "cat /etc/os-release | head -1"
COMMANDS = (("ls /", False), (_RELEASE, False), ("echo done", False), (_RELEASE, True))
_PROCESSES = ("gateway", "node", "redis", "controller")
_FLOORS = 40
_SANDBOX_BYTES = 8 << 20
"""A little more than a sandbox takes while its commands run."""
_TOUCH = "import mmap, sys; mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: wall time, and CPU seconds by process."""

    name: str
    wall_s: float
    cpu_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Many:
    """One round of `count` sandboxes; CPU seconds of one bare sandbox, and leftovers at the end."""

    count: int
    phases: Sequence[Phase]
    floor_cpu_s: float
    left: dict[str, int]
    load: float
    alive: int
    """Most that existed at the same time."""

    @property
    def wall_s(self) -> float:
        return sum(phase.wall_s for phase in self.phases)

    @property
    def cpu_ms(self) -> float:
        """Of all processes together, for one sandbox."""
        return sum(sum(phase.cpu_s.values()) for phase in self.phases) / self.count * 1e3

    def table(self) -> str:
        """Milliseconds of CPU for one sandbox, by phase and process."""
        names = list(self.phases[0].cpu_s)
        rows = [("", "wall s", *names, "all")]
        for phase in self.phases:
            shares = [phase.cpu_s[name] / self.count * 1e3 for name in names]
            rows.append((phase.name, f"{phase.wall_s:.1f}", *(f"{share:.1f}" for share in shares), f"{sum(shares):.1f}"))
        return "\n".join("    " + "".join(cell.rjust(12) for cell in row) for row in rows)


class Accounts:
    """CPU seconds of the processes of one stack, and of the processes that the node has forked."""

    def __init__(self, data: Path) -> None:
        self._pids = {name: int(path.read_text()) for name in _PROCESSES if (path := data / "run" / f"{name}.pid").exists()}
        node = self._pids["node"]
        children = Path(f"/proc/{node}/task/{node}/children").read_text().split()
        self._pids["zygote"] = next(int(pid) for pid in children if b"holdfast-zygote" in Path(f"/proc/{pid}/cmdline").read_bytes())
        self._forked = _counter(f"holdfast-{NodeSettings(str(data), '').tag}")

    def read(self) -> dict[str, float]:
        """``sandboxes`` are the agents with all processes that they started, including ended ones."""
        found = {name: _cpu_s(pid) for name, pid in self._pids.items()}
        found["sandboxes"] = self._forked() - found["zygote"]
        found["client"] = time.process_time()
        return found


def _counter(group: str) -> Callable[[], float]:
    """CPU seconds of a node's control group, including removed groups below it."""
    folders = [path for path, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(path) == group]  # those of other nodes come and go
    for folder in folders:
        if os.path.exists(path := f"{folder}/cpuacct.usage"):
            return partial(_first_number, path, 0, 1e9)
    for folder in folders:
        if os.path.exists(path := f"{folder}/cpu.stat"):
            return partial(_first_number, path, 1, 1e6)
    raise RuntimeError(f"no control group {group} counts CPU time: P7 needs a node that is root")


def _first_number(path: str, column: int, per_second: float) -> float:
    return int(Path(path).read_text().split()[column]) / per_second


async def rollouts(client: AsyncSandboxClient, data: Path, count: int) -> Many:
    """One round in which each sandbox is created, used and deleted independently. Raises if a command has a wrong result."""
    alive = most = 0

    async def rollout() -> None:
        nonlocal alive, most
        box = await _create(client)
        alive += 1
        most = max(most, alive)
        await _commands(box)
        await box.delete()
        alive -= 1

    async def work(accounts: Accounts, phases: list[Phase]) -> None:
        await phase("rollouts", [rollout] * count, accounts, phases)

    taken = await _round(data, count, work)
    return replace(taken, alive=most)


async def all_alive(client: AsyncSandboxClient, data: Path, count: int) -> Many:
    """One round in which all sandboxes exist before the first is used, and are used before the first is deleted. Raises as `rollouts`."""
    boxes: list[AsyncSandbox] = []

    async def create() -> None:
        boxes.append(await _create(client))

    async def work(accounts: Accounts, phases: list[Phase]) -> None:
        await phase("create", [create] * count, accounts, phases)
        await phase("commands", [partial(_commands, box) for box in boxes], accounts, phases)
        await phase("delete", [box.delete for box in boxes], accounts, phases)

    return await _round(data, count, work)


async def _round(data: Path, count: int, work: Callable[[Accounts, list[Phase]], Awaitable[None]]) -> Many:
    phases: list[Phase] = []
    await _touch_memory(count * _SANDBOX_BYTES)
    with floors.BareSandbox(_RELEASE) as bare:
        under = [bare.sample() for _ in range(_FLOORS // 2)]
        await work(Accounts(data), phases)
        under += [bare.sample() for _ in range(_FLOORS // 2)]
    return Many(count, phases, percentile(under, 0.5), await _left(data), os.getloadavg()[0], count)


async def _touch_memory(size_bytes: int) -> None:
    """Make the host of a virtual machine supply the memory of a burst beforehand; some hosts take back memory that was free for seconds.

    On such a host the first touch of a page costs 4 µs more of CPU time, charged to the process that touches it. At most half of the free
    memory is touched, by a child: where a control group allows less, the kernel kills that child and the burst starts without it.
    """
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _TOUCH, str(min(size_bytes, free_bytes // 2)), stderr=asyncio.subprocess.DEVNULL
    )
    await child.wait()


async def _create(client: AsyncSandboxClient) -> AsyncSandbox:
    return await client.create_sandbox("host", cpu="1", memory="256Mi")


async def _commands(box: AsyncSandbox) -> None:
    for command, login in COMMANDS:
        result = await box.exec(command, login=login)
        assert result.exit_code == 0, result
        assert result.stdout, result


async def phase(name: str, steps: Sequence[Callable[[], Awaitable[object]]], accounts: Accounts, phases: list[Phase]) -> None:
    """Run all steps at once and append their wall time and CPU time to ``phases``."""
    before, started = accounts.read(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(_run(step))
    elapsed, after = time.perf_counter() - started, accounts.read()
    phases.append(Phase(name, elapsed, {process: after[process] - before[process] for process in after}))


async def _run(step: Callable[[], Awaitable[object]]) -> None:
    await step()


async def _left(data: Path) -> dict[str, int]:
    """Leftovers that do not belong to a spare; waits up to a minute until there are none."""
    async with Redis(unix_socket_path=str(data / "redis.sock")) as redis:

        async def count() -> dict[str, int]:
            return unclaimed(data) | {"keys": len([key async for key in redis.scan_iter("*:sandbox:*")])}

        left: dict[str, int] = {}

        async def nothing() -> bool:
            left.update(await count())
            return not any(left.values())

        try:
            await until_async(nothing, deadline_s=60, what="everything of the sandboxes to go")
        except AssertionError:
            pass
        return left


def _cpu_s(pid: int) -> float:
    """User and system time of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def figures(wall_id: str, cpu_id: str, name: str, taken: Many) -> list[Figure]:
    """The wall time, and the CPU time compared with that of a bare sandbox."""
    share = taken.count / COUNT
    clean = not any(taken.left.values())
    wall = ", ".join(f"{phase.name} {phase.wall_s:.1f} s" for phase in taken.phases)
    how = (
        f"{wall}; {taken.alive} alive at once at most; {len(os.sched_getaffinity(0))} cores, load average {taken.load:.1f}; "
        f"left behind: {taken.left}"
    )
    first = Figure(
        wall_id, f"{taken.count} {name}", taken.wall_s, "s", None, None, f"≤ {_BUDGET_S * share:g} s", f"{_AIM_S * share:g} s",
        clean and taken.wall_s <= _BUDGET_S * share, how,
    )  # fmt: skip
    floor = taken.floor_cpu_s * 1e3
    how = "all processes, four commands included; floor: namespaces, an overlay and the same four commands, from a small process"
    second = Figure(
        cpu_id, "CPU time of each of them", taken.cpu_ms, "ms", floor, taken.cpu_ms / floor, f"≤ {_BUDGET_CPU_MS:g} ms", "",
        clean and taken.cpu_ms <= _BUDGET_CPU_MS, how,
    )  # fmt: skip
    return [first, second]
