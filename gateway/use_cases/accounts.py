"""The users and groups of a sandbox: what its ``/etc/passwd`` and ``/etc/group`` say at the moment.

Owns reading them, which is bounded; code in the sandbox may have written anything. Called by faces that name users as the sandbox does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.model.records import Record

from .agent_channel import request
from .service import Gateway

_MOST_BYTES: Final = 256 * 1024
"""Of each file; the rest is ignored."""
_ID_MOST: Final = 2**32 - 2


@dataclass(frozen=True, slots=True)
class Account:
    """A user. ``home`` is an absolute path."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True)
class Accounts:
    """All users by name, and the names of users and groups by their numbers."""

    users: dict[str, Account] = field(default_factory=dict)
    user_names: dict[int, str] = field(default_factory=dict)
    group_names: dict[int, str] = field(default_factory=dict)


async def users(gateway: Gateway, record: Record) -> Accounts:
    """The users of a ready sandbox, without the names of groups."""
    return parsed(await _content(gateway, record, "/etc/passwd"), "")


async def users_and_groups(gateway: Gateway, record: Record) -> Accounts:
    """The users and groups of a ready sandbox."""
    return parsed(await _content(gateway, record, "/etc/passwd"), await _content(gateway, record, "/etc/group"))


def parsed(passwd: str, group: str) -> Accounts:
    """The accounts in the text of both files (passwd(5), group(5)); lines of another form are left out, and the first of a name counts."""
    found = Accounts()
    for line in passwd.splitlines():
        words = line.split(":")
        uid, gid = (_number(words[2]), _number(words[3])) if len(words) >= 6 else (None, None)
        if words[0] and uid is not None and gid is not None:
            account = Account(words[0], uid, gid, words[5] if words[5].startswith("/") else "/")
            found.users.setdefault(account.name, account)
            found.user_names.setdefault(uid, account.name)
    for line in group.splitlines():
        words = line.split(":")
        number = _number(words[2]) if len(words) >= 3 else None
        if words[0] and number is not None:
            found.group_names.setdefault(number, words[0])
    return found


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 and int(text) <= _ID_MOST else None


async def _content(gateway: Gateway, record: Record, path: str) -> str:
    content = bytearray()
    params: dict[str, Any] = {"path": path, "length": _MOST_BYTES}
    try:
        await request(gateway, record, "read", params, take=content.extend)
    except HoldfastError as error:
        if error.code not in ("file_not_found", "is_a_directory", "not_a_file", "not_a_directory"):
            raise
    return content[:_MOST_BYTES].decode("utf-8", "replace")
