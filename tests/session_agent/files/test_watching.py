"""What a watch reports, on real directories and the kernel's own events."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from holdfast_wire.frames import Closed

from session_agent.agent.files.trees import watch as watching
from session_agent.agent.files.trees.inotify import OVERFLOW, Event, Inotify
from session_agent.agent.files.trees.watch import WatchedTree, open_watch
from tests.support.channel import DEADLINE_S, FakeChannel, serve
from tests.support.own_process import in_own_process
from tests.support.requires import requires

LAST = "that-is-all"


def watch(workdir: object, path: object = ".", *, reading: bool = True, window: int = 1024 * 1024, **params: object) -> FakeChannel:
    return serve(open_watch, "watch", workdir, {"path": str(path), **params}, reading=reading, window=window)


def reported(channel: FakeChannel) -> list[dict[str, Any]]:
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(bytes(channel.output))
    return list(unpacker)


async def until(channel: FakeChannel, condition: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    async with asyncio.timeout(DEADLINE_S):
        while not condition(reported(channel)):
            channel.heard.clear()
            await channel.heard.wait()
    return reported(channel)


async def events(channel: FakeChannel, root: Path) -> list[tuple[str, ...]]:
    """The events until now, with paths below the root: creating a last file marks the end."""
    (root / LAST).touch()
    found = await until(channel, lambda all_: any(event["path"].endswith(LAST) for event in all_))
    rows = []
    for event in found:
        if event["path"].endswith(LAST):
            break
        paths = [event[key].removeprefix(str(root)).lstrip("/") for key in ("path", "to") if key in event]
        rows.append((event["type"], *paths, *(["/"] if event.get("directory") else [])))
    return rows


async def test_changes_of_attributes_alone_are_told_from_those_of_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    channel = watch("/", tmp_path, attributes=True)
    await until(channel, lambda _: channel.facts)
    (tmp_path / "file").chmod(0o600)
    with (tmp_path / "file").open("a") as file:
        file.write("y")
    (tmp_path / LAST).touch()
    found = await until(channel, lambda all_: any(event["path"].endswith(LAST) for event in all_))
    assert [(event["type"], event.get("attributes")) for event in found if event["path"].endswith("file")] == [
        ("modified", True),
        ("modified", None),
    ]


async def test_one_directory(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    (tmp_path / "sub").mkdir()
    channel = watch("/", tmp_path)
    assert await channel.opened() == {"directories": 1}
    (tmp_path / "new").touch()
    with open(tmp_path / "there", "a") as file:
        file.write("more")
        file.flush()
        file.write("still more")
    os.chmod(tmp_path / "there", 0o600)
    (tmp_path / "sub/unseen").touch()
    (tmp_path / "new").rename(tmp_path / "renamed")
    (tmp_path / "renamed").rename(tmp_path / "sub/away")
    (tmp_path / "sub/away").rename(tmp_path / "back")
    (tmp_path / "there").unlink()
    (tmp_path / "made").mkdir()
    (tmp_path / "made").rmdir()
    rows = await events(channel, tmp_path)
    assert [row for row in rows if row != ("modified", "new")] == [
        ("created", "new"), ("modified", "there"), ("moved", "new", "renamed"), ("deleted", "renamed"), ("created", "back"),
        ("deleted", "there"), ("created", "made", "/"), ("deleted", "made", "/"),
    ]  # fmt: skip
    channel.handler.close(False)
    assert isinstance(await channel.end(), Closed)


async def test_recursive_watch(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "out").symlink_to("/")
    channel = watch(tmp_path.parent, tmp_path.name, recursive=True)
    assert await channel.opened() == {"directories": 3}
    (tmp_path / "a/b/deep").touch()
    (tmp_path / "new/x/y").mkdir(parents=True)
    await until(channel, lambda all_: any(event["path"].endswith("x/y") for event in all_))
    (tmp_path / "new/x/y/file").touch()
    await until(channel, lambda all_: any(event["path"].endswith("y/file") for event in all_))
    (tmp_path / "new/x").rename(tmp_path / "a/moved")
    (tmp_path / "a/moved/y/again").touch()
    shutil.rmtree(tmp_path / "a/moved")
    rows = [row for row in await events(channel, tmp_path) if row[0] != "modified"]
    assert rows == [
        ("created", "a/b/deep"), ("created", "new", "/"), ("created", "new/x", "/"), ("created", "new/x/y", "/"),
        ("created", "new/x/y/file"), ("moved", "new/x", "a/moved", "/"), ("created", "a/moved/y/again"),
        *sorted([("deleted", "a/moved/y/again"), ("deleted", "a/moved/y/file")], key=rows.index), ("deleted", "a/moved/y", "/"),
        ("deleted", "a/moved", "/"),
    ]  # fmt: skip


async def test_a_tree_that_appears_at_once_is_reported_whole_and_once(tmp_path: Path) -> None:
    """Nothing of it is missed while its directories are not watched yet, and nothing is reported twice."""
    root, other = tmp_path / "root", tmp_path / "other"
    for folder in (root, other):
        folder.mkdir()
    channel = watch("/", root, recursive=True)
    await channel.opened()
    expected = set()
    for one in range(20):
        for two in range(5):
            (root / f"{one}/{two}").mkdir(parents=True)
            (root / f"{one}/{two}/leaf").touch()
            expected |= {f"{one}", f"{one}/{two}", f"{one}/{two}/leaf"}
    (other / "in/deep").mkdir(parents=True)
    (other / "in/deep/leaf").touch()
    (other / "in").rename(root / "in")
    expected |= {"in", "in/deep", "in/deep/leaf"}
    await until(channel, lambda all_: len({event["path"] for event in all_ if event["type"] == "created"}) >= len(expected))
    created = [row[1] for row in await events(channel, root) if row[0] == "created"]
    assert sorted(created) == sorted(expected)
    (root / "in").rename(other / "out")
    (other / "out/unseen").touch()
    (root / "0").rename(root / "zero")
    (root / "zero/1/late").touch()
    tail = await until(channel, lambda all_: any(event["path"].endswith("zero/1/late") for event in all_))
    assert not [event for event in tail if "unseen" in event["path"]]
    assert {"type": "deleted", "path": f"{root}/in", "directory": True} in tail
    assert {"type": "moved", "path": f"{root}/0", "to": f"{root}/zero", "directory": True} in tail


async def test_one_file_is_watched_by_its_name(tmp_path: Path) -> None:
    """Editors write another file and rename it into place."""
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        channel = watch(tmp_path, name)
        await channel.opened()
        with open(tmp_path / "file", "a") as file:
            file.write("2")
        (tmp_path / "beside").write_text("3")
        (tmp_path / "beside").rename(tmp_path / "file")
        (tmp_path / "file").unlink()
        (tmp_path / "file").write_text("")
        found = await until(channel, lambda all_: [event["type"] for event in all_][-1:] == ["created"])
        assert [event["type"] for event in found if event["type"] != "modified"] == ["moved", "deleted", "created"]
        path = str(tmp_path / name)
        assert {event["to"] if event["type"] == "moved" else event["path"] for event in found} == {path}
        channel.handler.close(False)
        await channel.end()


async def test_a_watch_ends_when_its_directory_is_removed_or_moved(tmp_path: Path) -> None:
    for end in (os.rmdir, lambda path: os.rename(path, tmp_path / "elsewhere")):
        (tmp_path / "gone").mkdir()
        channel = watch(tmp_path, "gone", recursive=True)
        await channel.opened()
        end(tmp_path / "gone")
        assert await channel.result() == {}
        assert reported(channel)[-1] == {"type": "deleted", "path": str(tmp_path / "gone"), "directory": True}


@pytest.mark.parametrize(
    ("path", "params", "code"),
    [
        ("missing", {}, "file_not_found"), ("file/x", {}, "not_a_directory"), ("", {}, "invalid_path"),
        (".", {"recursive": 1}, "invalid_argument"),
    ],
)  # fmt: skip
async def test_what_cannot_be_watched(tmp_path: Path, path: str, params: dict[str, Any], code: str) -> None:
    (tmp_path / "file").touch()
    assert (await watch(tmp_path, path, **params).error())["code"] == code


async def test_odd_names(tmp_path: Path) -> None:
    channel = watch(tmp_path)
    await channel.opened()
    (tmp_path / os.fsdecode(b"n\xff")).touch()
    (tmp_path / "new\nline").touch()
    found = await until(channel, lambda all_: len([one for one in all_ if one["type"] == "created"]) == 2)
    first = next(event for event in found if "raw_path" in event)
    assert first["raw_path"].endswith(b"n\xff")
    assert any(event["path"].endswith("new\nline") for event in found)


async def test_a_client_that_does_not_read_costs_little_memory_and_gets_an_overflow(tmp_path: Path) -> None:
    """The kernel's queue is the limit, and its overflow is reported as an event."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"the kernel queues {most} events")
    channel = watch("/", tmp_path, reading=False, window=4096)
    await channel.opened()
    for number in range(most // 2 + 3000):  # at least two events each
        path = tmp_path / f"{number % 100:03}"
        path.touch()
        path.unlink()
    handler = channel.handler
    assert channel.output_bytes <= 4096
    assert sum(map(len, handler._ahead)) <= 192 * 1024
    channel._reading = True
    channel.read()
    (tmp_path / "later").touch()
    found = await until(channel, lambda all_: any(event["type"] == "overflow" for event in all_))
    assert found[-1]["path"].startswith(str(tmp_path))
    (tmp_path / "after").touch()
    await until(channel, lambda all_: any(event["path"].endswith("after") for event in all_))


async def test_after_lost_events_new_directories_are_watched_and_old_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "same").mkdir()
    reads: list[list[Event]] = []
    real = Inotify.read

    def read(self: Inotify, patience_s: float = 0.0) -> list[Event]:
        return reads.pop(0) if reads else real(self, patience_s)

    tree = WatchedTree(str(tmp_path), True)
    tree.open()
    (tmp_path / "old").rmdir()
    (tmp_path / "new/inner").mkdir(parents=True)
    (tmp_path / "same").rmdir()
    (tmp_path / "same").mkdir()
    while real(tree.inotify):
        pass
    monkeypatch.setattr(Inotify, "read", read)
    reads.append([Event(-1, OVERFLOW, 0, "")])
    assert [event["type"] for event in tree.waiting()] == ["overflow"]
    assert sorted(node.path().removeprefix(str(tmp_path)) for node in tree._nodes.values()) == ["", "/new", "/new/inner", "/same"]
    for name in ("new/inner", "same"):
        (tmp_path / name / "file").touch()
        assert next(tree.waiting())["path"] == str(tmp_path / name / "file")
    tree.close()


