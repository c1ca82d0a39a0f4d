"""Removing directory trees that hostile code has created. Owns `remove_tree`, which neither recurses nor follows links, and works for any
depth, path length and mode. Called for the files of a sandbox after all of its processes have ended.
"""

from __future__ import annotations

import os
import secrets
import stat


def remove_tree(path: str, trash: str) -> None:
    """Move *path* below *trash* (same file system) and remove it. Does nothing if *path* does not exist.

    Directories are moved up to *trash* one level at a time instead of being descended into.
    """
    try:
        pending = [_move(path, trash)]
    except FileNotFoundError:
        return
    while pending:
        directory = pending.pop()
        pending.extend(_empty(directory, trash))
        os.rmdir(directory)


def remove(path: str, trash: str) -> None:
    """Remove the directory tree or file *path* of a node that was killed."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        remove_tree(path, trash)
    else:
        os.unlink(path)


def _empty(directory: str, trash: str) -> list[str]:
    moved = []
    if os.geteuid() != 0:
        os.chmod(directory, 0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while True:
            # Removing while listing may skip entries, so list again until nothing is left.
            left = False
            with os.scandir(fd) as entries:
                for entry in entries:
                    left = True
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=fd)
                        continue
                    try:
                        os.rmdir(entry.name, dir_fd=fd)
                    except OSError:
                        moved.append(_move(entry.name, trash, fd))
            if not left:
                return moved
    finally:
        os.close(fd)


def _move(name: str, trash: str, dir_fd: int | None = None) -> str:
    target = os.path.join(trash, secrets.token_hex(8))
    if os.geteuid() != 0:
        # Moving a directory changes its "..", which needs write permission for the directory itself.
        os.chmod(name, 0o700, dir_fd=dir_fd)
    os.rename(name, target, src_dir_fd=dir_fd)
    return target
