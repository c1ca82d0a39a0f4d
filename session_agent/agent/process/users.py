"""Looking up the user that a command runs as.

Owns reading the image's ``/etc/passwd`` and ``/etc/group``. They are parsed here, without the image's libc and its name services. Parsed
users are cached until a file changes. Called by ``launch`` and by file operations.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TypeVar

from holdfast_wire.errors import HoldfastError
from holdfast_wire.fast_dataclass import dataclass, replace

_Otherwise = TypeVar("_Otherwise")
_MOST_BYTES = 1024 * 1024
"""Bytes of each file that are read; the rest is ignored."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of the image. ``groups`` holds all its group ids, the primary one included."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    groups: tuple[int, ...]


_SETTLED_NS = 1_000_000_000
"""A file that changed more recently is not cached: time stamps advance in steps of milliseconds, and a second change could get the same."""
_CACHED_USERS = 16
_cache: dict[tuple[str | int | None, str, str], tuple[object, User]] = {}
"""Users that were found, with the state of both files at that time."""


def find_user(wanted: str | int | None, *, accounts: str = "/etc/passwd", group: str = "/etc/group") -> User:
    """The user by name or uid; None is the agent's own user. A uid without an entry is a user without a name in root's group, as in docker.

    ``USER:GROUP``, as images spell it, is that user with only that group. Raises ``user_not_found``. The files are read again only when
    they have changed.
    """
    key, state = (wanted, accounts, group), (_state(accounts), _state(group))
    cached = _cache.get(key)
    if cached is not None and cached[0] == state:
        return cached[1]
    user = _read_user(wanted, accounts, group)
    now = time.time_ns()
    if wanted is not None and all(changed is None or now - changed[-1] > _SETTLED_NS for changed in state):
        if len(_cache) >= _CACHED_USERS:
            _cache.clear()
        _cache[key] = (state, user)
    return user


def _state(path: str) -> tuple[int, ...] | None:
    """A value that differs after the file has changed, with its change time last; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_user(wanted: str | int | None, accounts: str, group: str) -> User:
    if isinstance(wanted, str) and ":" in wanted:
        user_name, _, of = wanted.partition(":")
        user = _read_user(user_name or 0, accounts, group)  # as docker: root, where only a group is named
        if not of:
            return user
        alone = _group(of, group)
        return replace(user, gid=alone, groups=(alone,))
    number = os.geteuid() if wanted is None else wanted
    if isinstance(number, str):  # as docker: digits are an id, also where a name consists of the same digits
        number = _number(number, number)
    if isinstance(number, int) and not 0 <= number < 2**32 - 1:
        raise HoldfastError("user_not_found", f"{number} is not a valid user id")
    for fields in _entries(accounts, 4, f"{number}:"):
        name, _, uid_text, gid_text, _, home, shell = (*fields, "", "", "")[:7]  # docker too takes an entry without its last fields
        uid, gid = _number(uid_text, None), _number(gid_text, None)
        if number in (name, uid) and uid is not None and gid is not None:
            return User(name, uid, gid, home or "/", shell, _groups(name, gid, group))
    if isinstance(number, int):
        group_id = os.getegid() if number == os.geteuid() else 0  # as docker: a uid without an entry is in root's group
        return User(str(number), number, group_id, "/", "", (group_id,))
    raise HoldfastError("user_not_found", f"the image has no user {wanted!r:.80}")


def check_ids_exist(user: User, *, ids: int = 0) -> None:
    """Raise ``user_not_found`` if the user namespace of commands lacks an id of ``user``: no process could switch to it.

    The namespace has ids 0 to *ids* - 1; with *ids* 0 it is the agent's own namespace.
    """
    for kind, wanted in (("uid", [user.uid]), ("gid", [user.gid, *user.groups])):
        ranges = [(0, ids - 1)] if ids else [(int(low), int(low) + int(count) - 1) for low, _, count in _fields(f"/proc/self/{kind}_map")]
        for number in wanted:
            if ranges and not any(low <= number <= high for low, high in ranges):
                spans = ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in ranges)
                raise HoldfastError("user_not_found", f"sandboxes of this service have no {kind} {number}", hint=f"choose one of {spans}")


def _fields(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="ascii") as file:
            return [line.split() for line in file]
    except OSError:
        return []


def _number(text: str, otherwise: _Otherwise) -> int | _Otherwise:
    """The id that ``text`` spells, ``otherwise`` if it is not a number in range."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else otherwise


def _group(wanted: str, group: str) -> int:
    number = _number(wanted, None)
    if number is not None and number < 2**32 - 1:
        return number  # as docker: also where a group has these digits as its name
    for fields in _entries(group, 3, f"{wanted}:"):
        found = _number(fields[2], None)
        if fields[0] == wanted and found is not None:
            return found
    raise HoldfastError("user_not_found", f"the image has no group {wanted!r:.80}")


def _groups(name: str, primary: int, group: str) -> tuple[int, ...]:
    found = {primary}
    for fields in _entries(group, 4, name):
        number = _number(fields[2], None)
        if name in fields[3].split(",") and number is not None and not fields[0].startswith("#"):
            found.add(number)
    return tuple(sorted(found))


def _entries(path: str, least: int, wanted: str) -> list[list[str]]:
    """The lines that contain ``wanted`` and have at least so many fields, split into their fields."""
    try:
        # A command may replace the file by a named pipe, on which a blocking open would never return.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return []
        text = os.read(descriptor, min(state.st_size, _MOST_BYTES))  # cheaper than a file object; this runs for every command
    except OSError:
        return []
    finally:
        os.close(descriptor)
    lines = text.decode("utf-8", "surrogateescape").split("\n")
    return [fields for line in lines if wanted in line and len(fields := line.strip().split(":")) >= least]
