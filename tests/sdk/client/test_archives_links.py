"""Downloading directories with links that point outside: everything but those links is unpacked, and no link is followed."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from holdfast import ArchiveError
from holdfast._archives import pack, unpack


def test_links_that_point_outside_are_left_out(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "absolute").symlink_to("/etc")
    (tree / "up").symlink_to("../../..")
    (tree / "inside").symlink_to("file")
    (tree / "file").write_text("x")
    data = io.BytesIO(b"".join(pack(tree)))
    target = tmp_path / "home"
    unpack(data, target)
    assert sorted(path.name for path in target.iterdir()) == ["file", "inside"]


def test_nothing_is_written_through_a_link_that_was_left_out(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        link = tarfile.TarInfo("d")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "outside")
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("d/evil"), io.BytesIO())
    data.seek(0)
    (tmp_path / "outside").mkdir()
    unpack(data, tmp_path / "home")
    assert not list((tmp_path / "outside").iterdir())
    assert (tmp_path / "home" / "d" / "evil").exists()


def test_an_unreadable_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)

    listdir = os.listdir

    def refuse(path: Path) -> list[str]:
        if path.name == "sub":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(PermissionError):
        list(pack(tmp_path / "tree"))


def test_a_tree_of_any_depth_is_packed_and_in_few_pieces(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1010):  # Python's recursion limit is 1000
        os.mkdir("d", dir_fd=directory)
        inner = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(directory)
    try:
        pieces = list(pack(tmp_path))
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        assert len(archive.getnames()) == 1011
    assert len(pieces) < 50


def test_directories_keep_their_modes_as_files_do(tmp_path: Path) -> None:
    """A private directory must not become readable to all. Directories that existed before keep their modes."""
    tree, target = tmp_path / "tree", tmp_path / "home"
    (tree / "private").mkdir(parents=True)
    (tree / "there").mkdir(mode=0o700)
    (tree / "private/file").write_text("x")
    (tree / "private").chmod(0o1500)
    (tree / "open").mkdir()
    (tree / "open").chmod(0o777)
    tree.chmod(0o700)
    (target / "there").mkdir(parents=True, mode=0o755)
    data = io.BytesIO(b"".join(pack(tree)))
    for _ in range(2):
        data.seek(0)
        unpack(data, target)
        modes = {path.name: path.stat().st_mode & 0o7777 for path in (target, *target.iterdir())}
        assert modes == {"home": 0o755, "private": 0o700, "open": 0o755, "there": 0o755}


def test_a_directory_replaced_by_a_link_does_not_change_the_mode_of_the_target(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, kind, mode in (("d", tarfile.DIRTYPE, 0o777), ("d", tarfile.SYMTYPE, 0o777), ("inside", tarfile.DIRTYPE, 0o700)):
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.linkname = kind, mode, "inside"
            archive.addfile(member)
    data.seek(0)
    try:
        unpack(data, tmp_path)
    except (OSError, ArchiveError):
        pass  # a link where a directory exists may also be refused
    if (tmp_path / "inside").exists():
        assert (tmp_path / "inside").stat().st_mode & 0o777 == 0o700


def _archive(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for one in members:
            info, content = one if isinstance(one, tuple) else (one, b"")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    data.seek(0)
    return data


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def _directory(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def _long_chain(length: int = 16) -> list[tarfile.TarInfo]:
    """Links whose joined targets are longer than a path may be: a check that joins them gives up, and the kernel follows them.

    CVE-2025-4517 of tarfile's own filter.
    """
    name, members = "d" * 200, list[tarfile.TarInfo]()
    path = ""
    for letter in "abcdefghijklmnop"[:length]:
        members += [_directory(f"{path}{name}"), _link(f"{path}{letter}", name)]
        path += f"{letter}/"
    chain = "/".join("abcdefghijklmnop"[:length])
    return [*members, _link(f"{chain}/{'l' * 254}", "../" * length), _link("escape", f"{chain}/{'l' * 254}/../outside")]


def test_nothing_is_written_through_a_chain_of_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    members: list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]] = [*_long_chain(), (tarfile.TarInfo("escape/evil"), b"evil")]
    with contextlib.suppress(ArchiveError):
        unpack(_archive(*members), tmp_path / "home")
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "home/escape").is_symlink() or "outside" not in os.path.realpath(tmp_path / "home/escape")


def test_a_link_that_leads_out_only_through_a_later_one_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    members = [_directory("a"), _link("l", "a/b/../../secret"), _link("a/b", "../c"), _directory("c")]
    assert unpack(_archive(*members), tmp_path / "home") == (3, 0, 1)
    assert not os.path.lexists(tmp_path / "home/l")


def test_files_of_this_machine_keep_their_modes(tmp_path: Path) -> None:
    """A hard link to a file that was there before, and then a member of the same name: the file itself is not changed."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_text("secret")
    (home / "key").chmod(0o600)
    opened = tarfile.TarInfo("copy")
    opened.mode = 0o6777
    unpack(_archive(_link("copy", "key", tarfile.LNKTYPE), (opened, b"new")), home)
    assert (home / "key").stat().st_mode & 0o7777 == 0o600
    assert (home / "key").read_text() == "secret"
    assert (home / "copy").stat().st_mode & 0o7777 == 0o755, "no special bits, not for others to write"


@pytest.mark.parametrize("target", ["missing", "missing/too", "../outside", "/etc/passwd", "d"])
def test_a_hard_link_to_no_file_of_the_archive_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("x")
    with pytest.raises(ArchiveError, match="link"):
        unpack(_archive(_directory("d"), _link("h", target, tarfile.LNKTYPE)), tmp_path / "home")
    assert not (tmp_path / "home/h").exists()


def test_devices_are_left_out_and_bad_archives_are_refused(tmp_path: Path) -> None:
    device = tarfile.TarInfo("null")
    device.type = tarfile.CHRTYPE
    assert unpack(_archive(device, (tarfile.TarInfo("f"), b"x")), tmp_path / "home") == (1, 1, 1)
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["f"]
    for data in (b"", b"not a tar at all" * 64, _archive((tarfile.TarInfo("f"), b"x" * 600)).getvalue()[:700]):
        with pytest.raises(ArchiveError):
            unpack(io.BytesIO(data), tmp_path / "home")
    with pytest.raises(ArchiveError):
        unpack(_archive((tarfile.TarInfo("../up"), b"x")), tmp_path / "home")
    assert not (tmp_path / "up").exists()
