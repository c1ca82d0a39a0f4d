"""Copies inside the sandbox, each compared with the result of ``cp -a``."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from session_agent.agent.files.trees import copy as copying
from session_agent.agent.files.trees.operations import open_fs
from tests.support.channel import FakeChannel, serve
from tests.support.own_process import in_own_process
from tests.support.requires import requires

LONG_AGO = (10**18, 10**18 + 123_456_789)


def copy(workdir: object, path: str, to: str, **params: object) -> FakeChannel:
    return serve(open_fs, "fs", workdir, {"op": "copy", "path": path, "to": to, **params})


def state_of(root: Path) -> dict[str, Any]:
    """Everything below ``root``, and which names are hard links of one file."""
    found: dict[str, Any] = {}
    nodes: dict[tuple[int, int], str] = {}
    for folder, directories, files in os.walk(root):
        directories.sort()
        for name in [".", *sorted(directories + files)] if folder == str(root) else sorted(directories + files):
            path = os.path.join(folder, name)
            state = os.lstat(path)
            kind = stat.S_IFMT(state.st_mode)
            content = Path(path).read_bytes() if kind == stat.S_IFREG else os.readlink(path) if kind == stat.S_IFLNK else None
            first = nodes.setdefault((state.st_dev, state.st_ino), os.path.relpath(path, root))
            times = state.st_mtime_ns if name != "." else 0
            found[os.path.relpath(path, root)] = (oct(state.st_mode), state.st_uid, state.st_gid, content, state.st_rdev, first, times)
    return found


def make_files(root: Path) -> None:
    """Create every kind of file that a tree can hold."""
    tree = root / "tree"
    (tree / "inner/deeper").mkdir(parents=True)
    (tree / "plain").write_text("plain\n")
    (tree / "inner/program").write_text("#!/bin/sh\n")
    (tree / "empty").touch()
    with open(tree / "holes", "wb") as file:
        file.seek(3 * 1024 * 1024)
        file.write(b"end")
        file.truncate(5 * 1024 * 1024)
    (tree / "large").write_bytes(os.urandom(1024 * 1024 + 7))
    (tree / "link").symlink_to("plain")
    (tree / "inner/up").symlink_to("../plain")
    (tree / "dangling").symlink_to("nowhere")
    (tree / "absolute").symlink_to("/etc")
    os.link(tree / "plain", tree / "inner/hard")
    os.mkfifo(tree / "pipe", 0o622)
    (tree / os.fsdecode(b"n\xff")).write_text("odd name")
    (tree / "closed").mkdir()
    (tree / "closed/in").write_text("in")
    (root / "file").write_text("a file")
    (root / "file-link").symlink_to("file")
    (root / "tree-link").symlink_to("tree")
    os.link(root / "file", root / "file-too")
    (root / "hard-link").symlink_to("file-too")
    (root / "links/links").mkdir(parents=True)
    (root / "links/inner").symlink_to("../linked/links/inner")
    (root / "linked/links").mkdir(parents=True)
    (root / "linked/links/inner").write_text("what the link leads to")
    (root / "there").mkdir()
    (root / "there-link").symlink_to("there")
    (root / "taken").write_text("something longer that was there before")
    os.link(root / "taken", root / "taken-too")
    (root / "merged/tree/inner").mkdir(parents=True)
    (root / "merged/tree/inner/program").write_text("old, and longer than the new one by far")
    (root / "merged/tree/kept").write_text("kept")
    (root / "merged/tree/link").write_text("no link")
    (root / "merged/tree/plain").write_text("not hard-linked")
    (root / "blocked/tree/plain").mkdir(parents=True)
    (root / "blocked-too").mkdir()
    (root / "blocked-too/tree").write_text("a file in the way")
    os.chmod(tree / "inner/program", 0o4751)
    os.chmod(tree / "closed", 0o500)
    os.chmod(root / "file", 0o640)
    for folder, directories, files in os.walk(root, topdown=False):
        for name in directories + files:
            os.utime(os.path.join(folder, name), ns=LONG_AGO, follow_symlinks=False)


CASES = [
    ("file", "new"), ("file", "there"), ("file", "there/"), ("file", "there/other"), ("file", "taken"), ("file", "there-link"),
    ("file-link", "new"), ("file-link", "there"), ("file-link", "taken"), ("tree", "new"), ("tree", "new/"), ("tree/", "new"),
    ("tree", "there"), ("tree/.", "there"), ("tree/.", "new"), ("tree", "merged"), ("tree/.", "merged/tree"), ("tree-link", "new"),
    ("tree-link/", "new"), ("tree-link/.", "there"), ("tree", "there-link"), ("tree/pipe", "new"), ("tree/pipe", "taken"),
    ("tree/empty", "taken"), ("tree/dangling", "there"), ("tree/holes", "new"), ("tree/inner/program", "new"),
]  # fmt: skip
REFUSED = [
    ("file", "missing/new", "file_not_found"), ("missing", "new", "file_not_found"), ("file", "new/", "not_a_directory"),
    ("file/", "new", "not_a_directory"), ("file", "taken/new", "not_a_directory"), ("tree", "taken", "not_a_directory"),
    ("tree", "blocked", "is_a_directory"), ("tree", "blocked-too", "not_a_directory"), ("tree", "tree", "invalid_path"),
    ("tree", "tree/inner", "invalid_path"), ("tree", "tree/inner/new", "invalid_path"), ("file", "file", "invalid_path"),
    ("taken", "taken-too", "invalid_path"), ("tree", "missing/new", "file_not_found"), ("tree-link/", "tree", "invalid_path"),
    ("file-link", "file", "invalid_path"), ("hard-link", "file", "invalid_path"), ("links", "linked", "invalid_path"),
]  # fmt: skip


@requires("root")
@pytest.mark.parametrize(("path", "to"), CASES)
async def test_a_copy_is_what_cp_makes(tmp_path: Path, path: str, to: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for root in (ours, theirs):
        root.mkdir()
        make_files(root)
        for name, owner in (("tree/inner", (1000, 1001)), ("tree/plain", (7, 8)), ("tree/link", (9, 9))):
            os.chown(root / name, *owner, follow_symlinks=False)
    for large in ("tree/large",):
        (theirs / large).write_bytes((ours / large).read_bytes())
        os.utime(theirs / large, ns=LONG_AGO)
        os.utime(theirs / "tree", ns=LONG_AGO)
    subprocess.run(["cp", "-a", path, to], cwd=theirs, check=True)
    result = await copy(ours, path, to).result()
    found, expected = state_of(ours), state_of(theirs)
    assert found.keys() == expected.keys()
    for name in found:
        (*ours_, ours_time), (*theirs_, theirs_time) = found[name], expected[name]
        assert (name, ours_) == (name, theirs_)
        # the directory that received the copy has the current time in both
        assert ours_time == theirs_time or min(ours_time, theirs_time) > LONG_AGO[1] + 10**17, name
    assert result["entries"] >= 1


@requires("root")
@pytest.mark.parametrize(("path", "to", "code"), REFUSED)
async def test_what_cp_refuses_is_refused(tmp_path: Path, path: str, to: str, code: str) -> None:
    make_files(tmp_path)
    before = state_of(tmp_path)
    assert subprocess.run(["cp", "-a", path, to], cwd=tmp_path, capture_output=True, check=False).returncode
    for name in state_of(tmp_path).keys() - before.keys():  # what cp created before it failed
        (tmp_path / name).unlink() if not (tmp_path / name).is_dir() else None
    error = await copy(tmp_path, path, to).error()
    assert error["code"] == code, error
    assert error["message"]


async def test_holes_stay_holes(tmp_path: Path) -> None:
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(512 * 1024 * 1024)
        file.seek(100 * 1024 * 1024)
        file.write(b"middle")
    assert (await copy(tmp_path, "holes", "copy").result())["bytes"] <= 1024 * 1024
    copied = (tmp_path / "copy").stat()
    assert copied.st_size == 512 * 1024 * 1024
    assert copied.st_blocks * 512 < 1024 * 1024


async def test_a_file_that_reports_size_zero_is_read(tmp_path: Path) -> None:
    await copy(tmp_path, "/proc/self/status", "copy").result()
    assert (tmp_path / "copy").read_text().startswith("Name:")


async def test_links_inside_a_tree_are_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_text("new")
    (tmp_path / "tree/sub").mkdir()
    (tmp_path / "tree/sub/b").write_text("new")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (tmp_path / "to/tree").mkdir(parents=True)
    (tmp_path / "to/tree/a").symlink_to(tmp_path / "outside/secret")
    await copy(tmp_path, "tree/.", "to/tree").result()
    assert (tmp_path / "outside/secret").read_text() == "secret"
    assert (tmp_path / "to/tree/a").read_text() == "new"
    (tmp_path / "again").mkdir()
    (tmp_path / "again/sub").symlink_to(tmp_path / "outside")
    assert (await copy(tmp_path, "tree/.", "again").error())["code"] == "not_a_directory"
    assert sorted(os.listdir(tmp_path / "outside")) == ["secret"]


async def test_a_tree_deeper_than_the_longest_path(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for name in ["tree", *["d" * 200] * 60]:
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    assert (await copy(tmp_path, "tree", "copy").result())["entries"] == 62
    assert subprocess.run(["find", "copy", "-name", "leaf"], cwd=tmp_path, capture_output=True, check=True).stdout.count(b"leaf") == 1
    for name in ("tree", "copy"):
        subprocess.run(["rm", "-rf", name], cwd=tmp_path, check=True)


async def test_a_cancelled_copy_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops between two time slices."""
    monkeypatch.setattr("session_agent.agent.files.trees.copy._SLICE_S", 0.0)
    (tmp_path / "tree").mkdir()
    for number in range(2000):
        (tmp_path / f"tree/{number}").touch()
    channel = copy(tmp_path, "tree", "copy")
    channel.handler.close(False)
    assert (await channel.error())["code"] == "cancelled"
    made = len(os.listdir(tmp_path / "copy")) if (tmp_path / "copy").exists() else 0
    assert made < 2000


