"""Who a command runs as.

Owns reading the image's ``/etc/passwd`` and ``/etc/group`` (plain files, so that nothing of the image's libc is needed). Called by
``launch``.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TypeVar

from holdfast_wire.errors import HoldfastError
from holdfast_wire.records import dataclass, replace

_Otherwise = TypeVar("_Otherwise")
_MOST_BYTES = 1024 * 1024
"""More of a file of accounts is not read."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of the image. ``cgroups`` holds the supplementary groups."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    groups: tuple[int, ...]


_SETTLED_NS = 1_000_000_000
"""A file that was changed less long ago may change once more without a sign: the kernel's time stamps are milliseconds apart."""
_KEPT = 16
_kept: dict[tuple[str | int | None, str, str], tuple[object, User]] = {}
"""Who was found, with the state of both files then."""


def find_user(wanted: str | int | None, *, accounts: str = "/etc/passwd", group: str = "/etc/group") -> User:
    """The user by name or number, by default the agent's own. A number without an entry is a user without a name, of root's group,
    as container runtimes have it.

    ``USER:GROUP``, as images spell it, is that user with that group alone. Raises ``user_not_found``. The files are only read again when
    they have changed.
    """
    key, state = (wanted, accounts, group), (_state(accounts), _state(group))
    kept = _kept.get(key)
    if kept is not None and kept[0] == state:
        return kept[1]
    user = _read_user(wanted, accounts, group)
    now = time.time_ns()
    if wanted is not None and all(changed is None or now - changed[-1] > _SETTLED_NS for changed in state):
        if len(_kept) >= _KEPT:
            _kept.clear()
        _kept[key] = (state, user)
    return user


def _state(path: str) -> tuple[int, ...] | None:
    """What differs when a file has changed, its time of change last; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_user(wanted: str | int | None, accounts: str, group: str) -> User:
    if isinstance(wanted, str) and ":" in wanted:
        user_name, _, of = wanted.partition(":")
        user = _read_user(user_name, accounts, group)
        if not of:
            return user
        alone = _group(of, group)
        return replace(user, gid=alone, groups=(alone,))
    number = os.geteuid() if wanted is None else wanted
    if isinstance(number, str):
        number = _number(number, number)
    if isinstance(number, int) and not 0 <= number < 2**32 - 1:
        raise HoldfastError("user_not_found", f"{number} is no user id")
    for fields in _entries(accounts, 7):
        name, _, uid, gid, _, home, shell = fields[:7]
        if (name == number or uid == str(number)) and uid.isdigit() and gid.isdigit():
            return User(name, int(uid), int(gid), home or "/", shell, _groups(name, int(gid), group))
    if isinstance(number, int):
        group_id = os.getegid() if number == os.geteuid() else 0  # as docker: a uid without an entry is in root's group
        return User(str(number), number, group_id, "/", "", (group_id,))
    raise HoldfastError("user_not_found", f"the image has no user {wanted!r:.80}")


def must_be_there(user: User, *, ids: int = 0) -> None:
    """Raises ``user_not_found`` for ids that the user namespace of commands does not have: nothing can become them.

    It has the *ids* first ones where that is given, else those of the agent's own namespace.
    """
    for kind, wanted in (("uid", [user.uid]), ("gid", [user.gid, *user.groups])):
        ranges = [(0, ids - 1)] if ids else [(int(low), int(low) + int(count) - 1) for low, _, count in _fields(f"/proc/self/{kind}_map")]
        for number in wanted:
            if ranges and not any(low <= number <= high for low, high in ranges):
                spans = ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in ranges)
                raise HoldfastError("user_not_found", f"a sandbox has no {kind} {number} here", hint=f"take one of {spans}")


def _fields(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="ascii") as file:
            return [line.split() for line in file]
    except OSError:
        return []


def _number(text: str, otherwise: _Otherwise) -> int | _Otherwise:
    """The id that ``text`` spells, None where it is not a number in range."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else otherwise


def _group(wanted: str, group: str) -> int:
    for fields in _entries(group, 3):
        if wanted in (fields[0], fields[2]) and fields[2].isdigit():
            return int(fields[2])
    number = _number(wanted, None)
    if number is not None and number < 2**32 - 1:
        return number
    raise HoldfastError("user_not_found", f"the image has no group {wanted!r:.80}")


def _groups(name: str, primary: int, group: str) -> tuple[int, ...]:
    found = {primary}
    for fields in _entries(group, 4):
        if name in fields[3].split(",") and fields[2].isdigit():
            found.add(int(fields[2]))
    return tuple(sorted(found))


def _entries(path: str, least: int) -> list[list[str]]:
    try:
        # Commands may put a pipe in its place, on which an ordinary open would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return []
        text = os.read(descriptor, min(state.st_size, _MOST_BYTES))  # less work than a file object, for every command
    except OSError:
        return []
    finally:
        os.close(descriptor)
    lines = text.decode("utf-8", "surrogateescape").splitlines()
    return [fields for line in lines if len(fields := line.split(":")) >= least]
