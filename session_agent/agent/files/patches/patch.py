"""The channel kind ``patch``: applies a diff to files, completely or not at all.

Owns which files the names in a diff refer to and their new content; ``transaction`` replaces them. Every image gets the same strict
behaviour: ``git apply`` is not used, because its result depends on the version and configuration of git in the image and on surrounding
repositories. Paths cannot leave ``cwd``. A diff that does not apply gives a result, not an error. Used through ``transfers``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from holdfast_wire.archives.safe_path import SafeRoot
from holdfast_wire.errors import HoldfastError
from holdfast_wire.paths import shown, wire

from session_agent.agent.context import AgentContext
from session_agent.agent.files.file_user import Owner, acting
from session_agent.agent.files.transfers import Incoming, Info, Sink, noted
from session_agent.agent.request.params import boolean, integer
from session_agent.agent.request.paths import absolute, path_param
from session_agent.agent.session.channels import Channel, Handler

from .diff_parser import parse
from .transaction import NewFile, replace_together
from .unified_diff import FilePatch, PatchError, apply, prefix_depth

DIFF_BYTES = 32 * 1024 * 1024
"""Largest diff, bytes."""
FILES_BYTES = 128 * 1024 * 1024
"""Most bytes of all files that one diff touches."""

_MOST_ERRORS = 20


def open_patch(context: AgentContext, channel: Channel) -> Handler:
    """``patch {cwd?, strip?, check?, user?}`` + a diff: Opened{}, Closed{success, exit_code, stdout, stderr, files}.

    ``exit_code`` is 0, or 1 if the diff does not apply, or 128 if it is malformed. ``strip`` is determined from the diff by default.
    """
    params = channel.params
    cwd = absolute(context.workdir, path_param(params, "cwd", context.workdir))
    strip = integer(params, "strip", None, most=64)
    actor, owner = acting(context, params)
    sink = patch(cwd, strip, boolean(params, "check", False), owner)
    return Incoming(channel, noted(context, "patch", cwd, sink), cwd, actor)


def patch(cwd: str, strip: int | None, check: bool, owner: Owner) -> Sink:
    """Collect a diff, and apply it in ``cwd`` at the end of input."""
    with contextlib.closing(SafeRoot(cwd)) as root:
        diff = bytearray()
        while (data := (yield {})) is not None:
            if len(diff) + len(data) > DIFF_BYTES:
                raise HoldfastError("request_too_large", f"the diff is larger than {DIFF_BYTES} bytes")
            diff += data
        plan = _Plan(cwd, root)
        try:
            notes = plan.make(parse(bytes(diff)), strip)
        except PatchError as error:
            return _result(128 if error.malformed else 1, stderr=f"error: {error}\n")
        changed = plan.changed()
        if not check:
            replace_together(root, cwd, changed, owner)
        return _result(0, stdout="".join(f"{line}\n" for line in notes), files=[wire(path) for path in changed])


def _result(exit_code: int, *, stdout: str = "", stderr: str = "", files: list[str] | None = None) -> Info:
    return {"success": not exit_code, "exit_code": exit_code, "stdout": stdout, "stderr": stderr, "files": files or []}


class _Plan:
    """The new state of every file that a diff changes."""

    def __init__(self, cwd: str, root: SafeRoot) -> None:
        self._cwd = cwd
        self._root = root
        self._found: dict[str, NewFile] = {}
        self._files: dict[str, NewFile] = {}
        """The files that change, by their paths."""
        self._bytes = 0
        # Of the current part of the diff: the files before it, the paths that it has created, and the paths that it removes.
        self._before: dict[str, NewFile] = {}
        self._arrived: set[str] = set()
        self._leaving: set[str] = set()

    def changed(self) -> dict[str, NewFile]:
        """The changed files by their paths."""
        return dict(sorted(self._files.items()))

    # From names to paths ----------------------------------------------------------------------------------------

    def make(self, patches: list[FilePatch], strip: int | None) -> list[str]:
        """Plan all changes; returns a note for each. Raises ``PatchError``."""
        depth = self._depth(patches) if strip is None else strip
        notes: list[str] = []
        errors: list[str] = []
        part = -1
        for patch in patches:
            if patch.part != part:
                part = patch.part
                self._before, self._arrived = dict(self._files), set()
                gone = [p for p in patches if p.part == part and p.change in ("rename", "delete")]
                self._leaving = {path for p in gone if (path := self._quietly(p, depth)) is not None}
            try:
                notes += self._one(patch, depth)
            except PatchError as error:
                errors.append(str(error))
        errors += self._blocked()
        if errors:
            rest = len(errors) - _MOST_ERRORS
            more = [f"and {rest} more"] if rest > 0 else []
            raise PatchError("\nerror: ".join(errors[:_MOST_ERRORS] + more) + "\nnothing was changed")
        return notes

    def _blocked(self) -> list[str]:
        """Errors of paths below a path that the diff makes a file or a link: through a link they could leave the directory."""
        kept = {path for path, file in self._files.items() if file.content is not None}
        found = []
        for path in sorted(kept):
            parts = path.split("/")
            way = next((above for n in range(1, len(parts)) if (above := "/".join(parts[:n])) in kept), None)
            if way is not None:
                found.append(f"{shown(path)} is below {shown(way)}, which the diff turns into a file or a link")
        return found

    def _depth(self, patches: list[FilePatch]) -> int:
        """The number of leading components to strip: by the prefixes, unless only the other choice (0 or 1) names existing files."""
        depth_found = prefix_depth(patches)
        sources = [p for p in patches if p.change != "create" and p.old is not None]
        for depth in (depth_found, 1 - depth_found):
            if all(self._is_there(p, depth) for p in sources):
                return depth
        return depth_found

    def _is_there(self, patch: FilePatch, depth: int) -> bool:
        try:
            parent, name = self._root.parent(self._path(patch.old or b"", patch, depth))
            os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (OSError, PatchError, HoldfastError):
            return False
        return True

    def _quietly(self, patch: FilePatch, depth: int) -> str | None:
        try:
            return self._path(patch.old or b"", patch, depth)
        except PatchError:
            return None

    def _path(self, name: bytes, patch: FilePatch, depth: int) -> str:
        path = os.fsdecode(name)
        if path.startswith("/"):
            base = self._cwd.rstrip("/") + "/"
            if not path.startswith(base):
                raise PatchError(f"{shown(path)} is outside of {shown(self._cwd)}")
            parts = path[len(base) :].split("/")
        else:
            if patch.bare:
                depth = max(0, depth - 1)
            parts = [part for part in path.split("/") if part not in ("", ".")][depth:]
        if ".." in parts:
            raise PatchError(f"{shown(path)} would leave {shown(self._cwd)}")
        if not parts or not parts[-1]:
            raise PatchError(f"{shown(path)} has no name left after {depth} leading components are stripped")
        return "/".join(parts)

    # New content ------------------------------------------------------------------------------------------------

    def _one(self, patch: FilePatch, depth: int) -> list[str]:
        if patch.mode is not None and stat.S_IFMT(patch.mode) not in (stat.S_IFREG, stat.S_IFLNK):
            raise PatchError(f"{shown(os.fsdecode(patch.new or patch.old or b''))}: submodules cannot be patched")
        old = self._path(patch.old, patch, depth) if patch.old is not None else None
        new = self._path(patch.new, patch, depth) if patch.new is not None else None
        source = None
        if old is not None:
            # git writes the sections of renames and copies in any order: they mean the files before this part of the diff
            source = self._load(old, self._before if patch.change in ("rename", "copy") else self._files)
        link = patch.mode is not None and stat.S_ISLNK(patch.mode)
        target = new or old
        assert target is not None
        original = b""
        if source is not None and source.content is not None:
            if source.link and not link and patch.change == "modify":
                raise PatchError(f"{shown(target)} is a symbolic link: name the file it leads to")
            original = source.content
        elif patch.change != "create" and not _starts_empty(patch):
            raise PatchError(f"{shown(old or target)} does not exist")
        if new is not None and (new != old or source is None or source.content is None):
            there = self._load(new, self._files)
            if there.content is not None and (there.content or patch.change != "create") and new not in self._leaving - self._arrived:
                raise PatchError(f"{shown(new)} exists already")
        try:
            content, notes = apply(patch, original)
        except PatchError as error:
            raise PatchError(f"{shown(target)}: {error}", malformed=error.malformed) from None
        if patch.change == "delete":
            if content:
                raise PatchError(f"{shown(target)}: the diff deletes it, and it holds more than the diff removes")
            self._set(old or target, None, None, False)
            return [f"deleted {shown(old or target)}", *notes]
        assert new is not None
        mode = stat.S_IMODE(patch.mode) if patch.mode is not None and not link else source.mode if source is not None else None
        is_link = link or (source is not None and source.link and patch.change != "modify")
        if patch.change == "rename" and old is not None and old != new and old not in self._arrived:
            self._set(old, None, None, False)
        self._set(new, content, mode, is_link)
        if patch.change in ("rename", "copy", "create"):
            self._arrived.add(new)
        verb = {"create": "created", "rename": f"renamed {shown(old or '')} to", "copy": f"copied {shown(old or '')} to"}
        return [f"{verb.get(patch.change, 'patched')} {shown(new)}", *(f"  {note}" for note in notes)]

    def _set(self, path: str, content: bytes | None, mode: int | None, link: bool) -> None:
        file = self._load(path, self._files)
        self._files[path] = NewFile(content, mode if mode is not None else file.mode, link, file.was)

    def _load(self, path: str, changed: dict[str, NewFile]) -> NewFile:
        """The file with these changes: as it is in the sandbox, unless it is among them."""
        known = changed.get(path) or self._found.get(path)
        if known is not None:
            return known
        try:
            parent, name = self._root.parent(path)
            state = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(state.st_mode):
                file = NewFile(os.fsencode(os.readlink(name, dir_fd=parent)), None, link=True, was=state)
            elif stat.S_ISREG(state.st_mode):
                file = NewFile(self._read(parent, name, path), stat.S_IMODE(state.st_mode), was=state)
            else:
                raise PatchError(f"{shown(path)} is {'a directory' if stat.S_ISDIR(state.st_mode) else 'a special file'}")
        except FileNotFoundError:
            file = NewFile(None)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ELOOP):
                raise PatchError(f"{shown(path)} leads out of {shown(self._cwd)} through a link") from None
            if error.errno not in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL):
                raise
            raise PatchError(f"{shown(path)}: {os.strerror(error.errno)}") from None
        self._found[path] = file
        return file

    def _read(self, parent: int, name: str, path: str) -> bytes:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        with open(descriptor, "rb") as file:
            content = file.read(FILES_BYTES - self._bytes + 1)
        self._bytes += len(content)
        if self._bytes > FILES_BYTES:
            raise HoldfastError("request_too_large", f"{shown(path)}: the files of this diff are over {FILES_BYTES} bytes")
        return content


def _starts_empty(patch: FilePatch) -> bool:
    """Whether the diff creates the file although both sides name it: ``diff -N`` writes new files like this, with ``-0,0``."""
    return bool(patch.hunks) and all(not hunk.old and hunk.old_start == 0 for hunk in patch.hunks)
