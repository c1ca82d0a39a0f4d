"""The AsyncAPI document: the frames of a session and the events of ``GET /events``, from the tables that the code itself uses.

Owns how a frame's fields become a schema. The frames are ``holdfast_wire.frames``, the close codes those of the error table, the fields of
events those that the gateway passes on.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from holdfast_wire import PROTOCOL_VERSION, frames
from holdfast_wire.errors import TABLE
from holdfast_wire.limits import MESSAGE_BYTES

from gateway.agents.activity_reports import FIELDS
from gateway.use_cases.events import KINDS, example

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    bytes: {"type": "string", "format": "binary", "description": "msgpack bin"},
}
_POSITIVE: Final = {"type": "integer", "minimum": 0}


@functools.cache
def document() -> dict[str, Any]:
    """The document as a map (AsyncAPI 3.0)."""
    messages = {cls.__name__: _message(cls) for cls in _frames()}
    events = {name: _event(name) for name in sorted(KINDS)}
    client = [cls.__name__ for cls in _frames() if _sender(cls) in ("client", "both")]
    agent = [cls.__name__ for cls in _frames() if _sender(cls) in ("agent", "both")]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Holdfast: sessions and events",
            "version": str(PROTOCOL_VERSION),
            "description": "The session protocol (schemas/PROTOCOL.md has its rules) and the stream of events. REST is in /openapi.json.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/vnd.msgpack",
        "servers": {"gateway": {"host": "localhost:8000", "protocol": "ws", "security": [{"$ref": "#/components/securitySchemes/key"}]}},
        "channels": {
            "session": {
                "address": "/sandboxes/{sandbox_id}/session",
                "description": f"One WebSocket. Every message is binary and has exactly one frame, of at most {MESSAGE_BYTES} bytes.",
                "parameters": {"sandbox_id": {"description": "The sandbox"}},
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
                "x-close-codes": _close_codes(),
            },
            "events": {
                "address": "/events",
                "description": "Server-sent events. Each has an id, with which a stream continues (Last-Event-ID).",
                "messages": {name: {"$ref": f"#/components/messages/event_{name}"} for name in events},
            },
        },
        "operations": {
            "sendFrame": {
                "action": "send",
                "channel": {"$ref": "#/channels/session"},
                "summary": "What a client sends",
                "messages": [{"$ref": f"#/channels/session/messages/{name}"} for name in client],
            },
            "receiveFrame": {
                "action": "receive",
                "channel": {"$ref": "#/channels/session"},
                "summary": "What a client receives",
                "messages": [{"$ref": f"#/channels/session/messages/{name}"} for name in agent],
            },
            "receiveEvent": {
                "action": "receive",
                "channel": {"$ref": "#/channels/events"},
                "summary": "What happens to the sandboxes of the caller, and on request in them",
                "messages": [{"$ref": f"#/channels/events/messages/{name}"} for name in events],
            },
        },
        "components": {
            "messages": messages | {f"event_{name}": message for name, message in events.items()},
            "securitySchemes": {"key": {"type": "httpApiKey", "in": "header", "name": "X-API-Key"}},
        },
    }


def _frames() -> Iterator[Any]:
    for group in (frames.Imperative, frames.Fact, frames.Bookkeeping):
        yield from get_args(group)


def _sender(cls: Any) -> str:
    if issubclass(cls, frames.Item):
        return str(cls.SENDER)
    return {"Hello": "client", "Welcome": "agent", "GoAway": "agent"}.get(cls.__name__, "both")


def _message(cls: Any) -> dict[str, Any]:
    """A frame: an array of its kind, of items also channel and offset, and its fields in their order."""
    hints = get_type_hints(cls)
    own = [(field.name, _schema(hints[field.name])) for field in fields(cls)]
    if issubclass(cls, frames.Item):
        own[0] = ("channel", _POSITIVE)
        own.insert(1, ("offset", _POSITIVE))
    parts = [("kind", {"const": cls.KIND}), *own]
    return {
        "title": cls.__name__,
        "summary": " ".join((cls.__doc__ or "").split("\n\n")[0].replace("``", "`").split()),
        "contentType": "application/vnd.msgpack",
        "payload": {
            "type": "array",
            "prefixItems": [{"title": name, **schema} for name, schema in parts],
            "minItems": len(parts),
            "maxItems": len(parts),
        },
        "x-sender": _sender(cls),
    }


def _schema(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is dict:
        return {"type": "object"} if inner[1] is Any else {"type": "object", "additionalProperties": _schema(inner[1])}
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if one is type(None) else _schema(one) for one in inner]}
    raise TypeError(f"no schema for {hint}")


def _event(name: str) -> dict[str, Any]:
    names = ["sandbox_id", "time", *FIELDS[name]] if name in FIELDS else list(example(name))
    return {
        "name": name,
        "title": name,
        "contentType": "application/json",
        "payload": {"type": "object", "properties": {field: {} for field in dict.fromkeys(names)}},
    }


def _close_codes() -> dict[str, str]:
    return {str(kind.close_code): kind.code for kind in reversed(TABLE.values()) if kind.close_code}
