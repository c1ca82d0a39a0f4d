"""A sandbox's specification as JSON and back: in its record, and with its runtime object, from which a lost record is written again.

Owns the decoding of nested records. A document may come from a newer replica, so unknown fields are ignored. Called by ``placement`` and
by the runtimes.
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass
from typing import Any, Final, get_args, get_origin, get_type_hints

import orjson

from .options import Egress, Options
from .records import SandboxSpec

_FIELDS: Final = frozenset(field.name for field in fields(SandboxSpec))
_NESTED: Final[tuple[tuple[str, type, Any], ...]] = tuple(
    (name, kind, orjson.loads(orjson.dumps(kind()))) for name, kind in (("egress", Egress), ("options", Options))
)
"""The fields that are records themselves, with their defaults as JSON: most sandboxes have these."""


def write_spec(spec: SandboxSpec) -> bytes:
    return orjson.dumps(spec)


def write_egress(egress: Egress) -> bytes:
    return orjson.dumps(egress)


def read_spec(document: bytes | str, egress: str = "") -> SandboxSpec:
    """The specification in a document; ``egress`` replaces its network access.

    Raises ValueError or TypeError for a document that no version of the gateway wrote.
    """
    body = orjson.loads(document)
    if not isinstance(body, dict):
        raise ValueError("a specification is not a map")
    if egress:
        body["egress"] = orjson.loads(egress)
    for name, kind, default in _NESTED:
        nested = body.pop(name, None)
        if nested != default:
            body[name] = _read(kind, nested or {})
    return SandboxSpec(**{name: body[name] for name in body if name in _FIELDS})


def _read(kind: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        raise ValueError(f"{kind.__name__} is not a map")
    hints = _hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in body.items() if name in hints})


def _value(hint: Any, value: Any) -> Any:
    """A list becomes a tuple where the field has one, a map a record; so do the values of a map."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _read(hint, value or {})
    if isinstance(value, list) and tuple in (get_origin(hint), *map(get_origin, get_args(hint))):
        return tuple(_value(get_args(hint)[0], one) for one in value)
    if isinstance(value, dict) and get_origin(hint) is dict:
        return {name: _value(get_args(hint)[1], one) for name, one in value.items()}
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
