"""The command line ``holdfast``: a thin face of the synchronous SDK.

Owns arguments, printing and exit codes; what it can do, the SDK can. Modules of commands are imported when they are used.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The entry point of the installed script."""
    try:
        from holdfast.cli.app import run

        _take_any_surroundings()
        # UTF-8 whatever the locale says, as the far end is
        status = run([os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]])
    except KeyboardInterrupt:  # while modules were still read
        status = 130
    sys.exit(status)


def _take_any_surroundings() -> None:
    """Standard streams may be closed, or know only ASCII."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  it lives as long as we do
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
