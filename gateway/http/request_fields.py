"""Request bodies and fields: JSON within a size limit, and typed fields whose errors name the correction.

Owns the checks that all routes share. A wrong field is ``invalid_argument`` with its name; a wrong body ``invalid_json``.
"""

from __future__ import annotations

import asyncio
import math
import re
from base64 import b64decode
from collections.abc import Collection, Iterable
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import DECODE_ITEMS, PARAMS_ITEMS, PATH_BYTES
from starlette.requests import Request

from gateway.memory_reservation import reserve_memory
from gateway.model.labels import MOST_LABELS, RESERVED_LABEL

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,98}[A-Za-z0-9])?")
_LABEL_BYTES = 1024
_ENV_BYTES = 128 * 1024
_BODY_COPIES = 2
"""A body is in memory as bytes and as the values in it."""
_BODY_PAUSE_S = 30.0
"""How long a client may be silent in the middle of a body."""


async def read_json(request: Request, limit_bytes: int) -> dict[str, Any]:
    """The body as an object; no body is an empty one. Raises ``request_too_large`` or ``invalid_json``."""
    body = await read_body(request, limit_bytes)
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HoldfastError("invalid_json", f"the body is not JSON: {error.msg} at line {error.lineno}") from None
    if not isinstance(value, dict):
        raise HoldfastError("invalid_json", "the body is not a JSON object")
    return value


