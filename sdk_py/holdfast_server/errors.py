"""The error of a stack that cannot start: what is wrong, and what to do about it.

Owns the one exception of the runner. `__main__` prints it and exits with status 2.
"""

from __future__ import annotations

import errno

_CODES = {
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "read_only",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.ENOENT: "file_not_found",
    errno.EEXIST: "file_exists",
    errno.EISDIR: "is_a_directory",
    errno.ENOTDIR: "not_a_directory",
}


class UpError(Exception):
    """The stack cannot start; `hint` states what to do about it, `code` is one of the project's error table."""

    def __init__(self, message: str, *, hint: str, code: str = "invalid_argument", cause: OSError | None = None) -> None:
        """`cause`: the error of the operating system, which is added to the message and sets the code."""
        super().__init__(message if cause is None else f"{message}: {cause.strerror}")
        self.hint = hint
        self.code = code if cause is None else _CODES.get(cause.errno or 0, "io_error")
