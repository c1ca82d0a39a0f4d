"""Directories with links that lead out can be brought home: everything but those links arrives, and nothing is followed."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from holdfast._archives import pack, unpack


def test_links_that_lead_out_are_left_out(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "absolute").symlink_to("/etc")
    (tree / "up").symlink_to("../../..")
    (tree / "inside").symlink_to("file")
    (tree / "file").write_text("x")
    data = io.BytesIO(b"".join(pack(tree)))
    home = tmp_path / "home"
    unpack(data, home)
    assert sorted(path.name for path in home.iterdir()) == ["file", "inside"]


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


def test_a_directory_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    pieces = pack(tmp_path / "tree")
    next(pieces)  # the tree itself
    next(pieces)  # sub: announced, and looked into only with the next step
    (tmp_path / "tree/sub").rmdir()
    with pytest.raises(FileNotFoundError):
        list(pieces)
