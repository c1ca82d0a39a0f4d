"""Checks of single arguments of the public methods, so that a mistake raises before anything is sent.

Pure. Owns which times, names, paths, environments, contents, labels and sizes are valid, and the error messages for others. Does not build
requests from them (``_requests``). Called by ``_requests`` and by the methods themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Self

from holdfast_wire.limits import ID_BYTES, PATH_BYTES

from holdfast._errors import InvalidArgumentError, InvalidPathError

if TYPE_CHECKING:
    import re  # compiled patterns are rare, and short commands import nothing that they do not need

RemotePath = str | bytes | PathLike[str]
_GROUP_NAME_CHARACTERS = 100
_SIGNS = str.maketrans("", "", "._-")
_TTL_MOST_S = 86400
LIFETIME_MOST_S = 366 * 86400
_SECONDS_MOST = 10**9
"""31 years. Clocks and timers of either end overflow with much more."""


class Bound(int):
    """How many bytes of a stream are kept, and which part: its ``head``, its ``tail``, or half of it from ``both`` ends."""

    keep: str

    def __new__(cls, value: int, keep: str) -> Self:
        made = super().__new__(cls, value)
        made.keep = keep
        return made


def new_id() -> str:
    """A fresh command id: 128 random bits."""
    return os.urandom(16).hex()


def bad(message: str, hint: str = "correct the argument that the message names") -> InvalidArgumentError:
    """The error for an invalid argument."""
    return InvalidArgumentError("invalid_argument", message, hint=hint)


def given(**values: Any) -> dict[str, Any]:
    """Those of ``values`` that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def seconds(value: float | None, name: str = "timeout", hint: str = "leave it out for no limit") -> float | None:
    """A number of seconds, or None."""
    return None if value is None else seconds_up_to(_SECONDS_MOST, value, name, hint)


def seconds_up_to(most_s: int, value: float, name: str, hint: str) -> float:
    """A number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most_s:
        raise bad(f"{name} must be a number of seconds above 0 and up to {most_s}, not {value!r:.40}", hint)
    return float(value)


def wait_time_of(value: float | None, name: str = "timeout") -> float | None:
    """How long to wait: a number of seconds, 0 to return at once, or None to wait without limit."""
    if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value <= _SECONDS_MOST:
        raise bad(
            f"{name} must be a number of seconds from 0 to {_SECONDS_MOST}, not {value!r:.40}", hint="leave it out to wait without limit"
        )
    return value if value == 0 and not isinstance(value, bool) else seconds(value, name)


def part_of(offset: int, length: int | None) -> None:
    """Check a range of bytes of a file: where it begins, and its length."""
    for name, value in (("offset", offset), ("length", length)):
        if value is not None and (type(value) is not int or not 0 <= value < 2**63):
            raise bad(f"{name} must be a number of bytes, 0 or more, not {value!r:.40}")


def name_of(value: str | None, what: str) -> str | None:
    """An id or a name of 1 to 128 bytes, or None."""
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value.encode("utf-8", "surrogatepass")) <= ID_BYTES or not value.isprintable():
        raise bad(f"{what} must be 1 to {ID_BYTES} printable characters")
    return value


def is_identifier(value: object, most: int = ID_BYTES) -> bool:
    """Whether it is 1 to ``most`` ASCII letters, digits, '.', '_' and '-', the first a letter or digit."""
    return (
        isinstance(value, str) and value.isascii() and 1 <= len(value) <= most and value[0].isalnum() and value.translate(_SIGNS).isalnum()
    )


def command_id_of(command_id: str | None) -> str:
    """The command's id as the caller chose it, or a new one."""
    return (None if command_id is None else name_of(command_id, "command_id")) or os.urandom(16).hex()


def sandbox_id_of(sandbox_id: str) -> str:
    """The id of an existing sandbox. It is checked because it becomes part of a URL path."""
    if not is_identifier(sandbox_id):
        hint = "an id has letters, digits, '.', '_' and '-': list your sandboxes with `holdfast list`"
        raise bad(f"no sandbox has the id {sandbox_id!r:.80}", hint=hint)
    return sandbox_id


def path_of(path: RemotePath) -> str | bytes:
    """A path in the sandbox as it is sent: text, or bytes if it is not UTF-8."""
    try:
        raw = fspath(path)
        raw = raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else raw
    except (TypeError, UnicodeEncodeError):
        raw = b""
    if not 1 <= len(raw) <= PATH_BYTES or b"\0" in raw:
        raise InvalidPathError("invalid_path", f"a path must be 1 to {PATH_BYTES} bytes without NUL")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def text_path(path: RemotePath) -> str:
    """A path for REST, which only knows text."""
    checked = path_of(path)
    if isinstance(checked, bytes):
        raise InvalidPathError("invalid_path", "a path that is not UTF-8 needs a session", hint="use WebSockets")
    return checked


