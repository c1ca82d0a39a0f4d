"""Shared base of the model tests of the Lua steps: a store on a real Redis that is empty at the start of each example, and the runner.

A model subclasses ``StoreMachine``, adds its rules, and is run by ``agree``.
"""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from gateway.placement.store import PlacementStore
from gateway.settings import PlacementSettings
from tests.support.redis_server import RedisServer


class StoreMachine(RuleBasedStateMachine):
    """The base class of the models. The model moves deadlines itself, so no step waits for time to pass."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.server.flush()
        self.runner = asyncio.Runner()
        # Long timeouts: a machine that is busy for a second must not count as a difference between store and model.
        self.store = PlacementStore(PlacementSettings(redis_url=self.server.url, step_timeout_s=60.0, connect_timeout_s=60.0))

    def teardown(self) -> None:
        self.runner.run(self.store.aclose())
        self.runner.close()


def agree(machine: type[StoreMachine], server: RedisServer, examples: int) -> None:
    """Fail with the shortest history found in which the store and the model differ."""
    machine.server = server
    quiet = list(HealthCheck)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=quiet, print_blob=True),
    )
