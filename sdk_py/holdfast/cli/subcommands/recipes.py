"""``recipes``: the training recipes, a package of their own."""

from __future__ import annotations

from importlib import import_module

from holdfast.cli.command_line import Arguments


def recipes(arguments: Arguments) -> int:
    """``holdfast recipes``: its package is imported only for this command."""
    return int(import_module("holdfast_recipes.cli").main([*arguments.argv, *["--json"] * arguments.json]))
