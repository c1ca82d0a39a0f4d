"""The command line ``holdfast``, a thin layer on the synchronous SDK.

Owns arguments, printing and exit codes. Modules of commands are imported when they are used.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The entry point of the installed script."""
    gc.disable()  # disabled until the modules are loaded, which creates no garbage
    try:
        from holdfast.cli.app import run

        _open_missing_streams()
        # always UTF-8, as in the sandbox, whatever the locale is
        status = run([os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]])
    except KeyboardInterrupt:  # while modules were still being loaded
        status = 130
    _leave(status)


def _leave(status: int) -> NoReturn:
    """Exit without finalizing the interpreter, which takes a sixth of the time of a short command; connections are closed by now."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 2
    os._exit(status)


def _open_missing_streams() -> None:
    """Replace standard streams that are closed, and escape what an ASCII stream cannot write."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  it lives as long as we do
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
