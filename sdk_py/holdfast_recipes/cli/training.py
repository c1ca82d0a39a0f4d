"""``holdfast recipes sft`` and ``rl``: handed to the training package, which alone needs PyTorch.

Owns the message where that is missing. The words after the command are read by ``holdfast_recipes.training.commands``, whose ``sft`` and
``rl`` take them and return an exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from holdfast_recipes.pipeline.errors import MissingExtraError


def sft(words: Sequence[str], parser: argparse.ArgumentParser) -> int:
    return _handed(words, parser, "sft")


def rl(words: Sequence[str], parser: argparse.ArgumentParser) -> int:
    return _handed(words, parser, "rl")


def _handed(words: Sequence[str], parser: argparse.ArgumentParser, name: str) -> int:
    if find_spec("torch") is None:
        if {"-h", "--help"} & set(words):
            parser.print_help()
            print("\nIts options are shown where PyTorch is installed: pip install 'holdfast[train]'")
            return 0
        raise MissingExtraError(f"{name} needs PyTorch, which is not installed", extra="train")
    try:
        commands = import_module("holdfast_recipes.training.commands")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{name} needs {error.name}, which is not installed", extra="train") from error
    return int(getattr(commands, name)(words))
