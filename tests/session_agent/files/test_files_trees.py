"""Trees that are deeper than Python's recursion limit, and trees that are moved from one file system to another."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from session_agent import trees
from session_agent.agent.files.trees import copy as copying
from session_agent.agent.files.trees import moves as tree_operations
from tests.session_agent.files.test_files_ops import entries, fs
from tests.support.requires import requires

DEPTH = 1010
"""More than Python's recursion limit."""


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory on another file system than the tests' own."""
    there = Path(f"/dev/shm/holdfast-test-{os.getpid()}")
    there.mkdir()
    yield there
    subprocess.run(["rm", "-rf", there], check=True)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A directory for trees that are too deep for pytest to remove."""
    yield tmp_path
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


def make_nested(top: Path, depth: int, name: str = "d") -> None:
    """Create directories within directories, and a file at the bottom."""
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


async def test_a_deep_tree_is_removed(deep: Path) -> None:
    make_nested(deep, DEPTH)
    make_nested(deep / "d", 30, "n" * 200)
    (deep / "d/file").touch()
    (deep / "d/link").symlink_to(deep)
    assert (await fs(deep, "remove", "d", recursive=True).result()) == {"existed": True}
    assert not list(deep.iterdir())


async def test_a_deep_tree_is_listed_and_searched(deep: Path) -> None:
    """Down to the longest possible path; anything deeper is reported as truncated."""
    make_nested(deep, DEPTH)
    channel = fs("/", "list", deep, recursive=True)
    assert (await entries(channel))[-1]["name"] == "bottom"
    assert (await channel.result())["truncated"] is False
    (found,) = await entries(fs("/", "search", deep, glob="bottom"))
    assert found["path"].endswith("/d/bottom")
    (deep / "other").mkdir()
    make_nested(deep / "other", 30, "n" * 200)
    channel = fs("/", "list", deep / "other", recursive=True)
    assert len(await entries(channel)) > 15
    assert (await channel.result())["truncated"] is True


async def test_what_cannot_be_removed_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/stays").touch()

    def refuse(name: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(1, "Operation not permitted", name)

    monkeypatch.setattr(os, "unlink", refuse)
    error = await fs("/", "remove", tmp_path / "a", recursive=True).error()
    assert (error["code"], error["detail"]["path"]) == ("permission_denied", str(tmp_path / "a/b/stays"))


@requires("memory file system")
async def test_a_link_across_file_systems_is_replaced_not_followed(tmp_path: Path, elsewhere: Path) -> None:
    (elsewhere / "folder").mkdir()
    (elsewhere / "file").write_text("kept")
    (elsewhere / "to-folder").symlink_to("folder")
    (elsewhere / "to-file").symlink_to("file")
    for name in ("to-folder", "to-file"):
        (tmp_path / "new").write_text("new")
        await fs(tmp_path, "move", "new", to=str(elsewhere / name), overwrite=True).result()
        assert not (elsewhere / name).is_symlink()
        assert (elsewhere / name).read_text() == "new"
    assert not list((elsewhere / "folder").iterdir())
    assert (elsewhere / "file").read_text() == "kept"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["file", "folder", "to-file", "to-folder"]


@requires("memory file system", "root")
async def test_a_move_across_file_systems_keeps_what_a_rename_keeps(tmp_path: Path, elsewhere: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner/file").write_text("x")
    (tree / "link").symlink_to("/nowhere")
    os.mkfifo(tree / "pipe", 0o620)
    os.chmod(tree / "inner/file", 0o4750)
    owner = 4321 if os.geteuid() == 0 else os.geteuid()
    for path in (tree, tree / "inner", tree / "inner/file", tree / "link", tree / "pipe"):
        if os.geteuid() == 0:
            os.chown(path, owner, owner, follow_symlinks=False)
    os.chmod(tree / "inner/file", 0o4750)
    os.chmod(tree / "inner", 0o500)
    os.utime(tree, (1, 1))
    await fs(tmp_path, "move", "tree", to=str(elsewhere / "tree")).result()
    assert not tree.exists()
    moved = elsewhere / "tree"
    assert {path.lstat().st_uid for path in (moved, *moved.rglob("*"))} == {owner}
    assert (moved / "inner/file").stat().st_mode & 0o7777 == 0o4750
    assert (moved / "inner").stat().st_mode & 0o7777 == 0o500
    assert os.readlink(moved / "link") == "/nowhere"
    assert stat.S_ISFIFO((moved / "pipe").stat().st_mode)
    assert moved.stat().st_mtime == 1


@requires("memory file system")
async def test_a_failed_move_across_file_systems_changes_nothing(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("x")
    (elsewhere / "full/inside").mkdir(parents=True)
    (elsewhere / "file").write_text("old")
    for to, code in (("full", "directory_not_empty"), ("file", "not_a_directory"), ("no/such", "file_not_found")):
        error = await fs(tmp_path, "move", "tree", to=str(elsewhere / to), overwrite=True).error()
        assert error["code"] == code, to
    assert (await fs(tmp_path, "move", "tree/file", to=str(elsewhere / "full"), overwrite=True).error())["code"] == "is_a_directory"
    assert (tmp_path / "tree/file").read_text() == "x"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["file", "full"]


@requires("memory file system")
@pytest.mark.parametrize(
    ("path", "to", "code"),
    [("file", "new/", "not_a_directory"), ("to-tree/", "new", "not_a_directory"), ("tree/.", "new", "permission_denied")],
)
async def test_a_move_across_file_systems_is_refused_where_a_rename_is(
    tmp_path: Path, elsewhere: Path, path: str, to: str, code: str
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/inside").write_text("x")
    (tmp_path / "to-tree").symlink_to("tree")
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path, elsewhere):
        assert (await fs(tmp_path, "move", path, to=f"{folder}/{to}").error())["code"] == code, folder
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["file", "inside", "to-tree", "tree"]
    assert not list(elsewhere.iterdir())


def test_a_mounted_directory_is_not_moved_to_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted/inside").write_text("x")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "mounted"))
    with pytest.raises(OSError, match="busy") as refused:
        tree_operations.move_across(str(tmp_path / "mounted"), str(tmp_path / "new"))
    assert refused.value.filename == str(tmp_path / "mounted")
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["inside", "mounted"]


def test_a_directory_moved_out_of_a_tree_during_its_removal_keeps_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a directory is moved out of the tree during the removal, the files next to its new place must not be removed."""
    (tmp_path / "tree/a/b").mkdir(parents=True)
    (tmp_path / "outside/keep").mkdir(parents=True)
    rmdir = os.rmdir

    def move_then_rmdir(name: str, *, dir_fd: int | None = None) -> None:
        if name == "b":
            rmdir(name, dir_fd=dir_fd)
            os.rename(tmp_path / "tree/a", tmp_path / "outside/a")
        else:
            rmdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", move_then_rmdir)
    with pytest.raises(OSError, match="tree"):
        trees.remove_tree(str(tmp_path / "tree"))
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["a", "keep"]


