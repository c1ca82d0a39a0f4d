"""A pytest plugin that writes which lines of files the tests run: mutants of other lines need no test run (E1).

Standard library and pytest only; it is packed beside pytest and loaded by name (``-p holdfast_reached``). REACHED names the file to write,
REACHED_FILES what is watched, separated by colons. Lines that run while a module is imported count, as those in threads do; those in
processes that a test starts do not, so such a mutant is taken for one that no test notices, and is no task.
"""

import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_FILES = {os.path.realpath(path): path for path in os.environ.get("REACHED_FILES", "").split(":") if path}
_LINES: dict[str, set[int]] = {path: set() for path in _FILES.values()}
_KNOWN: dict[str, "str | None"] = {}


def _trace(frame: "FrameType", event: str, argument: "Any") -> "Any":
    name = frame.f_code.co_filename
    if name not in _KNOWN:
        _KNOWN[name] = _FILES.get(os.path.realpath(name))
    path = _KNOWN[name]
    if path is None:
        return None
    _LINES[path].add(frame.f_lineno)
    return _trace


def pytest_configure() -> None:
    sys.settrace(_trace)
    threading.settrace(_trace)


def pytest_unconfigure() -> None:
    sys.settrace(None)
    with open(os.environ["REACHED"], "w") as file:
        json.dump({path: sorted(lines) for path, lines in _LINES.items()}, file)
