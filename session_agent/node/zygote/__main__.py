"""The start of the zygote's process, without the libraries that no agent uses: they would cost memory and time in every agent.

Owns the list of excluded libraries: the modules that import them work without them, and each library has five mappings, which every fork
copies and every agent's end removes. Also owns which hooks run at a fork. Does not own the zygote. Started by launcher.py as `python -m
session_agent.node.zygote FD ENTRY MODE FOLDER`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable

_LEFT_OUT = ["_bisect", "_bz2", "_lzma", "_sha512", "_ssl", "_zstd", "bz2", "lzma", "ssl"]
if sys.version_info < (3, 13):  # from then on `opcode`, which `inspect` imports, cannot be imported without it
    _LEFT_OUT.append("_opcode")

_register_at_fork = os.register_at_fork


def leave_out() -> None:
    """Exclude the libraries. Must be called before anything else is imported."""
    for name in _LEFT_OUT:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError
    found = importlib.util.find_spec("websockets")
    if found is not None and found.submodule_search_locations is not None:
        package = types.ModuleType("websockets")  # only one extension of it is used, and none of the package's own imports
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["websockets"] = package
    os.register_at_fork = _register_seed  # type: ignore[assignment]


def _register_seed(**hooks: Callable[[], object]) -> None:
    """``os.register_at_fork`` for random numbers only: other hooks renew locks that threads may hold, and the zygote has no threads."""
    if sys._getframe(1).f_globals["__name__"] == "random":  # noqa: SLF001
        _register_at_fork(**hooks)


if __name__ == "__main__":
    leave_out()
    from session_agent.node.zygote.forking import main

    sys.exit(main(sys.argv))
