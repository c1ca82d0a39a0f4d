"""P2 and P3: fifty busy sessions, everything on the same cores. Owns the two loads that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.bench import prototype
from tests.bench.figures import Figure, at_least, at_most
from tests.bench.workers import Load, workers

_SHARES = (25, 25)
_STEADY_ROUNDS = 7
_ROUNDS = 6
_ROUND_S = 1.5
"""Short and many: a shared machine that is slow for some seconds is so for both loads."""
_BUDGET = 2500 / 5500
_AIM = 4000 / 5500
"""Shares of what the prototype does in the same run: commands a second on a machine where that does 5 500."""
_PACE = 2 / 5 * _BUDGET
"""P2's load as such a share: two fifths of P3's budget, 1 000/s together on that machine. As fast as they can, fifty sessions would
measure fifty divided by the throughput and nothing else; the same number of commands on every machine would load a slow one, or one in a
slow hour, nearly full, and a queue's length there says little about what is in it."""


@dataclass(frozen=True, slots=True)
class Fifty:
    """The loads of fifty sessions. ``period_s``: how often each began a command in the steady one."""

    ours: Load
    prototype: Load
    steady: Load
    period_s: float


async def fifty_sessions(environment: Mapping[str, str]) -> Fifty:
    """The best of rounds as fast as they can, of the whole chain and the prototype in turn; then the median of some at a steady pace."""
    with prototype.running(agents=sum(_SHARES)) as bare:
        async with (
            workers("busy", _SHARES, [], environment) as busy,
            workers("proto", _SHARES, [str(bare.folder)], environment) as floor,
        ):
            ours, theirs = [], []
            for _ in range(_ROUNDS):
                theirs.append(await floor.work(_ROUND_S))
                ours.append(await busy.work(_ROUND_S))
            best = max(theirs, key=lambda load: load.per_second)
            period_s = sum(_SHARES) / (_PACE * best.per_second)
            steady = [await busy.work(_ROUND_S, period_s) for _ in range(_STEADY_ROUNDS)]
    return Fifty(
        ours=max(ours, key=lambda load: load.per_second),
        prototype=best,
        steady=sorted(steady, key=lambda load: load.p99)[_STEADY_ROUNDS // 2],
        period_s=period_s,
    )


def p3(fifty: Fifty) -> Figure:
    """Commands a second, as a share of the prototype's."""
    how = (
        f"best of {_ROUNDS} rounds of {_ROUND_S:g} s, 50 sandboxes with one session and one shell each in a closed loop of `true`, "
        "driven by two client processes; floor: the bare relay prototype, fifty agents too, driven the same way"
    )
    floor = fifty.prototype.per_second
    return at_least("P3", "commands per second, 50 sessions", fifty.ours.per_second, "/s", floor, round(_BUDGET, 2), round(_AIM, 2), how)


def p2(fifty: Fifty, alone_p50_s: float) -> Figure:
    """The slowest hundredth at a steady pace, as a multiple of the middle one with one session."""
    how = (
        f"p99 while 50 sessions each begin a command every {fifty.period_s * 1e3:.0f} ms (two fifths of P3's budget on this machine, now), "
        f"median of {_STEADY_ROUNDS} rounds of {_ROUND_S:g} s; floor: p50 of P1"
    )
    return at_most("P2", "`true` with 50 busy sessions, p99", fifty.steady.p99 * 1e6, "µs", alone_p50_s * 1e6, 30, None, how)
