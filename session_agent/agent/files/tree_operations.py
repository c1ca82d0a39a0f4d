"""Whole trees on their way: removed however deep they are, and moved where a rename does not reach.

Owns going through a tree that others may change at the same time, without following links that they create in it. Paths are absolute; what
cannot be done is an ``OSError`` that names the full path. Called by ``operations``.
"""

from __future__ import annotations

import errno
import os
import stat

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_Identity = tuple[int, int]


def remove_tree(path: str) -> None:
    """``rm -r`` of a directory. One descriptor at a time and no recursion: a tree may be deeper than either would go."""
    top, name = os.path.split(path.rstrip("/"))
    names: list[str] = []
    here = os.open(top or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        above = [_identity(here)]
        waiting = [[name]]
        while True:
            if waiting[-1]:
                name = waiting[-1].pop()
                try:
                    inner = os.open(name, _DIRECTORY, dir_fd=here)
                except FileNotFoundError:
                    continue
                except NotADirectoryError:  # a file or a link has taken its place
                    os.unlink(name, dir_fd=here)
                    continue
                os.close(here)
                here = inner
                names.append(name)
                above.append(_identity(here))
                waiting.append(_clear(here))
                continue
            if not names:
                return
            up = os.open("..", _DIRECTORY, dir_fd=here)
            os.close(here)
            here = up
            above.pop()
            waiting.pop()
            if _identity(here) != above[-1]:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))  # it was moved: what is here now is not ours to remove
            os.rmdir(names.pop(), dir_fd=here)
    except OSError as error:
        within = [part for part in (top, *names, error.filename) if isinstance(part, str)]
        raise OSError(error.errno, error.strerror, "/".join(within)) from None
    finally:
        os.close(here)


def _clear(directory: int) -> list[str]:
    """Remove all that is no directory; the names of those that are."""
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in found if is_directory]


def _identity(descriptor: int) -> _Identity:
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino


def move_across(path: str, to: str) -> None:
    """Copy ``path`` beside ``to``, put it there in one step as a rename would, and remove what it was copied from."""
    path, to = path.rstrip("/"), to.rstrip("/")
    _check_place(path, to)
    beside = f"{os.path.dirname(to)}/.holdfast-{os.urandom(8).hex()}"
    try:
        _copy(path, beside)
        os.rename(beside, to)
    except BaseException as problem:
        if os.path.lexists(beside):
            _remove(beside)
        if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise OSError(problem.errno, problem.strerror, to) from None  # and not where the bytes came from
        raise
    _remove(path)


def _check_place(path: str, to: str) -> None:
    """What the rename at the end would refuse is refused before everything is copied."""
    try:
        there = os.lstat(to)
    except FileNotFoundError:
        return
    is_tree = stat.S_ISDIR(os.lstat(path).st_mode)
    wrong = 0
    if not stat.S_ISDIR(there.st_mode):
        wrong = errno.ENOTDIR if is_tree else 0
    elif not is_tree:
        wrong = errno.EISDIR
    elif os.listdir(to):
        wrong = errno.ENOTEMPTY
    if wrong:
        raise OSError(wrong, os.strerror(wrong), to)


def _remove(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        remove_tree(path)
    else:
        os.unlink(path)


def _copy(path: str, to: str) -> None:
    """All of it with owners, modes and times. Directories get theirs last: a read-only one would refuse its members."""
    directories: list[tuple[str, str, os.stat_result]] = []
    waiting = [(path, to)]
    while waiting:
        source, target = waiting.pop()
        state = os.lstat(source)
        if stat.S_ISDIR(state.st_mode):
            os.mkdir(target, 0o700)
            directories.append((source, target, state))
            waiting += [(f"{source}/{name}", f"{target}/{name}") for name in os.listdir(source)]
        else:
            _copy_one(source, target, state)
            _dress(source, target, state)
    for source, target, state in reversed(directories):
        _dress(source, target, state)


def _copy_one(source: str, target: str, state: os.stat_result) -> None:
    if stat.S_ISREG(state.st_mode):
        import shutil  # brings compressors: only for those who need it

        shutil.copyfile(source, target, follow_symlinks=False)
    elif stat.S_ISLNK(state.st_mode):
        os.symlink(os.readlink(source), target)
    else:
        os.mknod(target, state.st_mode, state.st_rdev)


def _dress(source: str, target: str, state: os.stat_result) -> None:
    import shutil

    try:
        os.chown(target, state.st_uid, state.st_gid, follow_symlinks=False)
    except PermissionError:
        pass  # only root gives files away; then they are the mover's, as with mv
    shutil.copystat(source, target, follow_symlinks=False)  # after the owner, whose change takes privilege bits away