def canonical(value: dict[str, Any]) -> bytes:
    """A request's content in canonical form. Raises ``invalid_json`` for one that is nested too deep."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise HoldfastError("invalid_json", "the body is nested too deeply") from None


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. It is refused as soon as it is known to be too large, or if the client stops sending."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        chunk, more = await body_chunk(request)
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        reserve_memory(_BODY_COPIES * len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


async def body_chunk(request: Request) -> tuple[bytes, bool]:
    """The next chunk of the body, and whether more follow.

    Raises ``wait_timeout`` when none comes for ``_BODY_PAUSE_S``, and ``cancelled`` when the client disconnects.
    """
    try:
        async with asyncio.timeout(_BODY_PAUSE_S):
            message = await request.receive()
    except TimeoutError:
        hint = "send as many bytes as Content-Length states"
        raise HoldfastError("wait_timeout", f"no part of the body came for {_BODY_PAUSE_S:g} s", hint=hint) from None
    if message["type"] == "http.disconnect":
        raise HoldfastError("cancelled", "the client closed the connection")
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit_bytes: int) -> HoldfastError:
    return HoldfastError("request_too_large", f"the body is over {limit_bytes} bytes")


class Fields:
    """The fields of a body or query, taken one by one with their types."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """The fields among ``names`` that the request has."""
        return {name: self._values[name] for name in names if self._values.get(name) is not None}

    def unknown(self, names: Collection[str]) -> list[str]:
        """The names of fields that are not among ``names``."""
        return [name for name in self._values if name not in names]

    def text(self, name: str, default: str | None = None, *, most: int = 4096) -> str | None:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > most:
            raise _wrong(name, f"a string of at most {most} characters")
        if "\0" in value:
            raise _wrong(name, "a string without NUL")
        _encodable(name, value)
        return value

    def required(self, name: str, *, most: int = 4096) -> str:
        value = self.text(name, most=most)
        if not value:
            raise _wrong(name, "a string that is not empty")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _wrong(name, "true or false")
        return value

    def seconds(self, name: str, *, most: float = 366 * 86400.0) -> float | None:
        """A time above 0; text is accepted too, for queries."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise _wrong(name, "a number of seconds") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value <= most:
            raise _wrong(name, f"a number of seconds above 0 and up to {most:.0f} ({most / 86400:g} days)")
        return float(value)

    def limit_s(self, name: str) -> float | None:
        """A time above 0; 0 where the field is null, which removes a limit; None if the request does not have it."""
        if name in self._values and self._values[name] is None:
            return 0.0
        return self.seconds(name)

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        value = _whole(self._values.get(name, default))
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(name, f"a whole number from {least} to {most}")
        return value

    def path(self, name: str = "path", default: str | None = None) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str) or not value or "\0" in value or len(value.encode("utf-8", "surrogatepass")) > PATH_BYTES:
            raise HoldfastError("invalid_path", f"{name} must be a path of 1 to {PATH_BYTES} bytes without NUL")
        _encodable(name, value)
        return value

    def base64(self, name: str) -> bytes:
        text = self._values.get(name)
        try:
            return b64decode(text if isinstance(text, str) else "*", validate=True)
        except ValueError:
            raise _wrong(name, "base64") from None

    def user(self) -> str | int | None:
        """A name, a uid, or either with ``:group``. The agent checks that the user exists."""
        value = _whole(self._values.get("user"))
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return value
        if value == "":
            raise _wrong("user", "a user's name or number")
        return self.text("user", most=512)

    def environment(
        self, name: str = "env", *, most_bytes: int = _ENV_BYTES, most: int = DECODE_ITEMS, code: str = "invalid_argument"
    ) -> dict[str, str]:
        """Variables by name. ``code`` is of the refusal of more than ``most`` of them, or ``most_bytes`` characters."""
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise _wrong(name, "a map of strings")
        if len(value) > most:
            raise HoldfastError(code, f"{name} must be a map of at most {most} strings")
        size = 0
        for key, text in value.items():
            if not isinstance(text, str) or not key or "=" in key or "\0" in key + text:
                raise _wrong(name, "a map of strings without NUL, with keys without '='")
            _encodable(name, key + text)
            size += len(key) + len(text)
        if size > most_bytes:
            raise HoldfastError(code, f"{name} must have at most {most_bytes} characters in all, not {size}")
        return dict(value)

    def labels(self) -> dict[str, str]:
        return {name: text for name, text in self.changed_labels(may_remove=False).items() if text is not None}

    def changed_labels(self, *, may_remove: bool = True) -> dict[str, str | None]:
        """Labels by name; ``may_remove``: None stands for one to be removed."""
        value = self._values.get("labels")
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > MOST_LABELS:
            raise _wrong("labels", f"a map of at most {MOST_LABELS} strings{f', not {len(value)}' if isinstance(value, dict) else ''}")
        for key, text in value.items():
            check_label(key)
            if text is None and may_remove:
                continue
            if not isinstance(text, str) or len(text) > _LABEL_BYTES or "\0" in text:
                raise _wrong("labels", f"a map of strings without NUL, of at most {_LABEL_BYTES} characters")
            _encodable("labels", text)
        return dict(value)

    def command(self) -> str | list[str]:
        """A shell's text, or an argument list."""
        value = self._values.get("command")
        if isinstance(value, str) and value:
            return self.required("command", most=8 * 1024 * 1024)
        if isinstance(value, list) and value and value[0] and all(isinstance(part, str) and "\0" not in part for part in value):
            for part in value:
                _encodable("command", part)
            if len(value) > PARAMS_ITEMS:
                raise HoldfastError("arguments_too_long", f"command has {len(value)} strings; the limit is {PARAMS_ITEMS}")
            return list(value)
        raise _wrong("command", "a string for the shell, or a list of strings: a program and its arguments")


def check_label(name: str) -> str:
    if not _LABEL.fullmatch(name) or name.startswith(RESERVED_LABEL):
        raise HoldfastError(
            "invalid_argument",
            f"{name[:100]!r} cannot be the name of a label",
            hint="use letters, digits, '.', '_', '/' and '-', at most 100, not beginning with 'holdfast/'",
        )
    return name


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 7.0 is the whole number 7."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def _encodable(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(name, "a string that can be encoded as UTF-8") from None


def _wrong(name: str, wanted: str) -> HoldfastError:
    return HoldfastError("invalid_argument", f"{name} must be {wanted}")
