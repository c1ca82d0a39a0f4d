"""A file or directory in the form of E2B's ``EntryInfo``.

Owns the translation of what the agent reports, which is shown, not trusted.
"""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from typing import Any, Final

from gateway.use_cases.accounts import Accounts

METADATA: Final = "user.e2b."
"""The beginning of the names of the extended attributes that hold a file's metadata, as E2B stores it."""
_TYPES: Final = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY"}
_KINDS: Final = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}
_UNKNOWN: Final = "FILE_TYPE_UNSPECIFIED"
_LAST_MOMENT: Final = 253402300799
"""The last second of the year 9999, which is the last of a protobuf timestamp."""
_SIZE_MOST: Final = 2**63 - 1


def entry_info(entry: dict[str, Any], accounts: Accounts, target: dict[str, Any] | None = None) -> dict[str, Any]:
    """The entry. ``target`` is the entry that a symbolic link leads to, whose type and mode count; None if it leads to nothing."""
    kind, mode = _text(entry.get("type")), _number(entry.get("mode"), 0o7777)
    is_link = kind == "symlink"
    seen = target if is_link else entry
    found: dict[str, Any] = {
        "name": _text(entry.get("name")),
        "type": _TYPES.get(_text(seen.get("type")), _UNKNOWN) if seen else _UNKNOWN,
        "path": _text(entry.get("path")),
        "size": str(_number(entry.get("size"), _SIZE_MOST)),
        "mode": _number(seen.get("mode"), 0o7777) & 0o777 if seen else 0,
        "permissions": ("L" if is_link else "") + stat.filemode(_KINDS.get(kind, 0) | mode)[is_link:],
        "owner": _name(entry.get("uid"), accounts.user_names),
        "group": _name(entry.get("gid"), accounts.group_names),
    }
    mtime = entry.get("mtime")
    if isinstance(mtime, int | float) and not isinstance(mtime, bool) and 0 <= mtime < _LAST_MOMENT:
        found["modifiedTime"] = datetime.fromtimestamp(mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    xattrs = entry.get("xattrs")
    if isinstance(xattrs, dict):
        found["metadata"] = {name: value for name, value in xattrs.items() if isinstance(name, str) and isinstance(value, str)}
    if is_link:
        found["symlinkTarget"] = _text(target.get("path")) if target else found["path"]
    return found


def _name(number: Any, names: dict[int, str]) -> str:
    value = _number(number, 2**32 - 1)
    return names.get(value, str(value))


def _number(value: Any, most: int) -> int:
    return value if type(value) is int and 0 <= value <= most else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
