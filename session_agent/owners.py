"""Whose a new file is: ``user`` params as numbers, looked up in the sandbox's own /etc/passwd.

Owns that lookup and nothing else. The file is read anew each time, because commands in the sandbox add users; it is read by
hand, because the bundle's C library would ask name services the image may not have. Called by whatever creates files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from holdfast_wire.errors import HoldfastError

ACCOUNTS = "/etc/passwd"
_ACCOUNTS_BYTES = 4 * 1024 * 1024
_MOST_ID = 2**32 - 2


@dataclass(frozen=True, slots=True)
class Owner:
    """A numeric user and group."""

    uid: int
    gid: int

    def give(self, descriptor: int) -> None:
        """Make the open file theirs; a no-op where it is already. Raises ``OSError``."""
        state = os.fstat(descriptor)
        if (state.st_uid, state.st_gid) != (self.uid, self.gid):
            os.fchown(descriptor, self.uid, self.gid)


def owner_param(params: dict[str, Any], key: str = "user", accounts: str = ACCOUNTS) -> Owner | None:
    """The owner named by ``key``: a name, a uid, or either with ``:gid``; None when absent."""
    value = params.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise HoldfastError("invalid_argument", f"{key} must be a user name or a uid, not {type(value).__name__}")
    user, _, group = str(value).partition(":")
    if group and not (group.isascii() and group.isdigit()):
        raise HoldfastError("invalid_argument", f"{key}: the group must be numeric")
    uid = int(user) if user.isascii() and user.isdigit() and len(user) < 11 else None
    gid = uid
    for entry in _entries(accounts):
        if (entry[0] == user) if uid is None else (int(entry[2]) == uid):
            uid, gid = int(entry[2]), int(entry[3])
            break
    if uid is None or gid is None:
        raise HoldfastError("user_not_found", f"the sandbox has no user {user!r:.80}")
    if group and len(group) < 11:
        gid = int(group)
    if uid > _MOST_ID or gid > _MOST_ID:
        raise HoldfastError("invalid_argument", f"{key} is out of range")
    return Owner(uid, gid)


def _entries(accounts: str) -> list[list[str]]:
    try:
        with open(accounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(_ACCOUNTS_BYTES).split("\n")
    except OSError:
        return []
    fields = (line.split(":") for line in lines)
    return [f for f in fields if len(f) >= 4 and f[2].isascii() and f[2].isdigit() and f[3].isascii() and f[3].isdigit()]
