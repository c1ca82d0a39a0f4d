"""The errors of the recipes' core. A rollout that fails is a value, never an exception: these are for callers' mistakes.

ValueError
└── ConfigurationError    a setting that can never work, found before the first rollout
"""

from __future__ import annotations


class ConfigurationError(ValueError):
    """A combination of settings that can never work; raised when it is made, not in the middle of a run."""
