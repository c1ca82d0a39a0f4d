"""Runs the selected cases side by side in the background, gives each test its outcome, and prints the table at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.docker.cases import load_cases
from tests.docker.compare import Outcome, Pool
from tests.docker.image import build_images
from tests.docker.sandboxes import running_service
from tests.docker.table import OUTCOMES, describe, records


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--docker-json", metavar="FILE", help="write the results of the differential suite there")
    parser.addoption("--docker-workers", type=int, default=min(4, os.cpu_count() or 1), help="cases at a time")


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Outcome]]]:
    """A future for each selected case, all of them under way."""
    selected = {
        item.callspec.params["name"] for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    images = build_images()
    with running_service(list(images.values())) as client:
        pool = Pool(client, images, request.config.getoption("--docker-workers", 3))
        try:
            yield pool.submit({name: case for name, case in load_cases().items() if name in selected})
        finally:
            pool.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(OUTCOMES, {})
    if not found:
        return
    terminalreporter.section("docker and holdfast")
    terminalreporter.write_line(describe(found))
    file = config.getoption("--docker-json", None)
    if file:
        Path(file).write_text(json.dumps(records(found), indent=1))
