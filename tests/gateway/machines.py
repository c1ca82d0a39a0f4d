"""What the models of the Lua steps share: a store on a real Redis that is empty at the start of each example, and how they are run.

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
    """Time is the model's: nothing is waited for."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.server.flush()
        self.runner = asyncio.Runner()
        # Patient: a machine that is busy for a second is no disagreement.
        self.store = PlacementStore(PlacementSettings(redis_url=self.server.url, step_timeout_s=20.0, connect_timeout_s=20.0))

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
