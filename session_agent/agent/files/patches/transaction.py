"""A transaction over several files: all of them are replaced, or none. Used for patches; ``write`` replaces a single uploaded file.

Owns temporary files beside the targets, the replacement and the undo. Reads no file and knows no diffs. During the replacement another
process may see some old and some new files, but never a partial file. Called by ``patch``.
"""

from __future__ import annotations

import contextlib
import os

from holdfast_wire.archives.safe_path import SafeRoot
from holdfast_wire.fast_dataclass import dataclass

from session_agent.agent.files.descriptors import CREATE, opened, temporary_name, write_all
from session_agent.agent.files.file_user import Owner, give, owner_of
from session_agent.agent.request.paths import os_failure


@dataclass(slots=True)
class NewFile:
    """The new state of a path. ``content`` None: it is removed; ``mode`` None: the default; ``was``: the state of the existing file."""

    content: bytes | None
    mode: int | None = None
    link: bool = False
    was: os.stat_result | None = None


def replace_together(root: SafeRoot, where: str, files: dict[str, NewFile], owner: Owner) -> None:
    """Bring every path to its new state. Raises ``HoldfastError`` with the path below ``where``; then nothing is changed."""
    path = ""
    staged: dict[str, str] = {}
    kept: dict[str, str | None] = {}
    try:
        with contextlib.ExitStack() as undo:
            for path, file in files.items():
                undo.callback(_prune, root, path)
                if file.content is not None:
                    parent, _ = root.parent(path, lambda directory: give(directory, owner))
                    staged[path] = temporary_name()
                    undo.callback(_discard, root, path, staged[path])
                    _create(staged[path], parent, file, file.content, owner)
            for path, file in files.items():
                kept[path] = _keep(root, path, file)
                undo.callback(_restore, root, path, kept[path])
                if path in staged:
                    parent, name = root.parent(path)
                    os.rename(staged[path], name, src_dir_fd=parent, dst_dir_fd=parent)
            undo.pop_all()
    except OSError as error:
        raise os_failure(error, f"{where.rstrip('/')}/{path}") from None
    for path, file in files.items():
        _discard(root, path, kept[path])
        if file.content is None:
            _prune(root, path)


def _create(name: str, directory: int, file: NewFile, content: bytes, owner: Owner) -> None:
    owner = owner_of(file.was, owner)
    if file.link:
        os.symlink(os.fsdecode(content.removesuffix(b"\n")), name, dir_fd=directory)
        give(name, owner, directory=directory)
        return
    with opened(name, CREATE, directory=directory) as output:
        write_all(output, content)
        give(output, owner)
        os.fchmod(output, 0o644 if file.mode is None else file.mode)


def _keep(root: SafeRoot, path: str, file: NewFile) -> str | None:
    """Keep the existing file, if there is one, under the name that is returned."""
    kept = temporary_name()
    try:
        parent, name = root.parent(path)
        if file.content is not None:  # a hard link keeps the old file in place until the new one replaces it
            with contextlib.suppress(OSError):  # a file system may have no hard links
                os.link(name, kept, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
                return kept
        os.rename(name, kept, src_dir_fd=parent, dst_dir_fd=parent)
    except FileNotFoundError:
        return None
    return kept


def _restore(root: SafeRoot, path: str, kept: str | None) -> None:
    if kept is None:
        _discard(root, path, os.path.basename(path))
        return
    with contextlib.suppress(OSError):
        parent, name = root.parent(path)
        os.rename(kept, name, src_dir_fd=parent, dst_dir_fd=parent)
    _discard(root, path, kept)  # rename leaves both names if they are links to the same file


def _discard(root: SafeRoot, path: str, name: str | None) -> None:
    """Remove a file beside ``path``."""
    if name is not None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=root.parent(path)[0])


def _prune(root: SafeRoot, path: str) -> None:
    """Remove parent directories that are empty now, as git does."""
    while path := os.path.dirname(path):
        try:
            parent, name = root.parent(path)
            os.rmdir(name, dir_fd=parent)
        except OSError:
            return
