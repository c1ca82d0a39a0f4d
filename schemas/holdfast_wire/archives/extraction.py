"""Extracts an untrusted tar stream below one directory, and never outside of it.

Owns where members go and what they may be. Every path is walked by descriptors, and links are followed only inside. Leading slashes are
removed, as by tar; an archive with ``..`` or with a path through a link that leaves the directory is refused. Devices and FIFOs are skipped
and counted, owners in the archive are ignored unless requested. A file appears complete or not at all, and replaces an existing one. A
failed extraction is not undone: the error has the number of extracted entries. Used by the agent for uploads and by the client for
downloads, which differ in ``Rules``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from typing import Any

from holdfast_wire.archives.safe_path import SafeRoot, split
from holdfast_wire.archives.tar import Info, Member, Names, TarLimits, TarReader
from holdfast_wire.errors import HoldfastError
from holdfast_wire.paths import shown, wire

_MOST_DEFERRED = 65_536
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Extraction = Generator[Info, bytes | None, Info]
"""Yields ``{}`` for each piece that it was sent; gets None at the end of the stream, and returns the counts."""


class Rules:
    """What an extraction does with the metadata and links of members. These are the agent's, for uploads into a sandbox."""

    keeps_links_out = True
    """Whether symbolic links that lead out of the directory are created. They are never followed."""
    changes_existing_directories = True
    """Whether directories that existed before get the permissions and time of the archive."""

    keeps_owners = False
    """Whether members get the owners that the archive has, in place of ``give``."""

    def __init__(self, give: Callable[[int | str, int | None], None] | None = None, mode_bits: int = 0o777) -> None:
        """``give`` sets the owner of what is created: an open descriptor, or a name in an open directory."""
        self.give = give or (lambda target, directory: None)
        self._mode_bits = mode_bits

    def mode(self, member: Member) -> int:
        """The permissions of a file or directory."""
        return member.mode & self._mode_bits

    def own(self, target: int | str, directory: int | None, member: Member) -> None:
        """Set the owner of what was created for a member."""
        if not self.keeps_owners:
            self.give(target, directory)
        elif directory is None:
            os.chown(target, member.uid, member.gid)
        else:
            os.chown(target, member.uid, member.gid, dir_fd=directory, follow_symlinks=False)


class ClientRules(Rules):
    """Downloads to the client's machine: nothing that leads outside, no special bits, and no writing by other users."""

    keeps_links_out = False
    changes_existing_directories = False

    def mode(self, member: Member) -> int:
        if member.kind == "directory":
            return member.mode & 0o755 | 0o700
        return member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600


def extract(path: str, limits: TarLimits, rules: Rules) -> Extraction:
    """Extract into the existing directory ``path``. Raises ``HoldfastError`` (archive_invalid, archive_limit) and ``OSError``.

    Their ``detail``, or for an ``OSError`` the attribute ``progress``, has ``entries``, the number of extracted members, and ``entry``, the
    name of the member.
    """
    with contextlib.closing(SafeRoot(path)) as root:
        extraction = _Extraction(root, limits, rules)
        try:
            return (yield from extraction.run())
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ELOOP):
                message = f"the archive is refused: {shown(extraction.name)} would go through a link that leaves the destination"
                raise HoldfastError("archive_invalid", message, detail=extraction.progress()) from None
            error.progress = extraction.progress()  # type: ignore[attr-defined]
            raise
        except HoldfastError as error:
            error.detail = error.detail | extraction.progress()
            raise


