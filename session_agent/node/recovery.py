"""Cleaning up after a node that was killed.

Owns the cleanup at start: it removes the cgroups and files of the last run. Processes need none, since every sandbox dies with its node
(PR_SET_PDEATHSIG), nor do mounts, which are in namespaces that end with their processes. The controller
concludes that their sandboxes are lost, because ``Events.began_at`` is later than their creation.
A ``run_dir`` outside of the data directory is locked by its node and has a link to its data directory, so that any later node of the
machine can remove it when its node is dead and its data directory is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import logging
import os
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent import trees
from session_agent.node.kernel.hierarchies import Hierarchies, detect, remove
from session_agent.node.settings import NodeSettings

log = logging.getLogger(__name__)
_DATA_LINK = "data"
_REMOVED = ".removed"
"""The end of the name of a ``run_dir`` that is being removed: it belongs to no node, so any node of its user may finish that."""


def sweep(settings: NodeSettings, hierarchies: Hierarchies) -> None:
    """Remove the remains of an earlier node with this data directory: its processes first, which may still write."""
    for hierarchy in hierarchies.limiting:
        for name in os.listdir(hierarchy.base):
            if os.path.isdir(os.path.join(hierarchy.base, name)):
                _try(remove, os.path.join(hierarchy.base, name))
    for directory in {settings.run_dir, settings.sandboxes_dir}:
        for name in os.listdir(directory):
            if name != _DATA_LINK:
                _try(functools.partial(trees.remove, unlock=os.geteuid() != 0), os.path.join(directory, name))


def make_directories(settings: NodeSettings) -> None:
    """The folders of sandboxes, closed to other users. Raises ``HoldfastError`` where one belongs to another user."""
    for path in (settings.sandboxes_dir, settings.run_dir):
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.lstat(path).st_uid != os.geteuid():
            raise HoldfastError("runtime_unavailable", f"{path} belongs to another user", hint="remove it, or choose another HOLDFAST_DATA")
        os.chmod(path, 0o700)


def claim_run_dir(settings: NodeSettings) -> int | None:
    """Lock ``run_dir`` and link it to its data directory. Returns the descriptor to keep open; None if it is in the data directory.

    Raises ``HoldfastError`` if another node has it, such as one in another container that shares the file system in memory.
    """
    if settings.run_dir == settings.sandboxes_dir:
        return None
    fd = os.open(settings.run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileExistsError):
            os.symlink(settings.data_dir, f"{settings.run_dir}/{_DATA_LINK}")
    except BaseException as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            message = f"another node is using {settings.run_dir}"
            raise HoldfastError("runtime_unavailable", message, hint="stop it, or choose another HOLDFAST_DATA") from error
        raise
    return fd


def remove_run_dir(settings: NodeSettings) -> None:
    """Remove ``run_dir`` and the sockets in it, which no process uses any more. Raises ``OSError``.

    Where this ends early, ``sweep_abandoned`` of a later node finds the folder, by its link or by its name.
    """
    if settings.run_dir == settings.sandboxes_dir:
        return
    fd = os.open(settings.run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        removed = f"{settings.run_dir}.{os.urandom(8).hex()}{_REMOVED}"  # a name that no other user can have created
        os.rename(settings.run_dir, removed)
        _remove_folder(fd, removed)
    finally:
        os.close(fd)


def _remove_folder(fd: int, path: str) -> None:
    """Remove the folder that is open as ``fd``: ``path`` is in a folder of all users, in which another user may replace it."""
    for name in os.listdir(fd):
        os.unlink(name, dir_fd=fd)
    os.rmdir(path)


def sweep_abandoned(settings: NodeSettings) -> None:
    """Remove the remains of other nodes that have ended and whose data directory no longer exists: no other node would remove them."""
    if settings.run_dir == settings.sandboxes_dir:
        return
    parent = os.path.dirname(settings.run_dir)
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if name.startswith("holdfast-") and path != settings.run_dir:
            _try(_remove_if_abandoned, settings, path)


def _remove_if_abandoned(settings: NodeSettings, path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it belongs to another user, or is not a folder
        return
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return
        if path.endswith(_REMOVED):
            with contextlib.suppress(BlockingIOError, FileNotFoundError):  # its node is removing it or has removed it
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_folder(fd, path)
            return
        try:
            data_dir = os.readlink(_DATA_LINK, dir_fd=fd)
            other = dataclasses.replace(settings, data_dir=data_dir)
            # Not locked before: a node that starts now has its data directory, and would mistake the lock for that of another node.
            if other.run_dir != path or not _is_gone(data_dir):
                return
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):  # its node is running, or is of a release without the link
            return
        if not _is_gone(data_dir):
            return
        log.warning("removing the remains of a killed node, whose data directory %s no longer exists", data_dir)
        for base in detect(other.tag).bases:
            _try(remove, base)
        remove_run_dir(other)
    finally:
        os.close(fd)


def _is_gone(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def sweep_all(settings: NodeSettings) -> None:
    """For a node that is not started again: remove the remains of the last one, and its own control groups.

    Raises ``HoldfastError`` if another node has its ``run_dir``.
    """
    if not os.path.isdir(settings.sandboxes_dir):
        return
    make_directories(settings)
    claimed = claim_run_dir(settings)
    try:
        hierarchies = detect(settings.tag)
        sweep(settings, hierarchies)
        for base in hierarchies.bases:
            _try(remove, base)
        _try(remove_run_dir, settings)
    finally:
        if claimed is not None:
            os.close(claimed)


def _try(step: Any, *args: Any) -> None:
    try:
        step(*args)
    except OSError as error:
        log.error("cannot remove what an earlier run left: %s", error)
