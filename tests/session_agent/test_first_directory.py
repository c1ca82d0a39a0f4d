"""The directory that commands start in, created if the image does not have it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from session_agent.agent.startup.server import make_directory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to(tmp_path / "target/deep")
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="gives the directory to root")
@pytest.mark.parametrize(("wanted", "made"), [("a/b/c", "a/b/c"), ("link", "target/deep"), ("link/x", "target/deep/x"), ("a/b/", "a/b")])
def test_it_is_created_with_its_parents_and_at_the_target_of_links(root: Path, wanted: str, made: str) -> None:
    """docker resolves a WORKDIR inside the image and creates the target of a link there."""
    make_directory(f"{root}/{wanted}", 0o750)
    assert stat.S_IMODE(os.lstat(root / made).st_mode) == 0o750
    assert (root / "link").is_symlink()


@pytest.mark.parametrize("wanted", ["file", "file/x", "loop", "loop/x"])
def test_a_file_in_the_way_is_kept(root: Path, wanted: str) -> None:
    make_directory(f"{root}/{wanted}", 0o755)
    assert sorted(os.listdir(root)) == ["file", "link", "loop"]
