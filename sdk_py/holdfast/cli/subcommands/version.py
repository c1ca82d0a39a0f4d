"""``version``: the version of this installation."""

from __future__ import annotations

import sys

import holdfast
from holdfast.cli.command_line import Arguments


def version(arguments: Arguments) -> None:
    """``holdfast version``."""
    sys.stdout.write(f'{{"version": "{holdfast.__version__}"}}\n' if arguments.json else f"holdfast {holdfast.__version__}\n")