class _Extraction:
    """The state of one extraction."""

    def __init__(self, root: SafeRoot, limits: TarLimits, rules: Rules) -> None:
        self._root = root
        self._reader = TarReader(limits)
        self._rules = rules
        self.name = ""
        """Of the current member."""
        self._done = 0
        self._skipped = Names()
        self._left_out = Names()
        self._deferred: dict[str, Member] = {}
        self._links: list[str] = []

    def run(self) -> Extraction:
        """Extract all members."""
        while (member := (yield from self._reader.member())) is not None:
            yield from self._member(member)
            self._done += 1
        self._remove_links_out()
        for path in reversed(self._deferred):
            with contextlib.suppress(OSError), self._directory(path) as directory:  # it may have been removed or replaced since
                self._set_metadata(directory, self._deferred[path])
        counts = {"entries": self._done, "bytes": self._reader.size_bytes, **self._skipped.fields("skipped")}
        return counts if self._rules.keeps_links_out else counts | self._left_out.fields("left_out")

    def progress(self) -> dict[str, Any]:
        """How far it came, for the details of an error."""
        return {"entries": self._done, "entry": wire(self.name)}

    def _member(self, member: Member) -> Generator[Info, bytes | None, None]:
        self.name = name = os.fsdecode(member.name.lstrip(b"/"))
        if ".." in name.split("/") or b"\0" in member.name:
            raise HoldfastError("archive_invalid", f"the archive is refused: {shown(name)} would leave the destination")
        if member.kind == "other":
            self._skipped.add(name)
        elif member.kind == "directory":
            self._make_directory(name, member)
        elif not name.strip("/."):
            raise HoldfastError("archive_invalid", "the archive is refused: a member has no name")
        elif member.kind == "file":
            yield from self._write_file(name, member)
        elif member.kind == "symlink":
            self._make_symbolic_link(name, member)
        else:
            self._make_hard_link(name, member)

    def _parent(self, name: str) -> tuple[int, str]:
        return self._root.parent(name, self._made)

    def _made(self, directory: int) -> None:
        self._rules.give(directory, None)

    @contextlib.contextmanager
    def _replacing(self, parent: int, name: str) -> Iterator[str]:
        """A temporary name beside ``name``, which it replaces at the end."""
        temporary = f".holdfast-{os.urandom(8).hex()}"
        try:
            yield temporary
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            with contextlib.suppress(OSError):  # it is still there after a failure, and if both names are links to the same file
                os.unlink(temporary, dir_fd=parent)

    # Kinds of members -----------------------------------------------------------------------------------------------

    def _write_file(self, path: str, member: Member) -> Generator[Info, bytes | None, None]:
        parent, name = self._parent(path)
        with self._replacing(parent, name) as temporary:
            file = os.open(temporary, _CREATE, 0o600, dir_fd=parent)
            try:
                while data := (yield from self._reader.content()):
                    while data:
                        data = data[os.write(file, data) :]
                self._rules.own(file, None, member)
                self._set_metadata(file, member)
            finally:
                os.close(file)

    def _make_directory(self, path: str, member: Member) -> None:
        path = "/".join(part for part in path.split("/") if part not in ("", "."))
        parent, name = self._parent(path)
        if name:
            try:
                os.mkdir(name, 0o700 | member.mode & 0o777, dir_fd=parent)
            except FileExistsError:  # the open below checks that it is a directory
                if not self._rules.changes_existing_directories and path not in self._deferred:
                    with self._directory(path):
                        return
        elif not self._rules.changes_existing_directories:
            return
        with self._directory(path) as directory:
            self._rules.own(directory, None, member)
        if len(self._deferred) < _MOST_DEFERRED:  # set at the end: in a read-only directory no member could be created
            self._deferred.pop(path, None)
            self._deferred[path] = member
        else:
            with self._directory(path) as directory:
                self._set_metadata(directory, member)

    @contextlib.contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root.directory(path))
        try:
            yield directory
        finally:
            os.close(directory)

    def _set_metadata(self, descriptor: int, member: Member) -> None:
        os.fchmod(descriptor, self._rules.mode(member))
        os.utime(descriptor, (member.mtime_s, member.mtime_s))

    def _make_symbolic_link(self, path: str, member: Member) -> None:
        target = os.fsdecode(member.link)
        if not target or "\0" in target:
            raise HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} links to nothing")
        parent, name = self._parent(path)
        with self._replacing(parent, name) as temporary:
            os.symlink(target, temporary, dir_fd=parent)
            self._rules.own(temporary, parent, member)
            os.utime(temporary, (member.mtime_s, member.mtime_s), dir_fd=parent, follow_symlinks=False)
        if not self._rules.keeps_links_out and not self._remove_if_out(path):
            self._links.append(path)

    def _make_hard_link(self, path: str, member: Member) -> None:
        target = os.fsdecode(member.link.lstrip(b"/"))
        if ".." in target.split("/"):
            raise HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} links out of the destination")
        missing = HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} is a hard link to a missing file")
        try:
            source, source_name = self._root.parent(target)
            if not source_name or not stat.S_ISREG(os.stat(source_name, dir_fd=source, follow_symlinks=False).st_mode):
                raise missing
        except FileNotFoundError:
            raise missing from None
        source = os.dup(source)  # the next call of ``parent`` closes it
        try:
            parent, name = self._parent(path)
            with self._replacing(parent, name) as temporary:
                os.link(source_name, temporary, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    # Links out ------------------------------------------------------------------------------------------------------

    def _remove_links_out(self) -> None:
        """Look at the links again when all are there: one may lead out through another that came later."""
        for path in dict.fromkeys(self._links):
            with contextlib.suppress(FileNotFoundError):
                self._remove_if_out(path)

    def _remove_if_out(self, path: str) -> bool:
        if not self._leads_out(path):
            return False
        parent, name = self._root.parent(path)
        os.unlink(name, dir_fd=parent)
        self._left_out.add(path)
        return True

    def _leads_out(self, path: str) -> bool:
        parent, name = split(path)
        try:
            target = os.readlink(name, dir_fd=self._root.directory(parent))
        except OSError:  # another member has replaced it
            return False
        try:
            self._root.directory(f"{parent}/{target}" if parent and not target.startswith("/") else target)
        except OSError as error:
            return error.errno == errno.EXDEV
        return False