def environment(env: Mapping[str, str] | None) -> dict[str, str] | None:
    """Environment variables: names and values are strings without NUL."""
    if env is None:
        return None
    if not isinstance(env, Mapping):
        raise bad("env must map strings to strings")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise bad("env must map strings to strings")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise bad(f"{name!r} cannot be the name of an environment variable, or its value holds NUL")
    return dict(env)


def words_of(words: object, what: str) -> list[str]:
    """A list of strings, from any iterable of them."""
    found: list[Any] = list(words) if hasattr(words, "__iter__") and not isinstance(words, (bytes, Mapping)) else [None]
    if not all(isinstance(word, str) for word in found):
        raise bad(f"{what} must be a list of strings")
    return found


def content_of(data: object, what: str = "data") -> bytes:
    """Bytes, or text as UTF-8."""
    if isinstance(data, bytes):
        return data
    try:
        return data.encode() if isinstance(data, str) else bytes(memoryview(data))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not bytes(data), which for a number returns so many NUL bytes
        raise bad(f"{what} must be bytes, or text that can be encoded as UTF-8") from None


def expected(pattern: object) -> re.Pattern[bytes]:
    """A pattern of output as one of bytes: a text stands for itself, a regular expression of text for its UTF-8."""
    import re

    if isinstance(pattern, re.Pattern):
        if isinstance(pattern.pattern, bytes):
            return pattern
        return re.compile(pattern.pattern.encode(), pattern.flags & ~re.UNICODE)
    if not isinstance(pattern, (str, bytes)) or not pattern:
        raise bad("a pattern must be a text that is not empty, or a compiled regular expression")
    return re.compile(re.escape(content_of(pattern)))


def output_limit(value: int | None, default: int, keep: str = "head") -> int:
    """How many bytes of each stream are kept, and which of them."""
    if keep not in ("head", "tail", "both"):
        raise bad(f"keep must be 'head', 'tail' or 'both', not {keep!r:.40}")
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad(f"max_output_bytes must be a number of bytes, 0 or more, not {value!r:.40}")
    return value if keep == "head" else Bound(value, keep)


def time_limit(value: float | None, default: float | None) -> float | None:
    """How long a command may run: the given time, else the client's default. Infinity means no limit."""
    if value is None:
        return default
    return None if value == float("inf") else value


def script_of(script: str) -> str:
    """A command string for a shell."""
    if not isinstance(script, str):
        raise bad("the command of a shell must be a string", hint="give a list of arguments to sandbox.exec() instead")
    if "\0" in script:
        raise bad("a command cannot hold NUL")
    return script


def labels_of(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Labels: strings to strings."""
    labels = {} if labels is None else labels
    if not isinstance(labels, Mapping) or not all(isinstance(key, str) and isinstance(value, str) and key for key, value in labels.items()):
        raise bad("labels must map strings to strings")
    return dict(labels)


def plain(value: Any) -> Any:
    """Maps and sequences of any kind, converted to those that JSON can represent."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    return value


def group_name_of(name: str) -> str:
    """A group's name. It is checked because it becomes part of a URL path."""
    if not is_identifier(name, _GROUP_NAME_CHARACTERS) or not name[-1].isalnum():
        raise bad("a group's name must be at most 100 letters, digits, '.', '_' and '-', with a letter or digit at both ends")
    return name


def ttl_of(ttl_s: float) -> float:
    """How long a lease lasts without a heartbeat."""
    return seconds_up_to(_TTL_MOST_S, ttl_s, "ttl_s", "leave it out for a minute; heartbeats go out by themselves")


def port_of(port: int) -> int:
    """A TCP port."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise bad("a port must be a number from 1 to 65535")
    return port


def host_of(host: str | None, name: str) -> str:
    """A host name or address.

    An empty one is refused: for a listener it would mean every interface, which the caller has to write explicitly.
    """
    if not isinstance(host, str) or not host or not host.isprintable():
        hint = "'127.0.0.1' for this machine alone, '0.0.0.0' for all its interfaces"
        raise bad(f"{name} must be the name or address of a host", hint=hint)
    return host


def local_port_of(port: int) -> int:
    """A TCP port to listen on, 0 for any that is free."""
    return 0 if type(port) is int and port == 0 else port_of(port)


def size_of(rows: int, cols: int) -> tuple[int, int]:
    """A terminal's size in character cells."""
    if not all(type(size) is int and 1 <= size <= 4096 for size in (rows, cols)):
        raise bad("rows and cols must be numbers from 1 to 4096")
    return rows, cols


def since_of(since_s: float | None) -> float | None:
    """How far back events begin."""
    return None if since_s is None else seconds_up_to(3600, since_s, "since_s", "leave it out to begin now")


def position_of(position: str) -> str:
    """The position of an event. It is checked because it becomes a header."""
    if not isinstance(position, str) or not position.isascii() or not position.isprintable() or len(position) > 4096:
        raise bad("after must be the position of events", "read it from the attribute position of client.events()")
    return position
