"""Archives in both directions: they keep a tree exactly, and are compatible with other programs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.archives.safe_path import SafeRoot

from session_agent.agent.files.archives.download import _Archive, archive, open_download
from tests.session_agent.trees_and_tars import DIR, build, download, facts, info, send, tar, upload
from tests.support.channel import serve


async def test_a_tree_survives_download_and_upload(tmp_path: Path) -> None:
    build(tmp_path / "one")
    archive, summary = await download(tmp_path / "one")
    assert (summary["entries"], summary["skipped"], summary["changed"]) == (len(facts(tmp_path / "one")) + 1, 0, 0)
    channel = await send(tmp_path / "new/two", archive)
    result = await channel.result()
    assert (result["entries"], result["bytes"]) == (summary["entries"], summary["bytes"])
    assert facts(tmp_path / "new/two") == facts(tmp_path / "one")
    again, _ = await download(tmp_path / "new/two")
    assert again == archive


async def test_other_programs_read_a_download(tmp_path: Path) -> None:
    build(tmp_path / "one")
    archive, _ = await download(tmp_path / "one")
    (tmp_path / "two").mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive), errorlevel=2) as opened:
        as_it_is: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}  # Python 3.11.0 to 3.11.3 have no filters
        opened.extractall(tmp_path / "two", **as_it_is)
    for link in ("link", "far"):  # tarfile does not set the times of links
        os.utime(tmp_path / "two" / link, (1_600_000_000, 1_600_000_000), follow_symlinks=False)
    assert facts(tmp_path / "two") == facts(tmp_path / "one")
    if shutil.which("tar"):
        (tmp_path / "three").mkdir()
        done = subprocess.run(["tar", "-xpf", "-", "-C", str(tmp_path / "three")], input=archive, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert facts(tmp_path / "three") == facts(tmp_path / "one")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_archives_of_tarfile_are_extracted(tmp_path: Path, form: int) -> None:
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
async def test_archives_of_the_system_tar_are_extracted(tmp_path: Path, form: str) -> None:
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
async def test_an_upload_may_be_split_anywhere(tmp_path: Path, piece: int) -> None:
    archive = tar((info("d/a"), b"x" * 1500), info("d/l", tarfile.SYMTYPE, linkname="y" * 200), (info("n" * 150), b"z"))
    await (await send(tmp_path / "two", archive, piece)).result()
    assert (tmp_path / "two/d/a").read_bytes() == b"x" * 1500
    assert (tmp_path / "two" / ("n" * 150)).read_bytes() == b"z"


async def test_single_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    (tmp_path / "link").symlink_to("a")
    archive, summary = await download(tmp_path / "link")
    assert summary["entries"] == 1
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
    archive, summary = await download(tmp_path)
    assert (summary["entries"], summary["skipped"], summary["skipped_names"]) == (2, 1, ["fifo"])
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
    summary = await channel.result()
    with tarfile.open(fileobj=io.BytesIO(bytes(channel.output)), errorlevel=2) as opened:
        names = opened.getnames()
        content = opened.extractfile("0").read()  # type: ignore[union-attr]
    assert len(content) == 2_000_000
    if change == "vanishes":
        assert names == [".", "0", "2"]
    else:
        assert names == [".", "0", "1", "2"]
        assert (summary["changed"], summary["changed_names"]) == (1, ["0"])
        assert content.strip(b"\0") == content[: len(content.strip(b"\0"))]


async def test_download_of_a_bad_path_is_refused(tmp_path: Path) -> None:
    for path, code in {"no": "file_not_found", "a/b": "not_a_directory", "fifo": "not_a_file"}.items():
        (tmp_path / "a").touch()
        if not (tmp_path / "fifo").exists():
            os.mkfifo(tmp_path / "fifo")
        channel = serve(open_download, "download", tmp_path, {"path": path})
        assert (await channel.error())["code"] == code


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


async def test_very_long_names(tmp_path: Path) -> None:
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


def test_a_file_that_becomes_a_directory_does_not_bring_its_siblings(tmp_path: Path) -> None:
    build(tmp_path / "one")
    wanted = tmp_path / "one/wanted"
    wanted.write_text("text")
    source = archive(str(wanted), ())
    assert next(source) == {"type": "file"}
    wanted.unlink()
    wanted.mkdir()
    content = b"".join(piece for piece in source if isinstance(piece, bytes))
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        assert opened.getnames() == ["wanted"]


def test_a_directory_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    for name in ("aside", "tree"):
        (tmp_path / name).mkdir()
    (tmp_path / "aside/hidden").write_text("text")
    with contextlib.closing(SafeRoot(str(tmp_path))) as root:
        tree = _Archive(root, ("aside",))
        names = []
        for piece in tree.members("."):
            names.append(piece[:100].rstrip(b"\0"))
            if names[-1].rstrip(b"/") == b"tree":
                (tmp_path / "tree").rename(tmp_path / "moved")
                (tmp_path / "tree").symlink_to("aside")
    assert [name for name in names if b"hidden" in name] == []
    assert tree.skipped.fields("skipped")["skipped"] == 1
