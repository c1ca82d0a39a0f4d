"""The plugins for verifiers and prime-rl, which find them by the name of a top-level module: put this folder on PYTHONPATH."""

from holdfast_recipes.engines.verifiers import HoldfastHarness, HoldfastTaskset

__all__ = ["HoldfastHarness", "HoldfastTaskset"]
