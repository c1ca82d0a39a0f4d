"""The base of all users: a sandbox that is created when needed, and steps that are measured under a name.

Owns the names ``create``, ``time to ready`` and ``delete`` of the statistics and how an error of the SDK becomes a failed request. When a
step fails its sandbox is deleted; the task runs again after the user's wait time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import ClassVar, Literal

from holdfast import CommandResult, HoldfastError, Sandbox
from locust import User
from locust.exception import RescheduleTask

from loadtest import run
from loadtest.faults import InfrastructureFault, LoadFailure, WorkloadFailure, failure_of


class Step:
    """One request that is being measured."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.failure: LoadFailure | None = None

    def check(self, holds: bool, what: str) -> None:
        """The workload has failed unless ``holds``; the first failure stays."""
        if not holds and self.failure is None:
            self.failure = WorkloadFailure(what)

    def take(self, result: CommandResult) -> CommandResult:
        """The result of a command that must exit with status 0."""
        self.size_bytes += len(result.stdout_bytes) + len(result.stderr_bytes)
        if result.cause is not None and result.cause.is_infrastructure:
            self.failure = InfrastructureFault(f"command ended ({result.cause.reason})")
        self.check(result.exit_code == 0, f"exit status {result.exit_code}")
        return result


class SandboxUser(User):
    """A user with one sandbox at a time."""

    abstract = True
    transport: ClassVar[Literal["session", "rest"]] = "session"
    sandbox: Sandbox | None = None

    @contextlib.contextmanager
    def measured(self, kind: str, name: str) -> Iterator[Step]:
        """Report the block as one request of locust. A cancellation from outside, as when the user is stopped, is not reported."""
        step, start = Step(), time.perf_counter()
        try:
            yield step
        except HoldfastError as why:
            step.failure = failure_of(why)
            self._report(kind, name, start, step)
            self.abandon()
            raise RescheduleTask from why
        self._report(kind, name, start, step)

    def _report(self, kind: str, name: str, start: float, step: Step) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=(time.perf_counter() - start) * 1000,
            response_length=step.size_bytes,
            exception=step.failure,
            context=self.context(),
        )

    def ready(self) -> Sandbox:
        """The sandbox; if there is none, a new one, whose first command has answered."""
        if self.sandbox is None:
            start = time.perf_counter()
            with self.measured("sandbox", "create"):
                self.sandbox = run.current(self.environment).create(self.transport)
            with self.measured("sandbox", "first command") as step:
                step.take(self.sandbox.exec("true"))
            self._report("sandbox", "time to ready", start, Step())
        return self.sandbox

    def done(self) -> None:
        """Delete the sandbox, measured."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            with self.measured("sandbox", "delete"):
                sandbox.delete()

    def abandon(self) -> None:
        """Delete the sandbox, not measured; on failure it is deleted with the group."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            with contextlib.suppress(HoldfastError):
                sandbox.delete()

    def on_stop(self) -> None:
        """Locust calls it when the user ends."""
        self.abandon()
