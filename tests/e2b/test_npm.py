"""E2B's unmodified npm package against a whole stack."""

from __future__ import annotations

import shutil

import pytest

from tests.e2b.conftest import PROGRAMS, Facade, npm_folder
from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis"), pytest.mark.recipes_packages]


def test_the_npm_package(facade: Facade) -> None:
    folder = npm_folder()
    shutil.copy(PROGRAMS / "npm.mjs", folder / "npm.mjs")  # where node finds the package
    facade.execute("node", "npm.mjs", cwd=folder)
