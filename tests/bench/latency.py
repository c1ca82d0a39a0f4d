"""P1, P4, P5, P12: how long one command takes, compared with its floor.

Owns the sampling: warm up, then short stretches of floor and figure in turn, so that a disturbance affects both. They do
not alternate sample by sample: a floor would overlap with work that our processes do after their answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from holdfast import AsyncSandbox, AsyncSandboxClient, AsyncShell

from tests.bench import floors, prototype
from tests.bench.figures import Figure, at_most, percentile, quartiles

_WARM_UP = 0.1
_STRETCH = 25
P1_COUNT = 10_000
"""Four seconds: the scheduler moves the processes between cores at times, and some placements are a third slower than others."""


_P1R_BUDGET, _P1R_AIM = round(5 / 3, 2), round(4 / 3, 2)
"""Five and four times the bare pipe, on a machine where the prototype takes three times as long as the pipe."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds, in the order they were taken."""

    figure: list[float]
    floor: list[float]

    @property
    def p50(self) -> float:
        return percentile(self.figure, 0.5)

    def spread(self, scale: float) -> tuple[float, float]:
        """The quartiles of the figure, in units of 1/`scale` seconds."""
        return quartiles(self.figure, scale)

    @property
    def floor_p50(self) -> float:
        return percentile(self.floor, 0.5)


def joined(several: Iterable[Samples]) -> Samples:
    """The samples of several stretches of time as one."""
    parts = list(several)
    return Samples([one for part in parts for one in part.figure], [one for part in parts for one in part.floor])


async def in_turn(count: int, floor: Callable[[], Awaitable[float]], figure: Callable[[], Awaitable[object]]) -> Samples:
    """`count` samples of each after a warm-up of a tenth as many; `floor` measures its own time."""
    figures: list[float] = []
    under: list[float] = []
    while len(figures) < count + int(count * _WARM_UP):
        under += [await floor() for _ in range(_STRETCH)]
        for _ in range(_STRETCH):
            started = time.perf_counter()
            await figure()
            figures.append(time.perf_counter() - started)
    return Samples(figures[-count:], under[-count:])


async def shell_round_trip(shell: AsyncShell, count: int = 2000) -> Samples:
    """`true` in a living shell, beside a bare pipe to bash."""

    async def figure() -> None:
        result = await shell.run("true")
        assert result.exit_code == 0, result

    async with floors.bare_pipe() as pipe:
        return await in_turn(count, pipe.sample, figure)


def p1(samples: Samples) -> Figure:
    how = (
        f"p50 of {len(samples.figure)} in one living shell, in stretches of {_STRETCH} in turn with the same line through a pipe, from the "
        "same loop, to a bash on another core"
    )
    return at_most("P1", "`true` in a living shell, p50", samples.p50 * 1e6, "µs", samples.floor_p50 * 1e6, 8, 4, how, samples.spread(1e6))


async def p1r(shell: AsyncShell, count: int = 5000) -> Figure:
    """P1 beside the prototype, which passes the same hops without sessions, isolation or results (decision 0067)."""

    async def figure() -> None:
        await shell.run("true")

    with prototype.running() as bare:
        async with prototype.client(bare.folder) as relayed:

            async def floor() -> float:
                started = time.perf_counter()
                await relayed.true()
                return time.perf_counter() - started

            samples = await in_turn(count, floor, figure)
    how = f"p50 of {count}, in stretches of {_STRETCH} in turn with `true; echo $?` through the bare relay prototype, from the same loop"
    name = "the same beside a bare relay of it, p50"
    return at_most("P1r", name, samples.p50 * 1e6, "µs", samples.floor_p50 * 1e6, _P1R_BUDGET, _P1R_AIM, how, samples.spread(1e6))


async def p4(sandbox: AsyncSandbox, count: int = 300) -> tuple[Figure, Samples]:
    async def floor() -> float:
        return floors.one_off()

    async def figure() -> None:
        result = await sandbox.exec(["bash", "-c", "true"])
        assert result.exit_code == 0, result

    samples = await in_turn(count, floor, figure)
    how = f"p50 of {count} over one session, in turn with subprocess.run of the same"
    return at_most(
        "P4", "one-off `bash -c true`, p50", samples.p50 * 1e3, "ms", samples.floor_p50 * 1e3, 3, None, how, samples.spread(1e3)
    ), samples


async def p5(sandbox: AsyncSandbox, url: str, key: str, count: int = 300) -> Figure:
    async with AsyncSandboxClient(url, key, transport="rest") as client:
        over_rest = client.get_sandbox(sandbox.id)

        async def floor() -> float:
            started = time.perf_counter()
            await sandbox.exec(["bash", "-c", "true"])
            return time.perf_counter() - started

        async def figure() -> None:
            result = await over_rest.exec(["bash", "-c", "true"])
            assert result.exit_code == 0, result

        samples = await in_turn(count, floor, figure)
    how = f"p50 of {count} with the SDK's REST client, in turn with P4's command over a session"
    return at_most("P5", "one-off over REST, p50", samples.p50 * 1e3, "ms", samples.floor_p50 * 1e3, 3, None, how, samples.spread(1e3))


def p12(alone: Samples, beside_idle: Samples, idle: int) -> Figure:
    how = f"P1 again with {idle} idle sessions attached; floor: the same shell before they are attached and after they are gone"
    return at_most(
        "P12", f"P1 beside {idle} idle sessions, p50", beside_idle.p50 * 1e6, "µs", alone.p50 * 1e6, 1.5, None, how, beside_idle.spread(1e6)
    )
