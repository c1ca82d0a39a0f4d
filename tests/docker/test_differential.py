"""Every case of `cases/`: the same result in docker's default container and in a sandbox, or a difference that is intended."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.docker.cases import load_cases
from tests.docker.compare import Outcome
from tests.docker.intended import INTENDED
from tests.docker.reference import why_no_network
from tests.docker.table import OUTCOMES, verdict
from tests.support.requires import requires

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200), requires("root", "namespaces", "redis", "container tools")]


@pytest.mark.parametrize("name", load_cases())
def test_case(name: str, outcomes: dict[str, Future[Outcome]], pytestconfig: pytest.Config) -> None:
    if name not in outcomes:
        pytest.skip(f"needs the internet: {why_no_network()}")
    outcome = outcomes[name].result()
    pytestconfig.stash.setdefault(OUTCOMES, {})[name] = outcome
    found = verdict(name, outcome)
    if found not in ("equal", "intended"):
        pytest.fail(f"{found} {outcome.invalid}\n{outcome.report()}", pytrace=False)


def test_intended_differences_name_cases() -> None:
    assert set(INTENDED) <= set(load_cases())
