"""What the steps of a build ask of the files in a sandbox: directories, owners by name, and placing files by a tar stream."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from holdfast._build.copying import Placing
from holdfast._build.errors import wrong
from holdfast._errors import RemoteFileNotFoundError, RemoteNotADirectoryError
from holdfast._transport.aio.events import finished

if TYPE_CHECKING:
    from holdfast import AsyncSandbox

NO_ENTRY = (RemoteFileNotFoundError, RemoteNotADirectoryError)


async def is_directory(sandbox: AsyncSandbox, path: str) -> bool:
    """Whether there is a directory, with links followed."""
    try:
        return (await sandbox.files.stat(path)).is_dir
    except NO_ENTRY:
        return False


async def owner_of(sandbox: AsyncSandbox, text: str, line: int) -> tuple[int, int]:
    """The ids of ``user[:group]``, names or numbers. A number alone is also the group; a name alone has its own.

    Raises ``DockerfileError``.
    """
    user, colon, group = text.partition(":")
    if user.isdecimal():
        uid, gid = int(user), int(user)
    else:
        row = await _row(sandbox, "/etc/passwd", user)
        if row is None:
            raise wrong(line, f"the image has no user {user:.60}", "create it in a RUN before, or write its number")
        uid, gid = int(row[2]), int(row[3])
    if not colon:
        return uid, gid
    if group.isdecimal():
        return uid, int(group)
    row = await _row(sandbox, "/etc/group", group)
    if row is None:
        raise wrong(line, f"the image has no group {group:.60}", "create it in a RUN before, or write its number")
    return uid, int(row[2])


async def _row(sandbox: AsyncSandbox, path: str, name: str) -> list[str] | None:
    try:
        text = await sandbox.files.read_text(path, errors="replace")
    except NO_ENTRY:
        return None
    for row in text.splitlines():
        fields = row.split(":")
        if len(fields) > 3 - (path == "/etc/group") and fields[0] == name and all(one.isdecimal() for one in fields[2:3]):
            return fields
    return None


async def place(sandbox: AsyncSandbox, placing: Placing, *, directory: bool = False) -> None:
    """Send what was placed. ``directory``: the target is created although nothing may be in it."""
    parents = placing.parents()
    if directory and placing.target != "/" and placing.target not in parents:
        parents = sorted({*parents, placing.target}, key=lambda path: path.count("/"))
    missing = [path for path in parents if not await is_directory(sandbox, path)]
    with await sandbox.files._open("upload", "/", owners=True, merge=True, special_bits=True) as transfer:
        pieces = placing.pieces(missing)
        while data := await finished(next, pieces, b""):
            await transfer.write(data)
        await transfer.write(b"", eof=True)
        await transfer.closed()


async def first_missing(sandbox: AsyncSandbox, path: str) -> str:
    """The topmost directory of a path that does not exist; empty if the path exists."""
    missing = ""
    while path != "/" and not await sandbox.files.exists(path):
        missing, path = path, posixpath.dirname(path)
    return missing
