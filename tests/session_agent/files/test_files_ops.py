"""list, stat, exists, mkdir, move, remove, chmod, search."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgpack
import pytest

from session_agent.agent.files.trees.operations import open_fs
from tests.support.channel import FakeChannel, serve
from tests.support.requires import requires


def fs(workdir: object, op: str, path: object = ".", **params: object) -> FakeChannel:
    return serve(open_fs, "fs", workdir, {"op": op, "path": path if isinstance(path, bytes) else str(path), **params})


async def entries(channel: FakeChannel) -> list[dict[str, Any]]:
    await channel.result()
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(bytes(channel.output))
    return list(unpacker)


def tree(root: Path) -> None:
    (root / "b/inner").mkdir(parents=True)
    (root / "b/inner/deep.txt").write_text("needle here\nand there a NEEDLE\n")
    (root / "a.txt").write_text("one\n")
    (root / "link").symlink_to("a.txt")
    (root / "c").mkdir()


async def test_list_is_sorted_and_describes_each_entry(tmp_path: Path) -> None:
    tree(tmp_path)
    os.chmod(tmp_path / "a.txt", 0o600)
    found = await entries(fs(tmp_path, "list"))
    assert [(e["name"], e["type"]) for e in found] == [("a.txt", "file"), ("b", "directory"), ("c", "directory"), ("link", "symlink")]
    state = os.stat(tmp_path / "a.txt")
    assert found[0] == {
        "name": "a.txt",
        "path": str(tmp_path / "./a.txt"),
        "type": "file",
        "size": 4,
        "mode": 0o600,
        "mtime": state.st_mtime,
        "uid": state.st_uid,
        "gid": state.st_gid,
    } | {"path": found[0]["path"]}
    assert os.path.samefile(found[0]["path"], tmp_path / "a.txt")
    assert found[3]["target"] == "a.txt"


async def test_list_recursive_and_bounded(tmp_path: Path) -> None:
    tree(tmp_path)
    found = await entries(fs("/", "list", tmp_path, recursive=True))
    assert [os.path.relpath(e["path"], tmp_path) for e in found] == ["a.txt", "b", "b/inner", "b/inner/deep.txt", "c", "link"]
    found = await entries(fs("/", "list", tmp_path, depth=2))
    assert [os.path.relpath(e["path"], tmp_path) for e in found] == ["a.txt", "b", "b/inner", "c", "link"]
    channel = fs("/", "list", tmp_path, recursive=True, limit=2)
    assert len(await entries(channel)) == 2
    assert (await channel.result())["truncated"] is True


async def test_list_of_many_names_streams(tmp_path: Path) -> None:
    for i in range(3000):
        (tmp_path / f"{i:05}").touch()
    channel = serve(open_fs, "fs", tmp_path, {"op": "list", "path": "."}, window=5000)
    found = await entries(channel)
    assert [e["name"] for e in found] == [f"{i:05}" for i in range(3000)]
    assert (await channel.result()) == {"entries": 3000, "truncated": False, "errors": 0}


async def test_names_that_are_not_utf8_are_sent_as_bytes(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"n\xff")).touch()
    (entry,) = await entries(fs(tmp_path, "list"))
    assert (entry["name"], entry["raw_name"]) == ("n\ufffd", b"n\xff")
    reported = (await fs("/", "stat", entry["raw_path"]).result())["entry"]
    assert reported["raw_name"] == b"n\xff"
    assert (await fs("/", "exists", entry["raw_path"]).result()) == {"exists": True}
    assert (await fs("/", "exists", entry["path"]).result()) == {"exists": False}


async def test_list_does_not_follow_a_loop(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/up").symlink_to("..")
    assert len(await entries(fs(tmp_path, "list", recursive=True))) == 2


async def test_stat_follows_links_by_default(tmp_path: Path) -> None:
    tree(tmp_path)
    followed = (await fs(tmp_path, "stat", "link").result())["entry"]
    assert (followed["type"], followed["target"], followed["name"]) == ("file", "a.txt", "link")
    assert (await fs(tmp_path, "stat", "link", follow=False).result())["entry"]["type"] == "symlink"
    assert (await fs(tmp_path, "stat", "/dev/null").result())["entry"]["type"] == "other"


async def test_exists(tmp_path: Path) -> None:
    tree(tmp_path)
    for path, expected in {"a.txt": True, "b": True, "no": False, "a.txt/x": False}.items():
        assert (await fs(tmp_path, "exists", path).result()) == {"exists": expected}


async def test_mkdir(tmp_path: Path) -> None:
    assert (await fs(tmp_path, "mkdir", "x/y/", mode=0o700).result()) == {"created": True}
    assert os.stat(tmp_path / "x/y").st_mode & 0o777 == 0o700
    assert (await fs(tmp_path, "mkdir", "x/y").result()) == {"created": False}
    assert (await fs(tmp_path, "mkdir", "x", exist_ok=False).error())["code"] == "file_exists"
    assert (await fs(tmp_path, "mkdir", "p/q", parents=False).error())["code"] == "file_not_found"
    (tmp_path / "f").touch()
    assert (await fs(tmp_path, "mkdir", "f").error())["code"] == "file_exists"
    assert (await fs(tmp_path, "mkdir", "f/g").error())["code"] == "not_a_directory"


async def test_move(tmp_path: Path) -> None:
    tree(tmp_path)
    assert (await fs(tmp_path, "move", "a.txt", to="c").error())["code"] == "file_exists"
    assert (await fs(tmp_path, "move", "a.txt", to="c", overwrite=True).error())["code"] == "is_a_directory"
    (tmp_path / "old").write_text("old")
    assert (await fs(tmp_path, "move", "a.txt", to="old").error())["code"] == "file_exists"
    await fs(tmp_path, "move", "a.txt", to="old", overwrite=True).result()
    assert (tmp_path / "old").read_text() == "one\n"
    await fs(tmp_path, "move", "b", to="new/home", parents=True).result()
    assert (tmp_path / "new/home/inner/deep.txt").exists()
    assert (await fs(tmp_path, "move", "gone", to="x").error())["code"] == "file_not_found"
    assert (await fs(tmp_path, "move", "new", to="new/in").error())["code"] == "invalid_path"
    assert (await fs(tmp_path, "move", "new").error())["code"] == "invalid_path"


@requires("memory file system")
async def test_move_across_file_systems(tmp_path: Path) -> None:
    tree(tmp_path)
    target = Path(f"/dev/shm/holdfast-test-{os.getpid()}")
    await fs(tmp_path, "move", "b", to=str(target)).result()
    try:
        assert (target / "inner/deep.txt").exists()
        assert not (tmp_path / "b").exists()
    finally:
        await fs("/", "remove", target, recursive=True).result()
    assert not target.exists()


async def test_remove(tmp_path: Path) -> None:
    tree(tmp_path)
    assert (await fs(tmp_path, "remove", "b").error())["code"] == "directory_not_empty"
    assert (await fs(tmp_path, "remove", "b", recursive=True).result()) == {"existed": True}
    assert (await fs(tmp_path, "remove", "b").error())["code"] == "file_not_found"
    assert (await fs(tmp_path, "remove", "b", missing_ok=True).result()) == {"existed": False}
    assert (await fs(tmp_path, "remove", "link").result()) == {"existed": True}
    assert (tmp_path / "a.txt").exists()
    assert (await fs(tmp_path, "remove", "c").result()) == {"existed": True}


async def test_recursive_remove_does_not_go_through_links(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/me").touch()
    (tmp_path / "d").mkdir()
    (tmp_path / "d/link").symlink_to(tmp_path / "keep")
    (tmp_path / "top").symlink_to("keep")
    await fs(tmp_path, "remove", "d", recursive=True).result()
    await fs(tmp_path, "remove", "top", recursive=True).result()
    assert (tmp_path / "keep/me").exists()


@pytest.mark.parametrize("path", ["/", "//", "/usr/..", "/proc"])
async def test_the_root_of_a_file_system_is_not_removed(path: str) -> None:
    assert (await fs("/", "remove", path, recursive=True).error())["code"] == "permission_denied"


async def test_chmod(tmp_path: Path) -> None:
    tree(tmp_path)
    await fs(tmp_path, "chmod", "a.txt", mode=0o741).result()
    assert os.stat(tmp_path / "a.txt").st_mode & 0o7777 == 0o741
    assert (await fs(tmp_path, "chmod", "a.txt").error())["code"] == "invalid_argument"
    assert (await fs(tmp_path, "chmod", "no", mode=0).error())["code"] == "file_not_found"


async def test_search(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "binary").write_bytes(b"needle\0")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/needle").write_text("needle")
    found = await entries(fs("/", "search", tmp_path, pattern="needle"))
    assert [(e["path"], e["line"], e["text"]) for e in found] == [(str(tmp_path / "b/inner/deep.txt"), 1, "needle here")]
    assert len(await entries(fs("/", "search", tmp_path, pattern="needle", ignore_case=True))) == 2
    assert len(await entries(fs("/", "search", tmp_path, pattern="needle", exclude=[]))) == 2
    found = await entries(fs("/", "search", tmp_path, glob="*.txt"))
    assert [e["path"] for e in found] == [str(tmp_path / "a.txt"), str(tmp_path / "b/inner/deep.txt")]
    assert len(await entries(fs("/", "search", tmp_path, glob="b/*/deep.txt"))) == 1
    assert len(await entries(fs("/", "search", tmp_path, glob="**/*.txt"))) == 2
    channel = fs("/", "search", tmp_path, glob="*", limit=1)
    assert len(await entries(channel)) == 1
    assert (await channel.result())["truncated"] is True


async def test_search_is_not_a_regular_expression(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a" * 1900 + "\n(a+)+$\n")
    (found,) = await entries(fs("/", "search", tmp_path, pattern="(a+)+$"))
    assert found["line"] == 2


@pytest.mark.parametrize(
    "params",
    [{"op": "nope"}, {"op": None}, {"op": 5}, {"depth": 0}, {"recursive": "yes"}, {"limit": -1}, {"op": "search", "exclude": "x"}],
)
async def test_invalid_parameters_are_refused(tmp_path: Path, params: dict[str, Any]) -> None:
    channel = serve(open_fs, "fs", tmp_path, {"op": "list", "path": ".", **params})
    assert (await channel.error())["code"] == "invalid_argument"


@pytest.mark.parametrize(
    ("path", "code"), [("no", "file_not_found"), ("a.txt", "not_a_directory"), (5, "invalid_path"), (None, "invalid_path")]
)
async def test_list_of_a_bad_path_is_refused(tmp_path: Path, path: object, code: str) -> None:
    tree(tmp_path)
    channel = serve(open_fs, "fs", tmp_path, {"op": "list", "path": path})
    assert (await channel.error())["code"] == code
