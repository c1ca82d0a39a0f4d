"""Archives in both directions: faithful to an honest tree, closed to a hostile stream."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent import beneath
from session_agent.archiving import open_download
from session_agent.beneath import Resolver, walk
from session_agent.extracting import ExtractOptions, TarSink, open_upload
from session_agent.tar_reader import TarLimits
from tests.support.channel import FakeChannel, serve

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


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


async def test_there_and_back(tmp_path: Path) -> None:
    build(tmp_path / "one")
    archive, told = await download(tmp_path / "one")
    assert (told["entries"], told["skipped"], told["changed"]) == (len(facts(tmp_path / "one")) + 1, 0, 0)
    channel = await send(tmp_path / "new/two", archive)
    result = await channel.result()
    assert (result["entries"], result["bytes"]) == (told["entries"], told["bytes"])
    assert facts(tmp_path / "new/two") == facts(tmp_path / "one")
    again, _ = await download(tmp_path / "new/two")
    assert again == archive


async def test_other_programs_read_it(tmp_path: Path) -> None:
    build(tmp_path / "one")
    archive, _ = await download(tmp_path / "one")
    (tmp_path / "two").mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive), errorlevel=2) as opened:
        opened.extractall(tmp_path / "two", filter="tar")
    for link in ("link", "far"):  # tarfile leaves the times of links
        os.utime(tmp_path / "two" / link, (1_600_000_000, 1_600_000_000), follow_symlinks=False)
    assert facts(tmp_path / "two") == facts(tmp_path / "one")
    if shutil.which("tar"):
        (tmp_path / "three").mkdir()
        done = subprocess.run(["tar", "-xpf", "-", "-C", str(tmp_path / "three")], input=archive, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert facts(tmp_path / "three") == facts(tmp_path / "one")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_other_programs_write_it(tmp_path: Path, form: int) -> None:
    build(tmp_path / "one")
    if form == tarfile.USTAR_FORMAT:
        (tmp_path / "one/far").unlink()
        shutil.rmtree(tmp_path / "one" / ("long-" * 40))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        archive.add(tmp_path / "one", arcname=".")
    await (await send(tmp_path / "two", out.getvalue())).result()
    assert facts(tmp_path / "two") == facts(tmp_path / "one")


@pytest.mark.parametrize("form", ["v7", "ustar", "gnu", "posix"])
async def test_system_tar_writes_it(tmp_path: Path, form: str) -> None:
    if not shutil.which("tar"):
        pytest.skip("there is no tar here")
    build(tmp_path / "one")
    if form in ("v7", "ustar"):
        (tmp_path / "one/far").unlink()
        shutil.rmtree(tmp_path / "one" / ("long-" * 40))
    made = subprocess.run(["tar", f"--format={form}", "-C", str(tmp_path / "one"), "-cf", "-", "."], capture_output=True, check=True)
    await (await send(tmp_path / "two", made.stdout)).result()
    assert facts(tmp_path / "two") == facts(tmp_path / "one")


@pytest.mark.parametrize("piece", [1, 7, 511, 512, 513, 4096])
async def test_cut_anywhere(tmp_path: Path, piece: int) -> None:
    archive = tar((info("d/a"), b"x" * 1500), info("d/l", tarfile.SYMTYPE, linkname="y" * 200), (info("n" * 150), b"z"))
    await (await send(tmp_path / "two", archive, piece)).result()
    assert (tmp_path / "two/d/a").read_bytes() == b"x" * 1500
    assert (tmp_path / "two" / ("n" * 150)).read_bytes() == b"z"


async def test_single_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    (tmp_path / "link").symlink_to("a")
    archive, told = await download(tmp_path / "link")
    assert told["entries"] == 1
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert opened.getnames() == ["a"]


async def test_excludes(tmp_path: Path) -> None:
    build(tmp_path / "one")
    archive, _ = await download(tmp_path / "one", exclude=["big", "dir/sub"])
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        names = opened.getnames()
    assert "dir" in names
    assert not {"big", "dir/sub", "dir/sub/script"} & set(names)


async def test_special_files_are_left_out_and_counted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "a").touch()
    archive, told = await download(tmp_path)
    assert (told["entries"], told["skipped"], told["skipped_names"]) == (2, 1, ["fifo"])
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert opened.getnames() == [".", "a"]


@pytest.mark.parametrize("change", ["shrinks", "grows", "vanishes"])
async def test_files_that_change_while_they_are_read(tmp_path: Path, change: str) -> None:
    (tmp_path / "0").write_bytes(b"a" * 2_000_000)
    (tmp_path / "1").write_bytes(b"b" * 100)
    (tmp_path / "2").write_bytes(b"c" * 100)
    channel = serve(open_download, "download", "/", {"path": str(tmp_path)}, window=1000, reading=False)
    await channel.opened()
    async with asyncio.timeout(60):
        while not channel.handler._ahead:
            await asyncio.sleep(0)
    if change == "shrinks":
        os.truncate(tmp_path / "0", 10)
    elif change == "grows":
        with open(tmp_path / "0", "ab") as file:
            file.write(b"more")
    else:
        (tmp_path / "1").unlink()
    channel._reading = True
    channel.read()
    told = await channel.result()
    with tarfile.open(fileobj=io.BytesIO(bytes(channel.output)), errorlevel=2) as opened:
        names = opened.getnames()
        content = opened.extractfile("0").read()  # type: ignore[union-attr]
    assert len(content) == 2_000_000
    if change == "vanishes":
        assert names == [".", "0", "2"]
    else:
        assert names == [".", "0", "1", "2"]
        assert (told["changed"], told["changed_names"]) == (1, ["0"])
        assert content.strip(b"\0") == content[: len(content.strip(b"\0"))]


async def test_download_of_what_is_not_there(tmp_path: Path) -> None:
    for path, code in {"no": "file_not_found", "a/b": "not_a_directory", "fifo": "not_a_file"}.items():
        (tmp_path / "a").touch()
        if not (tmp_path / "fifo").exists():
            os.mkfifo(tmp_path / "fifo")
        channel = serve(open_download, "download", tmp_path, {"path": path})
        assert (await channel.error())["code"] == code


# Hostile archives -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["openat2", "walk"])
def resolver(request: pytest.FixtureRequest) -> Resolver:
    return walk if request.param == "walk" else beneath._openat2


def extract(path: Path, archive: bytes, resolver: Resolver | None = None, **limits: int) -> dict[str, Any]:
    """Without a channel, with a chosen resolver."""
    sink = TarSink(str(path), ExtractOptions(), TarLimits(**limits), resolver)
    try:
        sink.open()
        sink.feed(archive)
        return sink.finish()
    finally:
        sink.close()


LINK, HARD, DIR = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE

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
def test_nothing_leaves_the_destination(tmp_path: Path, resolver: Resolver, name: str) -> None:
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
        extract(tmp_path / "in", archive, resolver)
    assert caught.value.code in ("archive_invalid", "not_a_directory"), caught.value
    assert "entries" in caught.value.detail
    assert sorted(os.listdir(tmp_path)) == ["in", "secret"]
    assert (tmp_path / "secret").read_text() == "secret"
    assert os.stat(tmp_path).st_mode & 0o777 == 0o755
    assert not [n for n in os.listdir(tmp_path / "in") if n.startswith(".holdfast")]


def test_absolute_names_land_inside(tmp_path: Path, resolver: Resolver) -> None:
    extract(tmp_path / "in", tar((info("/etc/x"), b"1"), (info("///y"), b"2")), resolver)
    assert (tmp_path / "in/etc/x").read_bytes() == b"1"
    assert (tmp_path / "in/y").read_bytes() == b"2"


def test_links_that_stay_inside_are_followed(tmp_path: Path, resolver: Resolver) -> None:
    archive = tar(
        info("usr/lib", DIR, mode=0o755), info("lib", LINK, linkname="usr/lib"), info("lib", DIR, mode=0o755), (info("lib/a"), b"x")
    )
    extract(tmp_path / "in", archive, resolver)
    assert (tmp_path / "in/usr/lib/a").read_bytes() == b"x"
    assert (tmp_path / "in/lib").is_symlink()


def test_files_replace_links_instead_of_writing_through(tmp_path: Path, resolver: Resolver) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/f").symlink_to("../secret")
    os.link(tmp_path / "secret", tmp_path / "in/h")
    extract(tmp_path / "in", tar((info("f"), b"new"), (info("h"), b"new")), resolver)
    assert (tmp_path / "secret").read_text() == "secret"
    assert (tmp_path / "in/f").read_bytes() == b"new"
    assert not (tmp_path / "in/f").is_symlink()


def test_later_entries_win(tmp_path: Path, resolver: Resolver) -> None:
    extract(tmp_path / "in", tar((info("f"), b"1"), (info("f"), b"22"), info("f", LINK, linkname="x"), (info("f"), b"333")), resolver)
    assert (tmp_path / "in/f").read_bytes() == b"333"
    assert os.listdir(tmp_path / "in") == ["f"]


def test_hard_links(tmp_path: Path, resolver: Resolver) -> None:
    archive = tar((info("d/a"), b"x"), info("b", HARD, linkname="d/a"), info("b", HARD, linkname="d/a"), info("c", HARD, linkname="./b"))
    assert extract(tmp_path / "in", archive, resolver)["entries"] == 4
    assert os.stat(tmp_path / "in/c").st_nlink == 3
    assert sorted(os.listdir(tmp_path / "in")) == ["b", "c", "d"]
    with pytest.raises(HoldfastError) as caught:
        extract(tmp_path / "in", tar(info("h", HARD, linkname="missing")), resolver)
    assert caught.value.code == "file_not_found"


def test_devices_and_fifos_are_skipped(tmp_path: Path) -> None:
    archive = tar(
        info("null", tarfile.CHRTYPE, devmajor=1, devminor=3), info("disk", tarfile.BLKTYPE), info("p", tarfile.FIFOTYPE), (info("a"), b"x")
    )
    told = extract(tmp_path / "in", archive)
    assert (told["skipped"], told["skipped_names"]) == (3, ["null", "disk", "p"])
    assert os.listdir(tmp_path / "in") == ["a"]


async def test_privilege_bits_are_dropped_unless_asked_for(tmp_path: Path) -> None:
    archive = tar((info("f", mode=0o6755), b"x"), info("d", DIR, mode=0o2775))
    await (await send(tmp_path / "in", archive)).result()
    assert os.stat(tmp_path / "in/f").st_mode & 0o7777 == 0o755
    assert os.stat(tmp_path / "in/d").st_mode & 0o7777 == 0o775
    await (await send(tmp_path / "kept", archive, special_bits=True)).result()
    assert os.stat(tmp_path / "kept/f").st_mode & 0o7777 == 0o6755
    assert os.stat(tmp_path / "kept/d").st_mode & 0o7777 == 0o2775


@root_only
async def test_owner_is_the_user_asked_for(tmp_path: Path) -> None:
    archive = tar((info("new/f", uid=0, gid=0), b"x"), info("l", LINK, linkname="x"), info("d", DIR, mode=0o755))
    await (await send(tmp_path / "in", archive, user=1234)).result()
    for path in ("", "new", "new/f", "l", "d"):
        assert os.lstat(tmp_path / "in" / path).st_uid == 1234
    await (await send(tmp_path / "mine", tar((info("f", uid=77), b"x")))).result()
    assert os.lstat(tmp_path / "mine/f").st_uid == 0


async def test_read_only_directories_take_their_members(tmp_path: Path) -> None:
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


async def test_huge_size_in_a_header_is_refused_before_any_byte(tmp_path: Path) -> None:
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
async def test_what_is_no_archive(tmp_path: Path, archive: bytes, words: str) -> None:
    error = await (await send(tmp_path / "a", archive)).error()
    assert error["code"] == "archive_invalid"
    assert words in error["message"]
    assert len(os.listdir(tmp_path / "a")) == error["detail"]["entries"]


async def test_directory_and_file_do_not_replace_each_other(tmp_path: Path) -> None:
    error = await (await send(tmp_path / "a", tar(info("d/x", DIR, mode=0o755), (info("d"), b"x")))).error()
    assert error["code"] == "is_a_directory"
    error = await (await send(tmp_path / "b", tar((info("f"), b"x"), info("f", DIR, mode=0o755)))).error()
    assert (error["code"], error["detail"]["entries"]) == ("not_a_directory", 1)
    assert "(after 1 entries)" in error["message"]
    error = await (await send(tmp_path / "c", tar((info("f"), b"x"), (info("f/g"), b"x")))).error()
    assert error["code"] == "not_a_directory"


async def test_destination_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert (await upload(tmp_path / "f").error())["code"] == "not_a_directory"
    assert (await upload(tmp_path / "f/g").error())["code"] == "not_a_directory"


@pytest.mark.parametrize("how", ["close", "drop"])
async def test_no_half_file_is_left(tmp_path: Path, how: str) -> None:
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


async def test_names_as_long_as_they_get(tmp_path: Path) -> None:
    deep = "/".join(["d" * 100] * 30)
    await (await send(tmp_path / "in", tar((info(deep), b"x")))).result()
    error = await (await send(tmp_path / "in", tar((info("n" * 300), b"x")))).error()
    assert error["code"] == "invalid_path"
    error = await (await send(tmp_path / "in", tar((info("d/" * 3000 + "x"), b"x")))).error()
    assert error["code"] == "invalid_path"


async def test_archive_of_a_repository_by_git(tmp_path: Path) -> None:
    """git writes a global PAX header with the commit first."""
    if not shutil.which("git"):
        pytest.skip("there is no git here")
    run = {"cwd": tmp_path, "check": True, "capture_output": True}
    (tmp_path / "f").write_text("x")
    subprocess.run(["git", "init", "-q"], **run)  # type: ignore[call-overload]
    subprocess.run(["git", "add", "f"], **run)  # type: ignore[call-overload]
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-qm", "m"], **run)  # type: ignore[call-overload]
    made = subprocess.run(["git", "archive", "HEAD"], **run)  # type: ignore[call-overload]
    assert (await (await send(tmp_path / "in", made.stdout)).result())["entries"] == 1
