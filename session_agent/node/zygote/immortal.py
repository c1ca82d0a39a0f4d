"""Objects whose reference counts never change again, so that using them in a forked process copies no page (PEP 683).

Owns finding every object that is alive and making it immortal. CPython writes to an object's count whenever the object is used, which
copies the page in a process that was forked. Since Python 3.12 a count as large as that of ``None`` is neither raised nor lowered, and the
object is never freed. The zygote calls this once, before its first fork: its objects of that time live until it ends anyway. The layout of
counts is not part of Python's interface, so this has an effect only in the versions that it was tested on.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types

TESTED = ((3, 12), (3, 13))
"""The versions in which ``tests/node/zygote/test_immortal.py`` was run: 3.12.1 and 3.13.0. For a further one, run it there and add it."""
_BATCH = 256
_COUNT = ctypes.c_uint32
"""The part of an object's header that decides whether its count changes: the lowest bytes, on the machines that the agent supports."""


def supported() -> bool:
    """Whether this Python has immortal objects of the layout that was tested."""
    return sys.version_info[:2] in TESTED and sys.byteorder == "little" and "t" not in sys.abiflags


def make_all_immortal() -> int:
    """Make all objects immortal that the garbage collector knows or that these refer to; returns how many. No effect unless ``supported``.

    Frames are left out: they belong to functions that still run.
    """
    if not supported():
        return 0
    immortal = _COUNT.from_address(id(None)).value
    waiting: list[list[object]] = [gc.get_objects()]
    seen: set[int] = set()
    while waiting:
        found = [each for each in waiting.pop() if id(each) not in seen and not isinstance(each, types.FrameType)]
        seen.update(map(id, found))
        waiting.extend(gc.get_referents(*found[start : start + _BATCH]) for start in range(0, len(found), _BATCH))
        for each in found:
            _COUNT.from_address(id(each)).value = immortal
    return len(seen)
