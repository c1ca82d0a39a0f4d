"""Copying files and trees inside the sandbox, as ``cp -a`` does: owners, modes, times, attributes, holes and links are kept.

Other processes may change both trees at the same time: links inside a tree are not followed. The copy needs two open directories and no
recursion, so the depth is not limited. Existing files are merged or overwritten as ``cp`` does. The work is done in time slices, so that
a large tree does not occupy a thread, and stops when its client has left. Called by ``operations`` and ``moves``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from holdfast_wire.errors import HoldfastError
from holdfast_wire.paths import shown, wire

from session_agent.agent.files.descriptors import opened
from session_agent.agent.files.transfers import Info, Source
from session_agent.agent.request.paths import os_failure
from session_agent.trees import DIRECTORY, Cursor, Identity, identity

from .contents import copy_attributes, copy_contents

_FOLLOWED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SLICE_S = 0.05
"""Length of one time slice."""
_MOST_LINKS = 100_000
"""Hard-linked files that are remembered; of further ones each link becomes a separate file."""


class _Level(NamedTuple):
    """One directory that is being copied: the names that are left, and whether the target was made here."""

    names: list[str]
    is_new: bool


def copy(path: str, to: str) -> Source:
    """Copy ``path`` to ``to``, or into it if ``to`` is a directory. The source has no content: an empty piece ends every time slice."""
    yield {}
    copying = _Copying(path, to)
    slice_ends = time.monotonic() + _SLICE_S
    try:
        with copying.held, contextlib.closing(copying.copy()) as steps:
            for _ in steps:
                if time.monotonic() >= slice_ends:
                    yield b""
                    slice_ends = time.monotonic() + _SLICE_S
    except OSError as error:
        named = isinstance(error.filename, str) and error.filename.startswith("/")
        where = error.filename if named else copying.place()
        typed = os_failure(error, where)
        typed.detail["path"] = wire(where)
        raise typed from None
    return copying.counts


class _Copying:
    """The state of one copy."""

    def __init__(self, path: str, to: str) -> None:
        self._path = path
        self._to = to
        self.counts: Info = {"entries": 0, "bytes": 0}
        self._names: list[str] = []
        self._links: dict[Identity, str] = {}
        self.held = contextlib.ExitStack()
        """Closes the descriptors of the whole copy."""

    def place(self) -> str:
        """The path that is being copied now."""
        return "/".join([self._path.rstrip("/"), *self._names])

    # Source and target -------------------------------------------------------------------------------------------

    def copy(self) -> Generator[None, None, None]:
        """Copy; yields after every piece of work."""
        path, to = self._path, self._to
        base = os.path.basename(path.rstrip("/"))
        follows = path.endswith("/") or base in ("", ".", "..")  # this names a directory, also through a link
        state = os.stat(path) if follows else os.lstat(path)
        is_tree = stat.S_ISDIR(state.st_mode)
        if follows and not is_tree:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if os.path.isdir(to):
            target = to if base in ("", ".", "..") else f"{to.rstrip('/')}/{base}"
        elif to.endswith("/") and not is_tree:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), to)
        else:
            target = to.rstrip("/")
            if stat.S_ISREG(state.st_mode):
                target = os.path.realpath(target)  # a link that was named is followed, as cp does
        self._check_apart(path, target, state)
        if is_tree:
            yield from self._tree(self._cursor(os.open(path, _FOLLOWED if follows else DIRECTORY)), target)
            return
        parent, name = os.path.split(path)
        source = self._hold(os.open(parent or "/", _FOLLOWED))
        parent, target_name = os.path.split(target)
        there = self._hold(self._opened(parent or "/", _FOLLOWED, target))
        try:
            yield from self._one(name, source, target_name, there, state)
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        except (IsADirectoryError, NotADirectoryError) as error:
            raise OSError(error.errno, error.strerror, target) from None

    def _check_apart(self, path: str, target: str, state: os.stat_result) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            there = os.lstat(target)
            if (there.st_dev, there.st_ino) == (state.st_dev, state.st_ino) and not stat.S_ISDIR(state.st_mode):
                raise HoldfastError("invalid_path", f"{shown(path)} and {shown(target)} are the same file", hint="")
        if stat.S_ISDIR(state.st_mode):
            source = os.path.realpath(path)
            real = os.path.realpath(target)
            if real == source or real.startswith(source.rstrip("/") + "/"):
                raise HoldfastError("invalid_path", f"{shown(path)} cannot be copied into itself: {shown(target)}", hint="")

    def _opened(self, path: str, flags: int, named: str) -> int:
        try:
            return os.open(path, flags)
        except OSError as error:
            raise OSError(error.errno, error.strerror, named) from None

    def _hold(self, descriptor: int) -> int:
        self.held.callback(os.close, descriptor)
        return descriptor

    def _cursor(self, descriptor: int) -> Cursor:
        return self.held.enter_context(contextlib.closing(Cursor(descriptor)))

    # Trees -------------------------------------------------------------------------------------------------------

    def _tree(self, source: Cursor, target: str) -> Iterator[None]:
        parent, name = os.path.split(target.rstrip("/") or "/")
        outer = self._hold(self._opened(parent or "/", _FOLLOWED, target))
        if name in ("", ".", ".."):
            is_new, made = False, self._opened(target, _FOLLOWED, target)
        else:
            try:
                is_new, made = self._made(name, outer, follow=True)
            except OSError as error:
                raise OSError(error.errno, error.strerror, target) from None
        copy = self._cursor(made)
        top, own = self._hold(os.dup(made)), identity(made)
        levels = [_Level(os.listdir(source.here), is_new)]
        self.counts["entries"] += 1
        while True:
            yield
            level = levels[-1]
            if level.names:
                name = level.names.pop()
                self._names.append(name)
                try:
                    state = os.stat(name, dir_fd=source.here, follow_symlinks=False)
                except FileNotFoundError:
                    self._names.pop()
                    continue  # removed since it was listed
                if not stat.S_ISDIR(state.st_mode):
                    if not self._linked(state, name, copy.here, top):
                        yield from self._one(name, source.here, name, copy.here, state)
                        if state.st_nlink > 1 and len(self._links) < _MOST_LINKS:
                            self._links[state.st_dev, state.st_ino] = "/".join(self._names)
                    self._names.pop()
                    continue
                inner = os.open(name, DIRECTORY, dir_fd=source.here)
                if identity(inner) == own:
                    os.close(inner)
                    raise HoldfastError("invalid_path", f"{shown(self._path)} cannot be copied into itself", hint="")
                source.enter(inner)
                is_new, made = self._made(name, copy.here)
                copy.enter(made)
                levels.append(_Level(os.listdir(inner), is_new))
                self.counts["entries"] += 1
                continue
            self._copy_metadata(source.here, copy.here, os.fstat(source.here), is_new=level.is_new)
            levels.pop()
            if not levels:
                return
            self._names.pop()
            source.leave()
            copy.leave()

    def _made(self, name: str, directory: int, *, follow: bool = False) -> tuple[bool, int]:
        """Create or open a directory in ``directory``; returns whether it is new, and its descriptor."""
        is_new = True
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            is_new = False
        try:
            return is_new, os.open(name, _FOLLOWED if follow else DIRECTORY, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link is not a directory here
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            raise

    def _linked(self, state: os.stat_result, name: str, there: int, top: int) -> bool:
        """If the file was copied already under another name, link to that copy. Returns whether it did."""
        known = self._links.get((state.st_dev, state.st_ino)) if state.st_nlink > 1 else None
        if known is None:
            return False
        try:
            _replacing(name, there, lambda: os.link(known, name, src_dir_fd=top, dst_dir_fd=there, follow_symlinks=False))
        except IsADirectoryError:
            raise
        except OSError:
            return False  # it is copied instead
        self.counts["entries"] += 1
        return True

    # Files, links and special files ------------------------------------------------------------------------------

    def _one(self, name: str, here: int, target: str, there: int, state: os.stat_result) -> Iterator[None]:
        if stat.S_ISREG(state.st_mode):
            yield from self._regular(name, here, target, there)
        elif stat.S_ISLNK(state.st_mode):
            link = os.readlink(name, dir_fd=here)
            try:
                os.symlink(link, target, dir_fd=there)
            except FileExistsError:
                if _leads_to(name, here, target, there):
                    wrong = f"{shown(name)} is a link to {shown(target)} and would replace it"
                    raise HoldfastError("invalid_path", wrong, hint="") from None
                _clear(target, there)
                os.symlink(link, target, dir_fd=there)
        else:
            _replacing(target, there, lambda: os.mknod(target, state.st_mode, state.st_rdev, dir_fd=there))
        self.counts["entries"] += 1
        if stat.S_ISREG(state.st_mode):
            return
        with contextlib.suppress(PermissionError):
            os.chown(target, state.st_uid, state.st_gid, dir_fd=there, follow_symlinks=False)
        if not stat.S_ISLNK(state.st_mode):
            with opened(target, os.O_PATH | os.O_NOFOLLOW, directory=there) as made, contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{made}", stat.S_IMODE(state.st_mode))  # bits that the umask has removed
        os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns), dir_fd=there, follow_symlinks=False)

    def _regular(self, name: str, here: int, target: str, there: int) -> Iterator[None]:
        with opened(name, _READ, directory=here) as source:
            state = os.fstat(source)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))  # it was replaced since the stat
            is_new, file = self._created(target, there, state)
            try:
                for size in copy_contents(source, file, state.st_size):
                    self.counts["bytes"] += size
                    yield
                if stat.S_ISREG(os.fstat(file).st_mode):
                    self._copy_metadata(source, file, state, is_new=is_new)
            finally:
                os.close(file)

    def _created(self, name: str, there: int, source: os.stat_result) -> tuple[bool, int]:
        for _ in range(10):  # others may create and remove entries there
            try:
                return True, os.open(name, _WRITE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=there)
            except FileExistsError:
                pass
            try:
                file = os.open(name, _WRITE, dir_fd=there)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO, errno.ENOENT):
                    raise
                _clear(name, there)  # a link, pipe or socket: replaced instead of written through
                continue
            state = os.fstat(file)
            if stat.S_ISFIFO(state.st_mode):
                os.close(file)
                _clear(name, there)
                continue
            if (state.st_dev, state.st_ino) == (source.st_dev, source.st_ino):
                os.close(file)
                raise HoldfastError("invalid_path", f"{shown(name)} would be copied onto itself", hint="")
            if stat.S_ISREG(state.st_mode) and state.st_nlink > 1:  # replaced, so that its other links keep their content
                os.close(file)
                _clear(name, there)
                continue
            if stat.S_ISREG(state.st_mode):
                os.ftruncate(file, 0)
            return False, file
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def _copy_metadata(self, source: int, target: int, state: os.stat_result, *, is_new: bool) -> None:
        """Set owner, attributes, mode and times. Without permission to change the owner it stays the copying user, as with ``cp``."""
        mode = stat.S_IMODE(state.st_mode)
        try:
            os.fchown(target, state.st_uid, state.st_gid)
        except PermissionError:
            mode &= ~(stat.S_ISUID | stat.S_ISGID)  # these bits were meant for the other owner
        copy_attributes(source, target)
        with contextlib.nullcontext() if is_new else contextlib.suppress(PermissionError):  # an existing file may have another owner
            os.fchmod(target, mode)
            os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def _replacing(name: str, directory: int, create: Callable[[], None]) -> None:
    """Call ``create``; if something with this name exists, remove it first, unless it is a directory."""
    try:
        create()
    except FileExistsError:
        _clear(name, directory)
        create()


def _clear(name: str, directory: int) -> None:
    """Remove an existing entry, unless it is a directory."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError:
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        raise


def _leads_to(link: str, here: int, target: str, there: int) -> bool:
    """Whether the link's target is the file that the copied link would replace. ``cp`` refuses that too."""
    try:
        found = os.stat(link, dir_fd=here)
        replaced = os.stat(target, dir_fd=there, follow_symlinks=False)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (replaced.st_dev, replaced.st_ino)
