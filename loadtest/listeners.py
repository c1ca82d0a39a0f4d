"""Locust's events: adds the arguments, begins and ends the run, judges it. Registered when ``locustfile`` is imported.

Owns the process's exit status: 0 when all thresholds hold and nothing is left behind, else 1. Workers create sandboxes; a master
only checks the thresholds.
"""

from __future__ import annotations

import logging
from typing import Any

from holdfast import HoldfastError
from locust import events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest import run, thresholds
from loadtest.options import add_arguments, limits_of

LOG = logging.getLogger("loadtest")
GRACE_S = 20.0
"""How much longer than the lease the sandboxes of a run may exist after its end."""


@events.init_command_line_parser.add_listener
def _add_arguments(parser: Any, **_: Any) -> None:
    add_arguments(parser)


@events.init.add_listener
def _be_quiet(**_: Any) -> None:
    logging.getLogger("holdfast").setLevel(logging.WARNING)  # below that it logs a line for each session


@events.test_start.add_listener
def _begin(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        return
    try:
        run.begin(environment)
    except HoldfastError as why:
        LOG.error("the run cannot begin: %s", why)
        environment.process_exit_code = 1
        assert environment.runner is not None
        environment.runner.quit()


@events.test_stop.add_listener
def _end(environment: Environment, **_: Any) -> None:
    run.end(environment)


@events.quitting.add_listener
def _judge(environment: Environment, **_: Any) -> None:
    run.end(environment)
    runner, options = environment.runner, environment.parsed_options
    if runner is None or options is None or isinstance(runner, WorkerRunner):
        return
    found = thresholds.broken(
        runner.stats,
        limits_of(options.max_ms),
        max_infrastructure=options.max_infrastructure,
        max_workload=options.max_workload,
    )
    if runner.exceptions:
        found.append(f"{sum(row['count'] for row in runner.exceptions.values())} exceptions in user classes")
    found += _left_behind(environment.host or None, options.run_id, options.lease_s + GRACE_S)
    LOG.info("%s", thresholds.summary(runner.stats))
    for sentence in found:
        LOG.error("threshold: %s", sentence)
    environment.process_exit_code = 1 if found or environment.process_exit_code else 0


def _left_behind(url: str | None, run_id: str, patience_s: float) -> list[str]:
    try:
        left = run.left_behind(url, run_id, patience_s)
    except HoldfastError as why:
        return [f"cannot list what is left behind: {why.code}"]
    return [f"{len(left)} sandboxes are left behind"] if left else []
