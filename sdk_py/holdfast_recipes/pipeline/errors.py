"""The errors of the pipelines: what a caller can do something about. A rollout that failed is a value and counted, never one of these.

RecipeError                 message, hint, code, exit_code
├── DataError               a file cannot be read, or a record in it is none
├── MissingExtraError       an optional package is not installed; names the extra that brings it
├── RunInUseError           another process writes the run
├── RunMismatchError        the folder holds a run with other settings
├── EndpointError           the model endpoint refuses every request (key, model, address)
├── InfrastructureError     one rollout after the other is spoiled: the service needs a look
├── StallError              no batch within the limit of a step; names the layer that rollouts wait in
├── SettingError            options that cannot be together
└── UsageError              words that make no command line
"""

from __future__ import annotations


class RecipeError(Exception):
    """``code`` is for programs, ``hint`` is the remedy for the user."""

    code = "recipe_error"
    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class DataError(RecipeError):
    code = "data_error"


class MissingExtraError(RecipeError):
    code = "missing_extra"

    def __init__(self, message: str, *, extra: str) -> None:
        super().__init__(message, hint=f"pip install 'holdfast[{extra}]'")
        self.extra = extra


class RunInUseError(RecipeError):
    code = "run_in_use"


class RunMismatchError(RecipeError):
    code = "run_mismatch"


class EndpointError(RecipeError):
    code = "endpoint_error"
    exit_code = 125


class InfrastructureError(RecipeError):
    code = "infrastructure"
    exit_code = 125


class StallError(RecipeError):
    code = "stalled"
    exit_code = 125

    def __init__(self, message: str, *, layer: str) -> None:
        super().__init__(message, hint=f"find out why {layer} is slow; the limits of all layers are in harness.limits")
        self.layer = layer


class SettingError(RecipeError):
    code = "invalid_setting"


class UsageError(RecipeError):
    code = "invalid_argument"
