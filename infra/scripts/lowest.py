"""The lowest versions that pyproject.toml allows, as a constraints file for pip.

Owns the reading of the bounds. Every ``name>=version`` among the dependencies of the package and of its extras becomes ``name==version``;
what only tests need stays at its newest. Called by ``make test-lowest``, which installs with these constraints and runs the quick tests;
``.ci/run`` runs those of some parts.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

EXTRAS = ("server", "kubernetes")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?P<bounds>[^;]*)")
_LOWEST = re.compile(r">=\s*([^,\s]+)")


def lowest_constraints(requirements: Iterable[str], own: str) -> list[str]:
    """One ``name==version`` for each requirement. Raises ValueError where one has no lower bound."""
    constraints = {}
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement)
        if found is None:
            raise ValueError(f"not a requirement: {requirement!r}")
        if found["name"] == own:
            continue
        bound = _LOWEST.search(found["bounds"])
        if bound is None:
            raise ValueError(f"{requirement!r} has no lower bound (>=)")
        constraints[found["name"].lower()] = bound[1]
    return [f"{name}=={version}" for name, version in sorted(constraints.items())]


def read_constraints(pyproject: Path) -> list[str]:
    """Those of the package and its extras ``EXTRAS``."""
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    return lowest_constraints([*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])], project["name"])


if __name__ == "__main__":
    print("\n".join(read_constraints(Path(sys.argv[1]))))
