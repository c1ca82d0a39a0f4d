"""Paths as clients name them, and the kernel's errors about them as typed errors.

Owns the reading of a path from untrusted params, its form on the wire, and errno → error code. It opens nothing; called by
every file operation of the agent. Strings on the wire are UTF-8, file names need not be: a client may send any path as ``bin``,
and what the agent sends as ``path`` has its true bytes in ``raw_path`` where the text could only show them with U+FFFD. Inside the
agent a path is a ``str`` with surrogate escapes, which the ``os`` functions turn back into the very same bytes.
"""

from __future__ import annotations

import errno
import os
import posixpath
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import PATH_BYTES

_CODES = {
    errno.ENOENT: "file_not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EISDIR: "is_a_directory",
    errno.ENOTDIR: "not_a_directory",
    errno.EEXIST: "file_exists",
    errno.ENOTEMPTY: "directory_not_empty",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "no_space",
    errno.EROFS: "read_only",
    errno.ENAMETOOLONG: "invalid_path",
    errno.ELOOP: "invalid_path",
    errno.EINVAL: "invalid_path",
    errno.EXDEV: "invalid_path",
    errno.ENXIO: "not_a_file",
    errno.ENODEV: "not_a_file",
    errno.ESPIPE: "not_a_file",
    errno.ENOTSUP: "unsupported",
    errno.ETXTBSY: "permission_denied",
    errno.EBUSY: "permission_denied",
}

_HINTS = {
    errno.ENAMETOOLONG: "a name has at most 255 bytes, a path 4096",
    errno.ELOOP: "look at where its symbolic links lead",
}
"""What to do about paths that are well formed and still lead nowhere."""


def path_param(params: dict[str, Any], key: str = "path", default: str | None = None) -> str:
    """The path under ``key``; raises ``invalid_path`` when it is none."""
    value = params.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str | bytes):
        raise HoldfastError("invalid_path", f"{key} must be a path, not {type(value).__name__}")
    try:
        path = os.fsdecode(value)
        length = len(os.fsencode(path))
    except UnicodeError:
        raise HoldfastError("invalid_path", f"{key} holds characters that no file name can hold") from None
    if not path:
        raise HoldfastError("invalid_path", f"{key} is empty")
    if "\0" in path:
        raise HoldfastError("invalid_path", f"{key} holds a NUL byte")
    if length > PATH_BYTES:
        raise HoldfastError("invalid_path", f"{key} is {length} bytes long; the limit is {PATH_BYTES}")
    return path


def absolute(workdir: str, path: str) -> str:
    """``path`` seen from ``workdir``. ``..`` is left to the kernel, which knows where symbolic links lead."""
    return posixpath.join(workdir, path)


def start_of(path: str) -> str:
    """A path whose members are going to be named, without what would only lengthen their names: ``/a/.`` is ``/a``."""
    while path.endswith(("/", "/.")) and path != "/":
        path = path.removesuffix(".").rstrip("/") or "/"
    return path


def wire(path: str) -> str:
    """``path`` as text for the wire, with U+FFFD for bytes that are none."""
    return os.fsencode(path).decode("utf-8", "replace")


def path_fields(key: str, path: str) -> dict[str, str | bytes]:
    """``path`` under ``key``, and its bytes under ``raw_…`` where the text cannot represent them."""
    text = wire(path)
    return {key: text} if text == path else {key: text, f"raw_{key}": os.fsencode(path)}


def shown(path: str) -> str:
    """``path`` for a message: always encodable, never with raw control characters."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)  # a codec's module could not be loaded in a sandbox


def os_failure(error: OSError, path: str) -> HoldfastError:
    """``error`` met at ``path``, typed. An errno that is not in the table is an ``io_error``."""
    number = error.errno or 0
    reason = os.strerror(number) if number else str(error)
    code = _CODES.get(number, "io_error")
    hint = _HINTS.get(number, "") if code == "invalid_path" else None
    return HoldfastError(code, f"{shown(path)}: {reason}", hint=hint, detail={"errno": number})
