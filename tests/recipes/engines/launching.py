"""Finds the command that a launch file in infra/recipes/engines starts, without starting it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LAUNCH = Path(__file__).parents[3] / "infra" / "recipes" / "engines"


def launched(script: str, program: str, folder: Path, **variables: str) -> list[str]:
    """The arguments that a script passes to ``program``, recorded by a stand-in on PATH."""
    stand_in = folder / program
    stand_in.write_text('#!/bin/sh\nfor each in "$@"; do printf "%s\\n" "$each"; done\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    done = subprocess.run([LAUNCH / script], env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()
