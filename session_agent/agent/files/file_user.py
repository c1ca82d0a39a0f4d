"""File operations as a chosen user: with the permissions of that user, who also owns the new files.

Owns reading the user from untrusted parameters, switching one thread's file system ids, groups and capabilities, and back, and the owner
of files that the agent creates. Linux has these credentials per thread, so the rest of the agent is not affected; the C library would
change every thread, so the system calls are made directly. Used by ``transfers`` and all file channels. Facts from setfsuid(2),
setgroups(2), capset(2) and credentials(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from collections.abc import Iterator
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import AgentContext
from session_agent.agent.process.users import User, check_ids_exist, find_user
from session_agent.agent.request.params import text

Owner = tuple[int, int] | None
"""The uid and gid of new files; None: they stay those of the user as whom the thread works."""

_NUMBERS = {
    "x86_64": {"setgroups": 116, "setfsuid": 122, "setfsgid": 123, "capget": 125, "capset": 126, "prctl": 157},
    "aarch64": {"setgroups": 159, "setfsuid": 151, "setfsgid": 152, "capget": 90, "capset": 91, "prctl": 167},
}
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)
_CAPABILITIES = struct.Struct("=6I")
"""Effective, permitted and inheritable capabilities 0 to 31, then 32 to 63."""
_CAP_SETGID, _CAP_SETUID = 6, 7
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 2, 3, 4
_NONE = 2**32 - 1
_CANNOT_RESTORE = 70


@contextlib.contextmanager
def switched(user: User) -> Iterator[None]:
    """A context in which the calling thread has that user's credentials for files."""
    capabilities, groups, ids, death_signal = _capabilities(), os.getgroups(), _file_ids(), _death_signal()
    try:
        _set_groups(user.groups)
        _set_id("setfsgid", user.gid)
        _set_id("setfsuid", user.uid)
        if user.uid != 0:
            _, permitted, inherited, _, more_permitted, more_inherited = _CAPABILITIES.unpack(capabilities)
            _set_capabilities(_CAPABILITIES.pack(0, permitted, inherited, 0, more_permitted, more_inherited))
        yield
    finally:
        _restore(capabilities, groups, ids, death_signal)


def _restore(capabilities: bytes, groups: list[int], ids: tuple[int, int], death_signal: int) -> None:
    try:
        _set_capabilities(capabilities)
        _set_id("setfsuid", ids[0])
        _set_id("setfsgid", ids[1])
        _set_groups(groups)
        _set_capabilities(capabilities)  # the kernel may change them with the id
        # Changing ids clears these two: the first of the process, the second of the thread, which may be the loop's.
        _call("prctl", _PR_SET_DUMPABLE, _dumpable())
        if death_signal:
            _call("prctl", _PR_SET_PDEATHSIG, death_signal)
    except OSError:
        os._exit(_CANNOT_RESTORE)  # else this thread would do other clients' work with the wrong user


def acting(context: AgentContext, params: dict[str, Any]) -> tuple[User | None, Owner]:
    """The user to whom the thread has to switch (None: to none), and the owner of new files.

    With ``user`` in ``params`` it is that user, and without it the owner is the one that ``owner`` names, else the sandbox's default user.
    Raises ``user_not_found``, ``invalid_argument``, and ``permission_denied`` if the agent cannot switch users.
    """
    wanted = params.get("user")
    if wanted is None:
        named = text(params, "owner", None)
        if not (named or context.settings.user):
            return None, None
        owner = find_user(named or context.settings.user)
        if named:
            check_ids_exist(owner, ids=context.settings.command_ids)
        return None, (owner.uid, owner.gid)
    if isinstance(wanted, bool) or not isinstance(wanted, str | int) or wanted == "":
        raise HoldfastError("invalid_argument", f"user must be a user name or a uid, not {type(wanted).__name__}")
    user = find_user(str(wanted))
    check_ids_exist(user, ids=context.settings.command_ids)
    if (user.uid, user.gid) == _file_ids():
        return None, None
    if not _may_switch():
        raise HoldfastError(
            "permission_denied",
            f"file operations run as uid {_file_ids()[0]} here and cannot run as {user.name!r:.80}",
            hint="leave user out, or create the sandbox so that its agent is root",
        )
    _dumpable()
    return user, None


def give(target: int | str, owner: Owner, *, directory: int | None = None) -> None:
    """Set the owner of an open file, or of a path, whose final link is not followed, if the agent may. Raises ``OSError``."""
    if owner is None:
        return
    with contextlib.suppress(PermissionError):
        if isinstance(target, str):
            os.chown(target, *owner, dir_fd=directory, follow_symlinks=False)
        else:
            state = os.fstat(target)
            if (state.st_uid, state.st_gid) != owner:
                os.fchown(target, *owner)


def owner_of(replaced: os.stat_result | None, owner: Owner) -> Owner:
    """The owner of a file that is new (None), or that replaces another and gets its owner."""
    return owner if replaced is None else (replaced.st_uid, replaced.st_gid)


def _may_switch() -> bool:
    if os.uname().machine not in _NUMBERS:
        return False
    effective = _CAPABILITIES.unpack(_capabilities())[0]
    return bool(effective >> _CAP_SETUID & 1 and effective >> _CAP_SETGID & 1)


def _file_ids() -> tuple[int, int]:
    """The calling thread's file system ids, which may differ from its effective ids (``node.kernel.namespaces``)."""
    return _call("setfsuid", _NONE), _call("setfsgid", _NONE)


@functools.cache
def _dumpable() -> int:
    """The dumpable attribute before the first switch."""
    return _call("prctl", _PR_GET_DUMPABLE)


def _death_signal() -> int:
    number = ctypes.c_int()
    _call("prctl", _PR_GET_PDEATHSIG, ctypes.byref(number))
    return number.value


def _capabilities() -> bytes:
    data = ctypes.create_string_buffer(_CAPABILITIES.size)
    _call("capget", _CAPABILITY_HEADER, data)
    return data.raw


def _set_capabilities(data: bytes) -> None:
    _call("capset", _CAPABILITY_HEADER, data)


def _set_groups(groups: tuple[int, ...] | list[int]) -> None:
    _call("setgroups", len(groups), struct.pack(f"={len(groups)}I", *groups))


def _set_id(name: str, number: int) -> None:
    _call(name, number)
    if _call(name, _NONE) != number:  # the call returns the previous id and reports no failure
        raise PermissionError(1, f"{name}({number})")


def _call(name: str, *arguments: Any) -> int:
    converted = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    answer = _library().syscall(ctypes.c_long(_numbers()[name]), *converted)
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return int(answer)


@functools.cache
def _numbers() -> dict[str, int]:
    return _NUMBERS[os.uname().machine]


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library