@in_own_process
async def test_no_descriptor_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for path, to in (("tree", "new"), ("tree", "blocked"), ("tree", "blocked-too"), ("file", "missing/x"), ("tree", "there")):
        await copy(tmp_path, path, to).end()
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(copying, "_SLICE_S", 0.0)
    left = copying.copy(str(tmp_path / "tree"), str(tmp_path / "left"))
    assert [next(left), next(left)] == [{}, b""]
    assert len(os.listdir("/proc/self/fd")) > before
    left.close()
    assert len(os.listdir("/proc/self/fd")) == before


@requires("root")
async def test_a_copy_for_a_user_has_that_users_permissions(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    for above in tmp_path.parents[:3]:
        os.chmod(above, 0o755) if above != Path("/tmp") else None
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/open").write_text("open")
    os.chmod(tmp_path / "tree/open", 0o4755)
    (tmp_path / "secret").write_text("secret")
    os.chmod(tmp_path / "secret", 0o600)
    (tmp_path / "own").mkdir()
    os.chown(tmp_path / "own", 65534, 65534)
    assert (await copy(tmp_path, "tree", "own", user=65534).result()) == {"entries": 2, "bytes": 4}
    state = os.stat(tmp_path / "own/tree/open")
    assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (65534, 0o755), "the set-user-id bit is dropped: it was for the other owner"
    assert (await copy(tmp_path, "secret", "own", user=65534).error())["code"] == "permission_denied"
    assert (await copy(tmp_path, "tree", "new", user=65534).error())["code"] == "permission_denied"
    assert (await copy(tmp_path, "secret", "own").result()) == {"entries": 1, "bytes": 6}
    assert os.stat(tmp_path / "own/secret").st_uid == 0


async def test_sockets_and_attributes(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tmp_path)
        server.bind("socket")
        os.chdir("/")
        await copy(tmp_path, "socket", "copy").result()
    assert stat.S_ISSOCK(os.stat(tmp_path / "copy").st_mode)
    (tmp_path / "file").touch()
    try:
        os.setxattr(tmp_path / "file", "user.note", b"kept")
    except OSError:
        return  # this file system has no extended attributes
    await copy(tmp_path, "file", "copied").result()
    assert os.getxattr(tmp_path / "copied", "user.note") == b"kept"
