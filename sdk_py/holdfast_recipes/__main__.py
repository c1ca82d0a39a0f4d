"""``python -m holdfast_recipes``: the command line of the recipes."""

from __future__ import annotations

import sys

from holdfast_recipes.cli import main

sys.exit(main(sys.argv[1:]))
