"""Trees, archives made by hand, and both directions of transfer, for the tests of archives."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

from session_agent.agent.files.archives.download import open_download
from session_agent.agent.files.archives.upload import open_upload
from tests.support.channel import FakeChannel, serve

LINK, HARD, DIR = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def build(root: Path) -> None:
    (root / "dir/sub").mkdir(parents=True)
    (root / "dir/sub/script").write_bytes(b"#!/bin/sh\n")
    os.chmod(root / "dir/sub/script", 0o755)
    (root / "empty").mkdir(mode=0o700)
    (root / "zero").touch()
    (root / "big").write_bytes(os.urandom(700_001))
    (root / ("long-" * 40)).mkdir()
    (root / ("long-" * 40) / ("name-" * 40)).write_text("deep")
    (root / "ümlaut").write_text("é")
    (root / os.fsdecode(b"raw\xff")).write_text("raw")
    (root / "link").symlink_to("dir/sub/script")
    (root / "far").symlink_to("/" + "t" * 150)
    for path in sorted(root.rglob("*"), reverse=True):
        os.utime(path, (1_600_000_000, 1_600_000_000), follow_symlinks=False)


def facts(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything an archive has to keep of a tree."""
    found = {}
    for path in root.rglob("*"):
        state = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        mode = None if path.is_symlink() else state.st_mode
        found[str(path.relative_to(root))] = (mode, int(state.st_mtime), content)
    return found


async def download(path: Path, **params: Any) -> tuple[bytes, dict[str, Any]]:
    channel = serve(open_download, "download", "/", {"path": str(path), **params})
    result = await channel.result()
    return bytes(channel.output), result


def upload(path: Path, **params: Any) -> FakeChannel:
    return serve(open_upload, "upload", "/", {"path": str(path), **params})


async def send(path: Path, archive: bytes, piece: int = 131_072, **params: Any) -> FakeChannel:
    channel = upload(path, **params)
    await channel.write(archive, eof=True, piece=piece)
    await channel.end()
    return channel


def tar(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], **options: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as archive:
        for member in members:
            info, content = member if isinstance(member, tuple) else (member, b"")
            if info.isreg():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for key, value in fields.items():
        setattr(made, key, value)
    return made
