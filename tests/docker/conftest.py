"""Runs the selected cases in parallel in the background, gives each test its outcome, and prints the table at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.docker.cases import load_cases
from tests.docker.compare import Outcome
from tests.docker.reference import why_no_network
from tests.docker.run import running
from tests.docker.table import OUTCOMES, describe, records


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--docker-json", metavar="FILE", help="write the results of the differential suite there")
    parser.addoption("--docker-workers", type=int, default=min(4, os.cpu_count() or 1), help="cases at a time")


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Outcome]]]:
    """A future for each selected case, all of them started."""
    selected = {
        item.callspec.params["name"] for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    offline = why_no_network()
    cases = {name: case for name, case in load_cases().items() if name in selected and not (offline and case.network)}
    with running(cases, request.config.getoption("--docker-workers", 3)) as futures:
        yield futures


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(OUTCOMES, {})
    if not found:
        return
    terminalreporter.section("docker and holdfast")
    terminalreporter.write_line(describe(found))
    file = config.getoption("--docker-json", None)
    if file:
        Path(file).write_text(json.dumps(records(found), indent=1))
