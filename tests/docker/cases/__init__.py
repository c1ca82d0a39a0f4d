"""All cases, by theme: a module per theme, each with a tuple `CASES`."""

from __future__ import annotations

import importlib
import pkgutil

from tests.docker.case import Case


def load_cases() -> dict[str, Case]:
    """Every case under `theme/name`. Raises ValueError if a name occurs twice."""
    found: dict[str, Case] = {}
    for module in pkgutil.iter_modules(__path__):
        for case in importlib.import_module(f"{__name__}.{module.name}").CASES:
            name = f"{module.name}/{case.name}"
            if name in found:
                raise ValueError(f"two cases are called {name}")
            found[name] = case
    return found
