"""Replacing several files together: if one replacement fails, all are undone.

Owns temporary files beside the targets, the replacement and the undo. Reads no file and knows no diffs. During the replacement another
process may see some old and some new files, but never a partial file. Called by ``patch``.
"""

from __future__ import annotations

import contextlib
import os

from holdfast_wire.records import dataclass

from session_agent.agent.request.paths import os_failure

from .file_user import Owner, give, owner_of
from .safe_path import SafeRoot
from .write import CREATE, temporary_name


@dataclass(slots=True)
class NewFile:
    """The new state of a path. ``content`` None: it is removed; ``mode`` None: the default; ``was``: the state of the existing file."""

    content: bytes | None
    mode: int | None = None
    link: bool = False
    was: os.stat_result | None = None
    changed: bool = False


class Exchange:
    """One exchange of files under ``root``."""

    def __init__(self, root: SafeRoot, owner: Owner) -> None:
        self._root = root
        self._owner = owner
        self._files: dict[str, NewFile] = {}
        self._staged: list[tuple[str, str]] = []  # path, temporary name
        self._swapped: list[tuple[str, str | None]] = []  # path, name of what was there

    def make(self, where: str, files: dict[str, NewFile]) -> None:
        """Bring every path to its new state. Raises ``HoldfastError`` with the path below ``where``; then nothing is changed."""
        self._files = files
        current = ""
        try:
            for current, file in files.items():
                if file.content is not None:
                    self._stage(current, file)
            staged = dict(self._staged)
            for current in files:
                self._swap(current, staged.get(current))
        except OSError as error:
            self._undo()
            self._prune(current)
            raise os_failure(error, f"{where.rstrip('/')}/{current}") from None
        for path, kept in self._swapped:
            self._discard(path, kept)
            if self._files[path].content is None:
                self._prune(path)

    def _parent(self, path: str) -> tuple[int, str]:
        return self._root.parent(path, lambda directory: give(directory, self._owner))

    def _stage(self, path: str, file: NewFile) -> None:
        parent, _ = self._parent(path)
        temporary = temporary_name()
        content = file.content or b""
        owner = owner_of(file.was, self._owner)
        if file.link:
            os.symlink(os.fsdecode(content.removesuffix(b"\n")), temporary, dir_fd=parent)
            self._staged.append((path, temporary))
            give(temporary, owner, directory=parent)
            return
        descriptor = os.open(temporary, CREATE, 0o600, dir_fd=parent)
        self._staged.append((path, temporary))
        with open(descriptor, "wb") as output:
            output.write(content)
            output.flush()
            give(descriptor, owner)
            os.fchmod(descriptor, 0o644 if file.mode is None else file.mode)

    def _swap(self, path: str, temporary: str | None) -> None:
        parent, name = self._parent(path)
        aside = temporary_name()
        kept: str | None = aside
        try:
            if temporary is None:
                os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
            else:  # a hard link keeps the old file in place until the new one replaces it
                os.link(name, aside, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            kept = None
        except OSError:
            if temporary is None:
                raise
            os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)  # a file system without hard links
        self._swapped.append((path, kept))
        if temporary is not None:
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)

    def _undo(self) -> None:
        for path, kept in reversed(self._swapped):
            with contextlib.suppress(OSError):
                parent, name = self._root.parent(path)
                if kept is not None:
                    os.rename(kept, name, src_dir_fd=parent, dst_dir_fd=parent)
                    self._discard(path, kept)  # rename leaves both names if they are links to the same file
                elif self._files[path].was is None:
                    os.unlink(name, dir_fd=parent)
        for path, temporary in self._staged:
            self._discard(path, temporary)
            if self._files[path].was is None:
                self._prune(path)

    def _discard(self, path: str, name: str | None) -> None:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._root.parent(path)[0])

    def _prune(self, path: str) -> None:
        """Remove parent directories that are empty now, as git does."""
        directory = os.path.dirname(path)
        while directory:
            try:
                parent, name = self._root.parent(directory)
                os.rmdir(name, dir_fd=parent)
            except OSError:
                return
            directory = os.path.dirname(directory)
