"""Extended attributes of files, as far as requests read and set them: those whose names begin with a given text.

Owns their bounds. Values are text here; others are left out. Facts from xattr(7). Used by ``write`` and by the listings of ``trees``.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from holdfast_wire.errors import HoldfastError

MOST = 32
"""Attributes of one file that are read or set."""
_MOST_BYTES = 4096
_USER = "user."


def prefix_param(params: dict[str, Any]) -> str:
    """The text with which the names that are read begin; "" for none. Raises ``invalid_argument``."""
    value = params.get("xattrs")
    if value is None:
        return ""
    if not isinstance(value, str) or not value.startswith(_USER) or len(value) > 100:
        raise HoldfastError("invalid_argument", f"xattrs must be the beginning of names, which begin with {_USER}")
    return value


def values_param(params: dict[str, Any]) -> tuple[str, dict[str, str]] | None:
    """``xattrs {prefix, values}`` of a write: the beginning of names, and the values by what follows it. Raises ``invalid_argument``."""
    value = params.get("xattrs")
    if value is None:
        return None
    prefix = prefix_param({"xattrs": value.get("prefix")}) if isinstance(value, dict) else ""
    values = value.get("values") if isinstance(value, dict) else None
    if not prefix or not isinstance(values, dict) or len(values) > MOST:
        raise HoldfastError("invalid_argument", f"xattrs must have a prefix, and at most {MOST} values")
    size = 0
    for name, text in values.items():
        if not isinstance(name, str) or not isinstance(text, str) or not name or "\0" in name:
            raise HoldfastError("invalid_argument", "names and values of xattrs must be texts")
        size += len((prefix + name + text).encode("utf-8", "replace"))
    if size > _MOST_BYTES:
        raise HoldfastError("invalid_argument", f"xattrs must have at most {_MOST_BYTES} bytes in all")
    return prefix, values


def replace(file: int, prefix: str, values: dict[str, str]) -> None:
    """Set these attributes of an open file, and remove its others of the prefix. Raises ``OSError``."""
    try:
        for name in os.listxattr(file):
            if name.startswith(prefix) and name.removeprefix(prefix) not in values:
                os.removexattr(file, name)
        for name, text in values.items():
            os.setxattr(file, prefix + name, text.encode())
    except OSError as error:
        if error.errno != errno.ENOTSUP or values:  # a file system without attributes has none to remove
            raise


def read(path: str, prefix: str) -> dict[str, str]:
    """The attributes of a path, whose final link is not followed, by what follows the prefix in their names, as far as they can be read."""
    found: dict[str, str] = {}
    try:
        names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith(prefix)]
        for name in sorted(names)[:MOST]:
            found[name.removeprefix(prefix)] = os.getxattr(path, name, follow_symlinks=False)[:_MOST_BYTES].decode()
    except (OSError, UnicodeDecodeError):
        pass
    return found
