"""Encoding and decoding of frames (PROTOCOL §2).

Owns the msgpack encoding, the limits of decoding, and the check of every field's type. For any bytes ``decode`` returns a frame or raises
``ProtocolError``, and nothing else. Called by both ends of a session and by the gateway's one-off requests; the relay never calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final, get_args

import msgpack

from .errors import HoldfastError, ProtocolError
from .frames import AnyItem, Bookkeeping, Frame, Item, Output
from .limits import (
    DATA_BYTES,
    DECODE_CONTAINERS,
    DECODE_DEPTH,
    DECODE_ITEMS,
    MESSAGE_BYTES,
    PARAMS_BYTES,
    PARAMS_CONTAINERS,
    PARAMS_ITEMS,
)

MAX_OFFSET: Final = 2**53
MAX_CHANNEL: Final = 2**32

_Number = (int, float)
_TYPES: Final[dict[str, Any]] = {
    "int": int, "float": _Number, "bool": bool, "str": str, "bytes": bytes, "dict[str, Any]": dict, "dict[int, int]": dict,
}  # fmt: skip
"""The types that a field may have, by its annotation in ``frames``."""


def _frames(union: Any) -> dict[int, tuple[type[Any], tuple[Any, ...]]]:
    """Kind → (class, the types of its own fields in their order), for each class of ``union``."""
    return {
        cls.KIND: (cls, tuple(_TYPES[kind] for kind in cls.__annotations__.values() if not kind.startswith("ClassVar")))
        for cls in get_args(union)
    }


_ITEMS: Final = _frames(AnyItem)
"""Their fields follow kind, channel and offset."""
_BOOKKEEPING: Final = _frames(Bookkeeping)
"""Their fields follow the kind."""


def _reader(cls: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """The function that reads the fields of a frame after kind, or after kind, channel and offset."""
    names = [name for name in cls.__match_args__ if not (issubclass(cls, Item) and name == "channel")]
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda frame: (read(frame),)


_READERS: Final = {cls: _reader(cls) for cls, _ in (*_ITEMS.values(), *_BOOKKEEPING.values())}
_NOT_CONTAINERS: Final = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))
"""The bytes that do not begin a map or an array."""
_SHORT_BYTES: Final = 4096

_pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_unpack: Callable[..., Any] = partial(
    msgpack.unpackb,
    raw=False,
    strict_map_key=False,
    max_array_len=DECODE_ITEMS,
    max_map_len=DECODE_ITEMS,
    max_str_len=MESSAGE_BYTES,
    max_bin_len=MESSAGE_BYTES,
    max_ext_len=0,
)


def encode_item(item: AnyItem, offset: int) -> bytes:
    """``item`` at absolute ``offset`` of its channel, as one message. Raises ``ProtocolError`` when it is too large."""
    cls = type(item)
    if isinstance(item, Output):  # the only frame that is sent in large amounts
        return _pack((Output.KIND, item.channel, offset, item.stream, item.data))
    message = _pack((item.KIND, item.channel, offset, *_READERS[cls](item)))
    if len(message) > MESSAGE_BYTES:
        raise ProtocolError(f"{cls.__name__} of {len(message)} bytes is over the limit of {MESSAGE_BYTES}", "request_too_large")
    return message


def encode(frame: Bookkeeping) -> bytes:
    """A bookkeeping frame as one message."""
    return _pack((frame.KIND, *_READERS[type(frame)](frame)))


def decode(message: bytes) -> tuple[Frame, int]:
    """One message as ``(frame, offset)``; the offset of a bookkeeping frame is 0.

    Raises ``ProtocolError`` for anything that is not exactly one well-formed frame within the limits.
    """
    size = len(message)
    if size > MESSAGE_BYTES:
        raise ProtocolError(f"a message of {size} bytes is over the limit of {MESSAGE_BYTES}")
    try:
        if size <= DECODE_CONTAINERS:  # too short to contain too many arrays and maps, which are therefore not counted
            body = _unpack(message)
        else:
            counter = _Containers()
            body = _unpack(message, object_hook=counter, list_hook=counter)
    except ProtocolError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a message is not valid msgpack within the limits: {type(error).__name__}") from None
    if type(body) is not list or not body or type(body[0]) is not int:
        raise ProtocolError("a message must be one msgpack array that begins with the frame's kind")
    kind = body[0]
    item = _ITEMS.get(kind)
    if item is not None:
        item_class, types = item
        if len(body) != len(types) + 3:
            raise ProtocolError(f"{item_class.__name__} has {len(body)} fields, not {len(types) + 3}")
        _, channel, offset, *values = body
        if type(channel) is not int or not 0 < channel < MAX_CHANNEL:
            raise ProtocolError(f"{item_class.__name__} has no valid channel")
        if type(offset) is not int or not 0 <= offset < MAX_OFFSET:
            raise ProtocolError(f"{item_class.__name__} has no valid offset")
        _check(item_class, values, types, message)
        return item_class(channel, *values), offset
    other = _BOOKKEEPING.get(kind)
    if other is None:
        raise ProtocolError(f"frame kind {kind} is unknown to protocol version 1")
    cls, types = other
    if len(body) != len(types) + 1:
        raise ProtocolError(f"{cls.__name__} has {len(body)} fields, not {len(types) + 1}")
    values = body[1:]
    _check(cls, values, types, message)
    return cls(*values), 0


def decode_params(packed: bytes) -> dict[str, Any]:
    """The map of parameters that were sent after their Open. Raises ``HoldfastError`` if they are not a map or exceed the limits."""
    counter = _Containers(PARAMS_CONTAINERS)
    try:
        params = msgpack.unpackb(
            packed,
            raw=False,
            strict_map_key=True,
            max_array_len=PARAMS_ITEMS,
            max_map_len=PARAMS_ITEMS,
            max_str_len=PARAMS_BYTES,
            max_bin_len=PARAMS_BYTES,
            max_ext_len=0,
            object_hook=counter,
            list_hook=counter,
        )
        if type(params) is dict:
            _check_map(params, 1)
            return params
    except (ProtocolError, ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        pass
    raise HoldfastError("invalid_argument", "the parameters are no msgpack map within the limits")


def _check(cls: type[Any], values: list[Any], types: tuple[Any, ...], message: bytes) -> None:
    for value, wanted in zip(values, types):  # noqa: B905  of one length, and checked for every message
        kind = type(value)
        if kind is not wanted and not (wanted is _Number and kind in _Number):
            raise ProtocolError(f"{cls.__name__} has a field of type {kind.__name__} where another belongs")
        if kind is str:
            continue
        if kind is dict:
            # a message with few bytes that could begin a container cannot be nested too deeply; this holds for nearly all
            if len(message) > _SHORT_BYTES or len(message.translate(None, _NOT_CONTAINERS)) > DECODE_DEPTH:
                _check_map(value, 1)
        elif kind is bytes:
            if len(value) > DATA_BYTES:
                raise ProtocolError(f"{cls.__name__} carries more than {DATA_BYTES} bytes")
        elif kind is not bool and not 0 <= value <= MAX_OFFSET:  # refuses NaN too
            raise ProtocolError(f"{cls.__name__} has a number out of range")


def _check_map(value: Any, depth: int) -> None:
    if depth > DECODE_DEPTH:
        raise ProtocolError(f"a message is nested deeper than {DECODE_DEPTH}")
    for inner in value.values() if type(value) is dict else value:
        if type(inner) is dict or type(inner) is list:
            _check_map(inner, depth + 1)


class _Containers:
    """Counts arrays and maps while they are built: each takes 60 bytes of memory or more for a single byte on the wire."""

    __slots__ = ("left",)

    def __init__(self, most: int = DECODE_CONTAINERS) -> None:
        self.left = most

    def __call__(self, value: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ProtocolError("a message holds too many arrays and maps")
        return value