def test_a_process_that_keeps_creating_files_does_not_keep_a_removal_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/0").touch()
    unlink, removed = os.unlink, []

    def unlink_then_create(name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        removed.append(name)
        if len(removed) < 100:
            (tmp_path / f"tree/{len(removed)}").touch()

    monkeypatch.setattr(os, "unlink", unlink_then_create)
    with pytest.raises(OSError, match="not empty"):
        trees.remove_tree(str(tmp_path / "tree"))
    assert len(removed) < 100


def test_what_is_mounted_in_a_tree_is_not_removed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree/mounted").mkdir(parents=True)
    (tmp_path / "tree/mounted/keep").touch()
    rmdir = os.rmdir

    def busy(name: str, *, dir_fd: int | None = None) -> None:
        if name == "mounted":  # as the kernel answers for a mount point, before it looks whether it is empty
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
        rmdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", busy)
    with pytest.raises(OSError, match="busy"):
        trees.remove_tree(str(tmp_path / "tree"))
    assert (tmp_path / "tree/mounted/keep").exists()


def test_a_move_that_runs_out_of_space_names_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "from").write_text("x")

    def full(source: int, target: int, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(copying, "copy_contents", full)
    with pytest.raises(OSError, match="No space") as failed:
        tree_operations.move_across(str(tmp_path / "from"), str(tmp_path / "to"))
    assert failed.value.filename == str(tmp_path / "to")
    assert os.listdir(tmp_path) == ["from"]
