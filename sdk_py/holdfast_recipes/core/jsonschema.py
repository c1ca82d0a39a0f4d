"""Validation against the part of JSON Schema that tool definitions and our own records use.

Owns types, required and additional properties, enumerations, bounds, lengths, patterns and ``anyOf``. Keywords outside that part are
not checked. Exists because the core may import nothing; ``calls`` checks arguments with it and ``records`` whole records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def violations(value: Any, schema: Any, path: str = "$") -> Iterator[str]:
    """One line for each place where ``value`` breaks ``schema``; none means it is valid."""
    if schema is False:
        yield f"{path}: nothing is allowed here"
    if not isinstance(schema, Mapping):
        return
    if "type" in schema and not any(_is_a(value, name) for name in _listed(schema["type"])):
        yield f"{path}: not of type {'|'.join(_listed(schema['type']))}"
        return
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{path}: not {schema['const']!r}"
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        yield f"{path}: not one of {list(schema['enum'])}"
    if "anyOf" in schema and not any(not list(violations(value, choice, path)) for choice in schema["anyOf"]):
        yield f"{path}: none of the alternatives fits"
    if isinstance(value, str):
        yield from _string(value, schema, path)
    elif isinstance(value, Mapping):
        yield from _object(value, schema, path)
    elif isinstance(value, list | tuple):
        yield from _array(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, path)


def _string(value: str, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{path}: {len(value)} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: does not match {schema['pattern']}"


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    yield from (f"{path}: {name} is required" for name in schema.get("required", ()) if name not in value)
    for name, item in value.items():
        yield from violations(item, properties.get(name, schema.get("additionalProperties", True)), f"{path}.{name}")


def _array(value: Sequence[Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{path}: {len(value)} items"
    for index, item in enumerate(value):
        yield from violations(item, schema.get("items", True), f"{path}[{index}]")


def _number(value: float, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if not low <= value <= high or (above is not None and value <= above) or (below is not None and value >= below):
        yield f"{path}: {value} is out of bounds"


def _is_a(value: Any, name: str) -> bool:
    """JSON's view: true is no number, and 3.0 is an integer."""
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, ()))


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
