"""The command line ``holdfast``: a thin face of the synchronous SDK.

Owns arguments, printing and exit codes; what it can do, the SDK can. Modules of commands are imported when they are used.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the installed script."""
    from holdfast.cli.app import run

    sys.exit(run(sys.argv[1:]))
