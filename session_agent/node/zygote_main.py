"""The start of the zygote's process: what no agent uses is kept out of the memory that all agents share.

Owns which libraries that is: ones that the agent's bundle leaves out as well, as their importers do without (``bundle.imports``). Each
library is five mappings that every fork copies and every agent's end undoes. Does not own the zygote itself.
Started by launcher.py as `python -m session_agent.node.zygote_main FD ENTRY MODE FOLDER`.
"""

from __future__ import annotations

import importlib.util
import sys
import types

_LEFT_OUT = ("_bz2", "_lzma", "_ssl", "bz2", "lzma", "ssl")


def leave_out() -> None:
    """To be called before anything else is imported."""
    for name in _LEFT_OUT:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError
    found = importlib.util.find_spec("websockets")
    if found is not None and found.submodule_search_locations is not None:
        package = types.ModuleType("websockets")  # one extension of it is used, and nothing of what the package itself imports
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["websockets"] = package


if __name__ == "__main__":
    leave_out()
    from session_agent.node.zygote import main

    sys.exit(main(sys.argv))
