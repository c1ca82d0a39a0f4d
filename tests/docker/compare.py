"""Runs a case on both sides and compares exit code and normalized output of every step.

Owns the pool of workers that runs cases in parallel, each in its own container and its own sandbox, so that no case affects another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast import HoldfastError, SandboxClient

from tests.docker.case import MAIN_IMAGE, Case, Step
from tests.docker.image import Image
from tests.docker.podman import PodmanReference
from tests.docker.reference import CommandResult, Reference
from tests.docker.sandboxes import HoldfastSide


class Side(Protocol):
    """A place where a case runs."""

    def start(self) -> None: ...

    def run(self, step: Step) -> CommandResult: ...

    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both sides of a case, one `CommandResult` per step."""

    case: Case
    reference: tuple[CommandResult, ...]
    holdfast: tuple[CommandResult, ...]
    repeated: bool = False
    """Whether the sides agreed only when the case was run once more."""

    @property
    def equal(self) -> bool:
        return self._normalized(self.reference) == self._normalized(self.holdfast)

    @property
    def invalid(self) -> str:
        """Why the reference does not behave as the case requires; empty if it does."""
        code = self.reference[-1].exit_code
        if self.case.refused:
            return "" if code not in (0, None) else f"the reference should have refused it and ended with {code}"
        return "" if code == self.case.exits else f"the reference ended with {code}, not {self.case.exits}"

    def _normalized(self, ran: tuple[CommandResult, ...]) -> list[tuple[int | str | None, str]]:
        """All refusals are equal, whatever exit code a program uses; the cases of `privileges` print the reasons themselves."""
        found: list[tuple[int | str | None, str]] = [(one.exit_code, self.case.normalize(one.stdout)) for one in ran]
        if self.case.refused and ran[-1].exit_code:
            found[-1] = ("refused", found[-1][1])
        return found

    def report(self) -> str:
        """Both sides as text."""
        parts = []
        for number, step in enumerate(self.case.steps):
            parts.append(f"$ {step if isinstance(step, str) else ' '.join(step)}")
            for name, ran in (("docker", self.reference), ("holdfast", self.holdfast)):
                one = ran[number]
                parts.append(f"  {name}: exit code {one.exit_code}")
                shown = {"stdout": self.case.normalize(one.stdout), "stderr": one.stderr}
                parts += [f"    {kind}: {line}" for kind, text in shown.items() for line in text.strip().splitlines()[-30:]]
        return "\n".join(parts)


class Pool:
    """Runs cases with `workers` threads, each of which runs two sides at a time."""

    def __init__(self, client: SandboxClient, images: dict[str, Image], workers: int, *, podman: bool = False) -> None:
        self._podman = podman
        self._client = client
        self._images = images
        self._cases = ThreadPoolExecutor(workers, "case")
        self._sides = ThreadPoolExecutor(2 * workers, "side")

    def submit(self, cases: Mapping[str, Case]) -> dict[str, Future[Outcome]]:
        return {name: self._cases.submit(self.run, case) for name, case in cases.items()}

    def run(self, case: Case) -> Outcome:
        """Run a case, and once more if the sides differ or the reference fails: on busy machines services start late.

        The table shows how often this helped.
        """
        first = self._once(case)
        if first.equal and not first.invalid:
            return first
        again = self._once(case)
        return replace(again, repeated=again.equal and not again.invalid)

    def _once(self, case: Case) -> Outcome:
        image = self._images[case.image]
        factories: list[Callable[[], Side]] = [
            lambda: PodmanReference(image, case) if self._podman else Reference(image, self._images[MAIN_IMAGE], case),
            lambda: HoldfastSide(self._client, image, case),
        ]
        futures = [self._sides.submit(_run_on, make, case) for make in factories]
        reference, holdfast = (future.result() for future in futures)
        return Outcome(case, reference, holdfast)

    def close(self) -> None:
        """Drop the cases that have not begun and wait for the others."""
        self._cases.shutdown(cancel_futures=True)
        self._sides.shutdown()


def _run_on(make: Callable[[], Side], case: Case) -> tuple[CommandResult, ...]:
    side = make()
    try:
        side.start()
        return tuple(side.run(step) for step in case.steps)
    except HoldfastError as error:
        return tuple(CommandResult(None, "", f"{type(error).__name__}: {error}") for _ in case.steps)
    finally:
        with suppress(Exception):
            side.remove()
