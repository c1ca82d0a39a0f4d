"""One bundle for the whole session, and the roots that it is tested in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from session_agent.bundle.build import Bundle, build
from tests.package import roots


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle", numbered=True)
    folder.chmod(0o755)
    return build(folder / "bundle")


@pytest.fixture(scope="session")
def root_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the root file system of a name, which is created once."""
    made: dict[str, Path] = {}

    def root(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            folder.chmod(0o755)
            if name == "old_release":
                roots.old_release(folder, tmp_path_factory.mktemp("packages"))
            else:
                getattr(roots, name)(folder)
            made[name] = folder
        return made[name]

    return root
