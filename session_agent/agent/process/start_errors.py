"""Why a process could not be started, in the words of a shell or as a typed error.

Owns the difference between a program that cannot be executed, which a command reports as its exit code, and a failure of the sandbox or of
the request. Used by ``fork``; commands, shells and terminals catch ``CannotExecuteError``.
"""

from __future__ import annotations

import errno
import os

from holdfast_wire.errors import HoldfastError

_PROGRAM_ERRORS = (errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ETXTBSY, errno.ELIBBAD, errno.EINVAL)
"""Errors of exec that are caused by the program that was named, not by the sandbox."""


class CannotExecuteError(Exception):
    """The program was not found (127) or cannot be executed (126): ``message`` is what a shell would print.

    ``why`` is ``not_found``, ``permission_denied`` or ``not_executable``.
    """

    def __init__(self, exit_code: int, message: str, why: str = "not_found") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
        self.why = why


def explain(error: Exception, program: str, cwd: str) -> Exception:
    """The error for the client: ``CannotExecuteError`` or ``HoldfastError``."""
    if isinstance(error, ValueError):
        return HoldfastError("spawn_failed", f"cannot start {program!r:.200}: {error}")
    assert isinstance(error, OSError)
    if error.filename == cwd and not (os.path.isdir(cwd) and error.filename == program):
        code = "cwd_forbidden" if error.errno in (errno.EACCES, errno.EPERM) else "cwd_not_found"
        message = f"cannot change to the working directory {cwd!r:.200}: {error.strerror}"
        return HoldfastError(code, message, detail={"cwd": os.fsencode(cwd).decode("utf-8", "replace")})
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if "/" in program and os.path.exists(program):
            return CannotExecuteError(126, f"{program}: the interpreter it names is missing", "not_executable")
        return CannotExecuteError(127, f"{program}: command not found")
    if error.errno == errno.E2BIG:
        return HoldfastError("arguments_too_long", f"the arguments and environment of {program!r:.200} are too long for the kernel")
    if isinstance(error, PermissionError) or error.errno in _PROGRAM_ERRORS:
        why = "permission_denied" if isinstance(error, PermissionError) else "not_executable"
        return CannotExecuteError(126, f"{program:.300}: {error.strerror}", why)
    return HoldfastError(
        "spawn_failed",
        f"cannot start {program!r:.200}: {error.strerror}",
        hint="the sandbox may be out of processes, memory or descriptors",
    )
