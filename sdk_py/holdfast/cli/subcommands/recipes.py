"""``recipes``: the training recipes, a wheel of their own (``holdfast-recipes``)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from holdfast import UnsupportedError
from holdfast.cli.command_line import Arguments


def recipes(arguments: Arguments) -> int:
    """``holdfast recipes``: its package is imported only for this command."""
    if find_spec("holdfast_recipes") is None:
        raise UnsupportedError("the recipes are not installed here", hint="pip install 'holdfast[recipes]'")
    return int(import_module("holdfast_recipes.cli").main([*arguments.argv, *["--json"] * arguments.json]))
