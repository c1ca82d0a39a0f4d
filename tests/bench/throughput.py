"""P2 and P3: fifty busy sessions, everything on the same cores. Owns the two loads that are compared."""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench import prototype
from tests.bench.figures import Figure, at_most
from tests.bench.workers import Load, workers

_SHARES = (25, 25)
_STEADY_ROUNDS = 5
_ROUNDS = 6
_ROUND_S = 1.5
"""Short and many: a shared machine that is slow for some seconds is so for both loads."""
_PACE_S = 0.05
"""P2's sessions begin a command this often: 1 000/s together, two fifths of P3's budget. As fast as they can, fifty sessions would
measure fifty divided by the throughput and nothing else."""
_BUDGET = 2500 / 5500
_AIM = 4000 / 5500
"""Shares of what the prototype does in the same run: commands a second on a machine where that does 5 500."""


async def fifty_sessions(environment: Mapping[str, str]) -> tuple[Load, Load, Load]:
    """The median of rounds at a steady pace; then the best of some as fast as they can, of the whole chain and the prototype in turn."""
    with prototype.running(agents=sum(_SHARES)) as bare:
        async with (
            workers("busy", _SHARES, [], environment) as busy,
            workers("proto", _SHARES, [str(bare.folder)], environment) as floor,
        ):
            steady = [await busy.work(_ROUND_S, _PACE_S) for _ in range(_STEADY_ROUNDS)]
            ours, theirs = [], []
            for _ in range(_ROUNDS):
                theirs.append(await floor.work(_ROUND_S))
                ours.append(await busy.work(_ROUND_S))
    return (
        sorted(steady, key=lambda load: load.p99)[_STEADY_ROUNDS // 2],
        max(ours, key=lambda load: load.per_second),
        max(theirs, key=lambda load: load.per_second),
    )


def p3(ours: Load, prototype_load: Load) -> Figure:
    ratio = ours.per_second / prototype_load.per_second
    how = (
        f"best of {_ROUNDS} rounds of {_ROUND_S:g} s, 50 sandboxes with one session and one shell each in a closed loop of `true`, "
        "driven by two client processes; floor: the bare relay prototype, fifty agents too, driven the same way"
    )
    return Figure(
        "P3",
        "commands per second, 50 sessions",
        ours.per_second,
        "/s",
        prototype_load.per_second,
        ratio,
        f"≥ {_BUDGET:.2f}×",
        f"{_AIM:.2f}×",
        ratio >= _BUDGET,
        how,
    )


def p2(steady: Load, alone_p50_s: float) -> Figure:
    how = (
        f"p99 while 50 sessions each begin a command every {_PACE_S * 1e3:g} ms, median of {_STEADY_ROUNDS} rounds of {_ROUND_S:g} s; "
        "floor: p50 of P1"
    )
    return at_most("P2", "`true` with 50 busy sessions, p99", steady.p99 * 1e6, "µs", alone_p50_s * 1e6, 30, None, how)
