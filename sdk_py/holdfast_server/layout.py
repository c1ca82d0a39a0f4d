"""The locations of the server's parts: at the top of a checkout, or inside this package in an installed wheel.

A wheel keeps ``gateway`` and ``session_agent`` in ``services``, which the processes of a stack get in PYTHONPATH, so that no other
project's environment sees packages of those names.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "services"
TOP = _INSTALLED if _INSTALLED.is_dir() else _HERE.parents[1]
"""The folder that holds ``gateway`` and ``session_agent``."""
SERVICES = _INSTALLED if _INSTALLED.is_dir() else None
"""The PYTHONPATH of the processes of a stack: the folder of the services, if a wheel was installed."""
PROCFILE = (_HERE if SERVICES else TOP) / "Procfile"
_NEEDED = ("redis", "starlette", "uvicorn", "orjson", "prometheus_client", "httptools", "uvloop")


def missing_packages() -> list[str]:
    """The packages of the extra ``server`` that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]
