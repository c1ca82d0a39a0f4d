"""One run in one locust process: its clients and its group of sandboxes.

Owns the group's lease: when a process ends, also by SIGKILL, its sandboxes are deleted after ``--lease-s`` at the latest. Each worker
has a group of its own, and all sandboxes of a run carry one label. Does not own users. Made by ``listeners`` when a test starts.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from holdfast import Group, HoldfastError, Sandbox, SandboxClient

if TYPE_CHECKING:
    from locust.env import Environment

LABEL = "load-run"
PAUSE_S = 0.2
READY_S = 300.0


class Run:
    """One run. ``session`` and ``rest`` are the clients by transport; users of a process share them, as a trainer's do."""

    def __init__(self, environment: Environment) -> None:
        options = environment.parsed_options
        assert options is not None
        self.image: str = options.image
        self.run_id: str = options.run_id
        url = environment.host or None
        self.session = SandboxClient(url)
        self.rest = SandboxClient(url, transport="rest")
        self.group: Group = self.session.group(f"load-{self.run_id}-{os.urandom(4).hex()}", ttl_s=options.lease_s)
        self.group.begin()

    def create(self, transport: str) -> Sandbox:
        """A sandbox of this run, ready."""
        client = self.rest if transport == "rest" else self.session
        return client.create_sandbox(self.image, group=self.group, labels={LABEL: self.run_id}, ready_timeout_s=READY_S)

    def end(self) -> None:
        """Delete the group and the sandboxes in it. When that fails, the end of its lease does so."""
        try:
            self.group.delete()
        except HoldfastError:
            pass
        self.session.close()
        self.rest.close()


def left_behind(url: str | None, run_id: str, patience_s: float) -> list[str]:
    """The sandboxes of a run that still exist after at most ``patience_s`` seconds."""
    end = time.monotonic() + patience_s
    with SandboxClient(url) as client:
        while True:
            left = [record.sandbox_id for record in client.list_sandboxes({LABEL: run_id}) if record.status not in ("deleted", "failed")]
            if not left or time.monotonic() > end:
                return left
            time.sleep(PAUSE_S)


_runs: dict[int, Run] = {}


def begin(environment: Environment) -> None:
    """Begin the run of this process. Raises ``HoldfastError``."""
    if id(environment) not in _runs:
        _runs[id(environment)] = Run(environment)


def current(environment: Environment) -> Run:
    """The run of this process, begun already."""
    return _runs[id(environment)]


def end(environment: Environment) -> None:
    """End the run, if there is one."""
    run = _runs.pop(id(environment), None)
    if run is not None:
        run.end()
