"""P2 and P3: fifty busy sessions, with all processes on the same cores. Owns the two loads that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast import AsyncShell

from tests.bench import cpu, prototype
from tests.bench.figures import Figure, at_least, at_most
from tests.bench.latency import joined, shell_round_trip
from tests.bench.workers import Load, Workers, workers

_SHARES = (25, 25)
_STEADY_ROUNDS = 7
_ALONE = 300
_ROUNDS = 6
_ROUND_S = 1.5
"""Short rounds in turn: when a shared machine is slow for some seconds, it is slow for both loads."""
_BUDGET = 2500 / 5500
_AIM = 4000 / 5500
"""Shares of the prototype's commands a second in the same run, derived from a machine where the prototype does 5 500."""
_PACE = 2 / 5 * _BUDGET
"""P2's load as such a share: two fifths of P3's budget, 1 000/s together on that machine. At full speed the figure
would be fifty divided by the throughput; at a fixed rate a slow machine would be nearly fully used, and the figure would measure the
length of its queue."""


@dataclass(frozen=True, slots=True)
class Fifty:
    """The loads of fifty sessions. ``alone_s``: the p50 of a command in one session between rounds of the steady load. ``period_s``: how
    often each session began a command in it. CPU time is that of the best rounds."""

    ours: Load
    prototype: Load
    steady: Load
    alone_s: float
    period_s: float
    spent: cpu.Spent
    prototype_spent: cpu.Spent


async def fifty_sessions(environment: Mapping[str, str], data: Path, shell: AsyncShell) -> Fifty:
    """The best of several rounds at full speed, of the whole chain and the prototype in turn; then the median of rounds at a steady rate,
    in turn with ``shell`` alone."""
    with prototype.running(agents=sum(_SHARES)) as bare:
        async with (
            workers("busy", _SHARES, [], environment) as busy,
            workers("proto", _SHARES, [str(bare.folder)], environment) as floor,
        ):
            our_pids, their_pids = cpu.of_stack(data, busy.pids), cpu.of_prototype(bare, floor.pids)
            ours, theirs = [], []
            for _ in range(_ROUNDS):
                theirs.append(await _round(floor, their_pids))
                ours.append(await _round(busy, our_pids))
            best, prototype_spent = max(theirs, key=lambda pair: pair[0].per_second)
            most, spent = max(ours, key=lambda pair: pair[0].per_second)
            period_s = sum(_SHARES) / (_PACE * best.per_second)
            steady, alone = [], []
            for _ in range(_STEADY_ROUNDS):
                steady.append(await busy.work(_ROUND_S, period_s))
                alone.append(await shell_round_trip(shell, _ALONE))
    return Fifty(
        ours=most,
        prototype=best,
        steady=sorted(steady, key=lambda load: load.p99)[_STEADY_ROUNDS // 2],
        alone_s=joined(alone).p50,
        period_s=period_s,
        spent=spent,
        prototype_spent=prototype_spent,
    )


async def _round(load: Workers, pids: cpu.Pids) -> tuple[Load, cpu.Spent]:
    account = cpu.Account(pids)
    done = await load.work(_ROUND_S)
    return done, account.for_each(done.commands)


async def p16(environment: Mapping[str, str]) -> Figure:
    """Commands a second while everything is recorded, as a share of those while nothing is: rounds of both in turn."""
    async with workers("busy", _SHARES, [], environment) as plain, workers("recorded", _SHARES, [], environment) as recorded:
        ours: list[float] = []
        floor: list[float] = []
        for number in range(2 * _ROUNDS):
            for load, kept in ((plain, floor), (recorded, ours)) if number % 2 else ((recorded, ours), (plain, floor)):
                kept.append((await load.work(_ROUND_S)).per_second)
    ratios = sorted(one / other for one, other in zip(ours, floor, strict=True))
    middle = len(ratios) // 2
    how = (
        f"median of the ratios of {len(ratios)} pairs of rounds of {_ROUND_S:g} s, 50 recorded sandboxes and 50 others, each with one "
        f"session and one shell in a closed loop of `true`; ratios {ratios[0]:.3f} to {ratios[-1]:.3f}; floor: the others"
    )
    name = "commands per second, 50 sessions, recorded"
    return at_least("P16", name, sorted(floor)[middle] * ratios[middle], "/s", sorted(floor)[middle], 0.95, 0.99, how)


def p3(fifty: Fifty) -> Figure:
    """Commands a second, as a share of the prototype's."""
    how = (
        f"best of {_ROUNDS} rounds of {_ROUND_S:g} s, 50 sandboxes with one session and one shell each in a closed loop of `true`, "
        "driven by two client processes; floor: the bare relay prototype, fifty agents too, driven the same way"
    )
    floor = fifty.prototype.per_second
    return at_least("P3", "commands per second, 50 sessions", fifty.ours.per_second, "/s", floor, round(_BUDGET, 2), round(_AIM, 2), how)


def p3c(fifty: Fifty) -> Figure:
    """CPU time of a command, compared with the prototype's."""
    return cpu.figure("P3c", "CPU time of a command, 50 sessions", fifty.spent, fifty.prototype_spent)


def p2(fifty: Fifty) -> Figure:
    """p99 at a steady rate, as a multiple of the p50 of one session."""
    how = (
        f"p99 while 50 sessions each begin a command every {fifty.period_s * 1e3:.0f} ms (two fifths of P3's budget on this machine, now), "
        f"median of {_STEADY_ROUNDS} rounds of {_ROUND_S:g} s; floor: p50 of one session between the rounds"
    )
    return at_most("P2", "`true` with 50 busy sessions, p99", fifty.steady.p99 * 1e6, "µs", fifty.alone_s * 1e6, 30, None, how)
