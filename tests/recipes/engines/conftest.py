"""Contract tests of an engine run where its package is installed: in an environment of its own, which `make recipes` makes.

They are not collected elsewhere. The names of engines are those of their packages.
"""

from __future__ import annotations

import importlib.util

ENGINES = {
    **dict.fromkeys(("test_trl.py", "test_trl_async.py", "test_masks_trl.py"), "trl"),
    "test_verifiers.py": "verifiers",
    **dict.fromkeys(("test_verl.py", "test_masks_verl.py"), "verl"),
}

collect_ignore = [name for name, package in ENGINES.items() if importlib.util.find_spec(package) is None]
