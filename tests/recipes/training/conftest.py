"""Tests that need torch. They run in the environment that `make recipes` makes (.venv-train) and are not collected elsewhere."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
