"""Resolving untrusted relative paths inside a directory, without races with symbolic links that other processes create or replace.

Uses ``openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)`` if the kernel has it (5.6 or newer). Otherwise it walks the path and holds a
descriptor of every directory, so that ``..`` returns to the directory that was really passed and never above the start. Both follow links
that stay inside and refuse all others. Called by archives and patches.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.request.paths import shown

_SYS_OPENAT2 = 437  # one number on every architecture that Linux numbers alike (all but alpha)
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_MOST_LINKS = 40  # the kernel's own MAXSYMLINKS
_RETRIES = 128  # openat2 answers EAGAIN when a rename anywhere raced with a ".."

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

Resolver = Callable[[int, str, int, int], int]


def split(path: str) -> tuple[str, str]:
    """``path`` as (parent, name), without ``.`` components. Raises ``invalid_path`` for ``..``."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise HoldfastError("invalid_path", f"{shown(path)}: '..' would leave the directory")
    return "/".join(parts[:-1]), parts[-1] if parts else ""


class SafeRoot:
    """The directory ``root``, held open. Every method raises ``OSError``; a path that would leave it is ``EXDEV``."""

    def __init__(self, root: str, resolver: Resolver | None = None) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open = resolver or (_openat2 if _has_openat2(self._root) else walk)
        self._cached: tuple[str, int] | None = None

    def close(self) -> None:
        """Close the descriptors."""
        self._forget()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """A descriptor of ``path``; a final symbolic link is followed (inside) unless ``O_NOFOLLOW`` is in ``flags``."""
        return self._open(self._root, path or ".", flags | os.O_CLOEXEC, mode)

    def parent(self, path: str, made: Callable[[int], None] | None = None) -> tuple[int, str]:
        """The directory that holds ``path`` and the name in it; the descriptor lives until the next call.

        With ``made``, missing directories are created and passed to it as descriptors (to give them an owner).
        """
        parent, name = split(path)
        if self._cached is not None and self._cached[0] == parent:
            return self._cached[1], name
        try:
            descriptor = self.open(parent, _DIRECTORY)
        except FileNotFoundError:
            if made is None:
                raise
            descriptor = self._make(parent, made)
        self._forget()
        self._cached = (parent, descriptor)
        return descriptor, name

    def _make(self, path: str, made: Callable[[int], None]) -> int:
        parts = path.split("/")
        present = len(parts) - 1
        descriptor = -1
        while descriptor < 0:
            try:
                descriptor = self.open("/".join(parts[:present]), _DIRECTORY)
            except FileNotFoundError:
                if not present:
                    raise
                present -= 1
        try:
            for depth in range(present, len(parts)):
                with contextlib.suppress(FileExistsError):  # another process was faster: the open checks what is there
                    os.mkdir(parts[depth], 0o755, dir_fd=descriptor)
                    inner = os.open(parts[depth], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                    try:
                        made(inner)
                    finally:
                        os.close(inner)
                step = self.open("/".join(parts[: depth + 1]), _DIRECTORY)
                os.close(descriptor)
                descriptor = step
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _forget(self) -> None:
        if self._cached is not None:
            os.close(self._cached[1])
            self._cached = None


def walk(root: int, path: str, flags: int, mode: int) -> int:
    """The fallback for ``openat2(RESOLVE_BENEATH)``, with the same results."""
    if path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    todo = _parts(path)
    passed: list[int] = []
    links = 0
    try:
        while todo:
            part = todo.pop()
            here = passed[-1] if passed else root
            if part == ".":
                continue
            if part == "..":
                if not passed:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                os.close(passed.pop())
                continue
            last = not todo
            if last and (flags & os.O_NOFOLLOW or flags & (os.O_CREAT | os.O_EXCL) == os.O_CREAT | os.O_EXCL):
                return os.open(part, flags | os.O_NOFOLLOW, mode, dir_fd=here)
            target = _link(here, part)
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if target.startswith("/"):
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                todo += _parts(target)
            elif last:
                return os.open(part, flags | os.O_NOFOLLOW, mode, dir_fd=here)
            else:
                passed.append(os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here))
        return os.open(".", flags & ~os.O_NOFOLLOW, mode, dir_fd=passed[-1] if passed else root)
    finally:
        for descriptor in passed:
            os.close(descriptor)


def _parts(path: str) -> list[str]:
    """The components, last one first. A final ``.`` or slash is kept as ``.``: the component before it must be a directory."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.endswith(("/", "/.")):
        parts.append(".")
    return parts[::-1]


def _link(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # not a symbolic link
            return None
        raise


def _openat2(root: int, path: str, flags: int, mode: int) -> int:
    if posixpath.isabs(path):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    for _ in range(_RETRIES):
        descriptor = _syscall(root, path, flags, mode if flags & os.O_CREAT else 0)
        if descriptor >= 0:
            return descriptor
        if -descriptor != errno.EAGAIN:
            break
    raise OSError(-descriptor, os.strerror(-descriptor), path)


def _has_openat2(root: int) -> bool:
    """Whether openat2 works: old kernels fail with ENOSYS, some seccomp filters with EPERM."""
    descriptor = _syscall(root, ".", _DIRECTORY, 0)
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0


_calls: Any = None


def _syscall(root: int, path: str, flags: int, mode: int) -> int:
    """The system call: a descriptor, or minus errno. Loads ctypes on first use, because most agents never need it."""
    global _calls
    import ctypes

    if _calls is None:
        _calls = ctypes.CDLL(None, use_errno=True)
    how = (ctypes.c_uint64 * 3)(flags, mode, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    answer = _calls.syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(root), ctypes.c_char_p(os.fsencode(path)), how, ctypes.c_size_t(24))
    return int(answer) if answer >= 0 else -ctypes.get_errno()
