"""Hostile archives: nothing outside the destination is changed, no partial file is left, everything has a limit."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.archives.tar import TarLimits
from holdfast_wire.errors import HoldfastError

from session_agent.agent.files.archives import upload as extracting
from session_agent.agent.files.transfers import finish
from tests.session_agent.trees_and_tars import DIR, HARD, LINK, info, send, tar, upload

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change owners")


def extract(path: Path, archive: bytes, **limits: int) -> dict[str, Any]:
    """Extract without a channel."""
    sink = extracting.extract(str(path), TarLimits(**limits))
    next(sink)
    sink.send(archive)
    return finish(sink)


ESCAPES: dict[str, bytes] = {
    "dots": tar((info("../evil"), b"x")),
    "dots inside": tar((info("a/../../evil"), b"x")),
    "dots at the end": tar(info("a/..", DIR)),
    "link then file": tar(info("d", LINK, linkname=".."), (info("d/evil"), b"x")),
    "absolute link then file": tar(info("d", LINK, linkname="{outside}"), (info("d/evil"), b"x")),
    "link chain": tar(info("a", LINK, linkname="."), info("b", LINK, linkname="a/.."), (info("b/evil"), b"x")),
    "link then directory": tar(info("d", LINK, linkname=".."), info("d/evil", DIR)),
    "link then the same directory": tar(info("d", LINK, linkname=".."), info("d", DIR, mode=0o777), (info("d/evil"), b"x")),
    "link then link": tar(info("d", LINK, linkname=".."), info("d/evil", LINK, linkname="x")),
    "hard link up": tar(info("h", HARD, linkname="../secret")),
    "hard link through a link": tar(info("d", LINK, linkname=".."), info("h", HARD, linkname="d/secret")),
    "hard link to a link out": tar(info("l", LINK, linkname="../secret"), info("h", HARD, linkname="l"), (info("h"), b"pwned")),
    "deep link": tar(info("a/b/c", LINK, linkname="../../.."), (info("a/b/c/evil"), b"x")),
    "proc link": tar(info("p", LINK, linkname="/proc/self/root"), (info("p/{outside}/evil"), b"x")),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_outside_the_destination_is_changed(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    os.chmod(tmp_path, 0o755)
    archive = ESCAPES[name]
    if b"{outside}" in archive:
        outside = str(tmp_path).lstrip("/") if name == "proc link" else str(tmp_path)
        members: list[tuple[tarfile.TarInfo, bytes]] = []
        with tarfile.open(fileobj=io.BytesIO(archive)) as source:
            for member in source.getmembers():
                content = source.extractfile(member).read() if member.isreg() else b""  # type: ignore[union-attr]
                member.name = member.name.replace("{outside}", outside)
                member.linkname = member.linkname.replace("{outside}", outside)
                members.append((member, content))
        archive = tar(*members)
    with pytest.raises(HoldfastError) as caught:
        extract(tmp_path / "in", archive)
    assert caught.value.code in ("archive_invalid", "not_a_directory"), caught.value
    assert "entries" in caught.value.detail
    assert sorted(os.listdir(tmp_path)) == ["in", "secret"]
    assert (tmp_path / "secret").read_text() == "secret"
    assert os.stat(tmp_path).st_mode & 0o777 == 0o755
    assert not [n for n in os.listdir(tmp_path / "in") if n.startswith(".holdfast")]


def test_absolute_names_are_extracted_inside_the_destination(tmp_path: Path) -> None:
    extract(tmp_path / "in", tar((info("/etc/x"), b"1"), (info("///y"), b"2")))
    assert (tmp_path / "in/etc/x").read_bytes() == b"1"
    assert (tmp_path / "in/y").read_bytes() == b"2"


def test_links_that_stay_inside_are_followed(tmp_path: Path) -> None:
    archive = tar(
        info("usr/lib", DIR, mode=0o755), info("lib", LINK, linkname="usr/lib"), info("lib", DIR, mode=0o755), (info("lib/a"), b"x")
    )
    extract(tmp_path / "in", archive)
    assert (tmp_path / "in/usr/lib/a").read_bytes() == b"x"
    assert (tmp_path / "in/lib").is_symlink()


def test_files_replace_links_instead_of_writing_through(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/f").symlink_to("../secret")
    os.link(tmp_path / "secret", tmp_path / "in/h")
    extract(tmp_path / "in", tar((info("f"), b"new"), (info("h"), b"new")))
    assert (tmp_path / "secret").read_text() == "secret"
    assert (tmp_path / "in/f").read_bytes() == b"new"
    assert not (tmp_path / "in/f").is_symlink()


def test_later_entries_win(tmp_path: Path) -> None:
    extract(tmp_path / "in", tar((info("f"), b"1"), (info("f"), b"22"), info("f", LINK, linkname="x"), (info("f"), b"333")))
    assert (tmp_path / "in/f").read_bytes() == b"333"
    assert os.listdir(tmp_path / "in") == ["f"]


def test_hard_links(tmp_path: Path) -> None:
    archive = tar((info("d/a"), b"x"), info("b", HARD, linkname="d/a"), info("b", HARD, linkname="d/a"), info("c", HARD, linkname="./b"))
    assert extract(tmp_path / "in", archive)["entries"] == 4
    assert os.stat(tmp_path / "in/c").st_nlink == 3
    assert sorted(os.listdir(tmp_path / "in")) == ["b", "c", "d"]
    with pytest.raises(HoldfastError) as caught:
        extract(tmp_path / "in", tar(info("h", HARD, linkname="missing")))
    assert caught.value.code == "archive_invalid"


def test_devices_and_fifos_are_skipped(tmp_path: Path) -> None:
    archive = tar(
        info("null", tarfile.CHRTYPE, devmajor=1, devminor=3), info("disk", tarfile.BLKTYPE), info("p", tarfile.FIFOTYPE), (info("a"), b"x")
    )
    result = extract(tmp_path / "in", archive)
    assert (result["skipped"], result["skipped_names"]) == (3, ["null", "disk", "p"])
    assert os.listdir(tmp_path / "in") == ["a"]


async def test_privilege_bits_are_dropped_unless_asked_for(tmp_path: Path) -> None:
    archive = tar((info("f", mode=0o6755), b"x"), info("d", DIR, mode=0o2775))
    await (await send(tmp_path / "in", archive)).result()
    assert os.stat(tmp_path / "in/f").st_mode & 0o7777 == 0o755
    assert os.stat(tmp_path / "in/d").st_mode & 0o7777 == 0o775
    await (await send(tmp_path / "kept", archive, special_bits=True)).result()
    assert os.stat(tmp_path / "kept/f").st_mode & 0o7777 == 0o6755
    assert os.stat(tmp_path / "kept/d").st_mode & 0o7777 == 0o2775


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user can reach, unlike ``tmp_path``."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@root_only
async def test_owner_is_the_requested_user(tmp_path: Path, open_folder: Path) -> None:
    archive = tar((info("new/f", uid=0, gid=0), b"x"), info("l", LINK, linkname="x"), info("d", DIR, mode=0o755))
    await (await send(open_folder / "in", archive, user=1234)).result()
    for path in ("", "new", "new/f", "l", "d"):
        assert os.lstat(open_folder / "in" / path).st_uid == 1234
    assert (await (await send(tmp_path / "in", archive, user=1234)).error())["code"] == "permission_denied"
    await (await send(tmp_path / "mine", tar((info("f", uid=77), b"x")))).result()
    assert os.lstat(tmp_path / "mine/f").st_uid == 0


async def test_members_of_read_only_directories_are_extracted(tmp_path: Path) -> None:
    archive = tar(info("d", DIR, mode=0o555, mtime=1000), (info("d/f", mtime=2000), b"x"))
    await (await send(tmp_path / "in", archive)).result()
    state = os.stat(tmp_path / "in/d")
    assert (state.st_mode & 0o777, state.st_mtime) == (0o555, 1000)
    assert os.stat(tmp_path / "in/d/f").st_mtime == 2000


async def test_limits(tmp_path: Path) -> None:
    archive = tar(*((info(f"f{i}"), b"xy") for i in range(5)))
    error = await (await send(tmp_path / "a", archive, limit_entries=3)).error()
    assert (error["code"], error["detail"]["entries"]) == ("archive_limit", 3)
    assert len(os.listdir(tmp_path / "a")) == 3
    error = await (await send(tmp_path / "b", archive, limit_bytes=5)).error()
    assert (error["code"], error["detail"]["entries"]) == ("archive_limit", 2)


async def test_huge_size_in_a_header_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    header = info("bomb", size=2**50).tobuf(tarfile.GNU_FORMAT)
    error = await (await send(tmp_path / "a", header)).error()
    assert error["code"] == "archive_limit"
    assert os.listdir(tmp_path / "a") == []


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        (b"", "ends before"),
        (tar((info("a"), b"x" * 2000))[:1500], "ends before"),
        (tar((info("a"), b"x"))[:1024], "ends before"),
        (b"\x1f\x8b" + bytes(600), "gzip"),
        (b"\x28\xb5\x2f\xfd" + bytes(600), "zstd"),
        (b"PK\x03\x04" + bytes(600), "zip"),
        (b"hello" * 200, "checksum"),
        (tar((info("a"), b"x")) + b"more" * 200, "after the end marker"),
        (tar((info(""), b"x")), "no name"),
        (tar((info("."), b"x")), "no name"),
        (tar(info("l", LINK)), "nothing"),
    ],
)
async def test_invalid_archives_are_refused(tmp_path: Path, archive: bytes, words: str) -> None:
    error = await (await send(tmp_path / "a", archive)).error()
    assert error["code"] == "archive_invalid"
    assert words in error["message"]
    assert len(os.listdir(tmp_path / "a")) == error["detail"]["entries"]


@pytest.mark.parametrize("how", ["close", "drop"])
async def test_an_interrupted_upload_leaves_no_partial_file(tmp_path: Path, how: str) -> None:
    archive = tar((info("a"), b"x"), (info("d/b"), b"y" * 500_000))
    channel = upload(tmp_path / "in")
    await channel.write(archive[:200_000])
    await channel.used(200_000)
    assert len(os.listdir(tmp_path / "in/d")) == 1
    getattr(channel.handler, how)(*([False] if how == "close" else []))
    async with asyncio.timeout(60):
        while os.listdir(tmp_path / "in/d"):
            await asyncio.sleep(0)
    assert (tmp_path / "in/a").read_bytes() == b"x"
