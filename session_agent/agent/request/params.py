"""Typed readers for the parameters of an Open or a Run, which are untrusted.

Each reader returns a value of its type or the default, or raises ``invalid_argument`` with the name of the key. Unknown keys are ignored
(PROTOCOL §3). Called by every channel kind of the agent.
"""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast_wire.errors import HoldfastError

_Default = TypeVar("_Default")
_Params = dict[str, Any]
_MOST = 2.0**53


def _refuse(key: str, wanted: str, value: object) -> HoldfastError:
    return HoldfastError("invalid_argument", f"{key} must be {wanted}, not {type(value).__name__}")


def text(params: _Params, key: str, default: _Default) -> str | _Default:
    """A string without NUL."""
    value = params.get(key)
    return default if value is None else _text(key, value, "a string")


def _text(key: str, value: object, wanted: str) -> str:
    if not isinstance(value, str):
        raise _refuse(key, wanted, value)
    if "\0" in value:
        raise HoldfastError("invalid_argument", f"{key} holds a NUL byte")
    return value


def boolean(params: _Params, key: str, default: bool) -> bool:
    """A boolean; numbers are not booleans."""
    value = params.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _refuse(key, "true or false", value)
    return value


def integer(params: _Params, key: str, default: _Default, *, least: int = 0, most: int = 2**53) -> int | _Default:
    """A whole number from ``least`` to ``most``."""
    value = params.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(key, "a whole number", value)
    if not least <= value <= most:
        raise HoldfastError("invalid_argument", f"{key} must be from {least} to {most}, not {value}")
    return value


def number(params: _Params, key: str, default: _Default) -> float | _Default:
    """A number that is neither negative nor NaN."""
    value = params.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _refuse(key, "a number", value)
    if not 0.0 <= value <= _MOST:
        raise HoldfastError("invalid_argument", f"{key} must be from 0.0 to {_MOST}, not {value}")
    return float(value)


def choice(params: _Params, key: str, default: str, allowed: tuple[str, ...]) -> str:
    """One of the ``allowed`` words."""
    value = text(params, key, default)
    if value not in allowed:
        raise HoldfastError("invalid_argument", f"{key} must be one of {', '.join(allowed)}, not {value!r:.60}")
    return value


def texts(params: _Params, key: str) -> list[str] | None:
    """A list of strings without NUL."""
    value = params.get(key)
    if value is None:
        return None
    if not isinstance(value, list):
        raise _refuse(key, "a list of strings", value)
    return [_text(key, entry, "a list of strings") for entry in value]


def mapping(params: _Params, key: str) -> dict[str, str]:
    """A map of strings to strings, both without NUL; empty when absent."""
    value = params.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _refuse(key, "a map of strings", value)
    wanted = "a map of strings to strings"
    return {_text(key, name, wanted): _text(key, entry, wanted) for name, entry in value.items()}