async def test_more_directories_than_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_DIRECTORIES", 5)
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    channel = watch(tmp_path, recursive=True)
    await channel.opened()
    (tmp_path / "e").mkdir()
    found = await until(channel, lambda all_: any(event["type"] == "overflow" for event in all_))
    assert found[-1]["path"].endswith("/e")
    error = await watch(tmp_path, recursive=True).error()
    assert (error["code"], "max_user_watches" in error["hint"]) == ("session_limit", True)
    channel.handler.close(False)
    await channel.end()


@in_own_process
async def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        channel = watch(tmp_path, recursive=True)
        if number:
            await channel.opened()
        channel.handler.close(False)
        await channel.end()
    dropped = watch(tmp_path)
    await dropped.opened()
    dropped.handler.drop()
    async with asyncio.timeout(DEADLINE_S):
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0)


@requires("root")
async def test_a_watch_for_a_user_has_that_users_permissions(tmp_path: Path) -> None:
    for above in (tmp_path, *tmp_path.parents):
        if above.owner() == "root" and above != Path("/") and above != Path("/tmp"):
            os.chmod(above, 0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir(0o700)
    (tmp_path / "open/closed").mkdir(0o700)
    assert (await watch(tmp_path, "closed", user=65534).error())["code"] == "permission_denied"
    channel = watch(tmp_path, "open", user=65534, recursive=True)
    assert await channel.opened() == {"directories": 1}
    (tmp_path / "open/closed/secret").touch()
    assert await events(channel, tmp_path / "open") == []
    channel.handler.close(False)
    await channel.end()
