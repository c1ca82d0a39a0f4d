"""The lowest versions of the dependencies, as `make test-lowest` installs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.scripts.lowest import lowest_constraints, read_constraints

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_each_lower_bound_becomes_an_exact_version() -> None:
    requirements = ["b>=2.1,<3", "A>= 1.0; sys_platform == 'linux'", "c[extra]>=4", "own[server]"]
    assert lowest_constraints(requirements, "own") == ["a==1.0", "b==2.1", "c==4"]


@pytest.mark.parametrize("requirement", ["a", "a<3", "a==2"])
def test_a_dependency_without_a_lower_bound_is_refused(requirement: str) -> None:
    with pytest.raises(ValueError, match="lower bound"):
        lowest_constraints([requirement], "own")


def test_every_dependency_of_the_package_has_a_lower_bound() -> None:
    names = {line.partition("==")[0] for line in read_constraints(PYPROJECT)}
    assert {"msgpack", "websockets", "redis", "uvicorn", "kubernetes-asyncio"} <= names
