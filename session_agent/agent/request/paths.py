"""Paths in requests and answers, and the mapping of operating system errors to typed errors.

Owns the validation of untrusted paths, their form on the wire, and errno → error code. Opens no file. Text on the wire is UTF-8, file names
need not be: a client may send a path as ``bin``, and an answer has the exact bytes in ``raw_path`` if they are not UTF-8. Inside the agent
a path is a ``str`` with surrogate escapes, which ``os`` functions convert back to the same bytes.
"""

from __future__ import annotations

import errno
import os
import posixpath
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import PATH_BYTES
from holdfast_wire.paths import shown, wire

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
    errno.ELOOP: "check the targets of its symbolic links",
}
"""Hints for paths that are well formed but cannot be resolved."""


def path_param(params: dict[str, Any], key: str = "path", default: str | None = None) -> str:
    """The path under ``key``. Raises ``invalid_path``."""
    value = params.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str | bytes):
        raise HoldfastError("invalid_path", f"{key} must be a path, not {type(value).__name__}")
    try:
        path = os.fsdecode(value)
        length = len(os.fsencode(path))
    except UnicodeError:
        raise HoldfastError("invalid_path", f"{key} holds characters that a file name cannot contain") from None
    if not path:
        raise HoldfastError("invalid_path", f"{key} is empty")
    if "\0" in path:
        raise HoldfastError("invalid_path", f"{key} holds a NUL byte")
    if length > PATH_BYTES:
        raise HoldfastError("invalid_path", f"{key} is {length} bytes long; the limit is {PATH_BYTES}")
    return path


def absolute(workdir: str, path: str) -> str:
    """``path`` relative to ``workdir``. ``..`` is left to the kernel, because of symbolic links."""
    return posixpath.join(workdir, path)


def start_of(path: str) -> str:
    """The start of a listing or search without a redundant end, which would appear in the names below it: ``/a`` for ``/a/.``."""
    while path.endswith(("/", "/.")) and path != "/":
        path = path.removesuffix(".").rstrip("/") or "/"
    return path


def path_fields(key: str, path: str) -> dict[str, str | bytes]:
    """``path`` under ``key``, and its bytes under ``raw_…`` if they are not UTF-8."""
    text = wire(path)
    return {key: text} if text == path else {key: text, f"raw_{key}": os.fsencode(path)}


def os_failure(error: OSError, path: str) -> HoldfastError:
    """The typed error for ``error`` at ``path``. An errno that is not in the table becomes ``io_error``."""
    number = error.errno or 0
    reason = os.strerror(number) if number else str(error)
    code = _CODES.get(number, "io_error")
    hint = _HINTS.get(number, "") if code == "invalid_path" else None
    return HoldfastError(code, f"{shown(path)}: {reason}", hint=hint, detail={"errno": number})
