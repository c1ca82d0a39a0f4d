"""Writing files: completely or not at all, what a target keeps, resuming, and every error."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import tempfile
import zlib
from pathlib import Path

import pytest

from session_agent.agent.files import xattrs
from session_agent.agent.files.write import open_write
from tests.support.channel import FakeChannel, serve
from tests.support.requires import requires

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change owners and to mount")


def write(workdir: object, path: object, **params: object) -> FakeChannel:
    return serve(open_write, "write", workdir, {"path": path if isinstance(path, bytes) else str(path), **params})


async def put(workdir: object, path: object, data: bytes, **params: object) -> dict[str, object]:
    channel = write(workdir, path, **params)
    await channel.write(data, eof=True)
    result = await channel.result()
    assert channel.consumed == len(data)
    return result


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


async def test_new_file(tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    digest = hashlib.sha256(data).hexdigest()
    assert await put(tmp_path, "a", data, sha256=digest, size=len(data)) == {"size": len(data), "sha256": digest, "crc32": zlib.crc32(data)}
    assert (tmp_path / "a").read_bytes() == data
    assert os.stat(tmp_path / "a").st_mode & 0o7777 == 0o644
    assert names(tmp_path) == ["a"]


async def test_empty_file(tmp_path: Path) -> None:
    await put(tmp_path, "a", b"")
    assert (tmp_path / "a").read_bytes() == b""


async def test_end_of_input_with_the_last_bytes(tmp_path: Path) -> None:
    channel = write(tmp_path, "a")
    channel.handler.write(b"all", True)
    assert (await channel.result())["size"] == 3
    assert (tmp_path / "a").read_bytes() == b"all"


async def test_parents_are_made_unless_refused(tmp_path: Path) -> None:
    await put(tmp_path, "x/y/z", b"1")
    assert (tmp_path / "x/y/z").read_bytes() == b"1"
    assert (await write(tmp_path, "p/q", parents=False).error())["code"] == "file_not_found"
    assert names(tmp_path) == ["x"]


async def test_target_is_untouched_until_the_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    channel = write(tmp_path, "a")
    await channel.write(b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    await channel.write(b"er", eof=True)
    await channel.result()
    assert (tmp_path / "a").read_bytes() == b"newer"


async def test_existing_mode_stays_and_privilege_bits_go(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.chmod(tmp_path / "a", 0o4751)
    await put(tmp_path, "a", b"x")
    assert os.stat(tmp_path / "a").st_mode & 0o7777 == 0o751
    await put(tmp_path, "a", b"x", mode=0o4700)
    assert os.stat(tmp_path / "a").st_mode & 0o7777 == 0o4700


@root_only
async def test_owner_stays_or_becomes_the_requested_user(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.chown(tmp_path / "a", 1234, 2345)
    await put(tmp_path, "a", b"x")
    assert (os.stat(tmp_path / "a").st_uid, os.stat(tmp_path / "a").st_gid) == (1234, 2345)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # other users can reach it, unlike tmp_path
        os.chmod(name, 0o777)
        await put(Path(name), "new/dir/b", b"x", user="77:88")
        for path in ("new", "new/dir", "new/dir/b"):
            assert (os.stat(f"{name}/{path}").st_uid, os.stat(f"{name}/{path}").st_gid) == (77, 88)
    assert (await write(tmp_path, "a", user="daemon").error())["code"] == "permission_denied"
    assert os.stat(tmp_path / "a").st_uid == 1234


@pytest.mark.parametrize(
    ("user", "code"), [("nobody-of-that-name", "user_not_found"), ("", "invalid_argument"), (True, "invalid_argument")]
)
async def test_bad_users_are_refused(tmp_path: Path, user: object, code: str) -> None:
    assert (await write(tmp_path, "a", user=user).error())["code"] == code


@pytest.mark.parametrize("how", ["close", "drop"])
async def test_nothing_is_left_of_a_transfer_that_stops(tmp_path: Path, how: str) -> None:
    (tmp_path / "a").write_bytes(b"old")
    channel = write(tmp_path, "a")
    await channel.write(b"n" * 300_000)
    await channel.used(300_000)
    if how == "close":
        channel.handler.close(False)
        assert (await channel.error())["code"] == "cancelled"
    else:
        channel.handler.drop()
        async with asyncio.timeout(60):
            while len(names(tmp_path)) > 1:
                await asyncio.sleep(0)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("params", [{"sha256": "0" * 64}, {"crc32": 7}, {"size": 4}, {"size": 2}])
async def test_wrong_checksum_leaves_the_target_alone(tmp_path: Path, params: dict[str, object]) -> None:
    (tmp_path / "a").write_bytes(b"old")
    channel = write(tmp_path, "a", **params)
    await channel.write(b"new", eof=True)
    assert (await channel.error())["code"] == "checksum_mismatch"
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("by", ["sha256", "crc32"])
@pytest.mark.parametrize("atomic", [True, False])
async def test_resume_at_an_offset(tmp_path: Path, atomic: bool, by: str) -> None:
    whole = os.urandom(400_000)
    (tmp_path / "a").write_bytes(whole[:250_000] + b"junk" * 100)
    sums = {"sha256": hashlib.sha256(whole).hexdigest(), "crc32": zlib.crc32(whole)}
    result = await put(tmp_path, "a", whole[250_000:], offset=250_000, atomic=atomic, **{by: sums[by]})
    assert result == {"size": 400_000, **sums}
    assert (tmp_path / "a").read_bytes() == whole
    assert names(tmp_path) == ["a"]


async def test_append_in_place_does_not_read_the_existing_content(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        file.truncate(2**40)
    assert await put(tmp_path, "a", b"tail", offset=2**40, atomic=False) == {"size": 2**40 + 4}
    with open(tmp_path / "a", "rb") as file:
        file.seek(2**40)
        assert file.read() == b"tail"


async def test_append_writes_at_the_end_of_the_file_at_that_time(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\n")
    channel = write(tmp_path, "log", append=True, offset=2)
    await channel.opened()
    with (tmp_path / "log").open("ab") as other:
        other.write(b"two\n")
    await channel.write(b"three\n", eof=True)
    assert await channel.result() == {"size": 10}
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nthree\n"
    assert (await write(tmp_path, "log", append=True, size=3).error())["code"] == "invalid_argument"
    assert (await write(tmp_path, "log", append=True, crc32=3).error())["code"] == "invalid_argument"


async def test_resume_beyond_the_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    error = await write(tmp_path, "a", offset=3).error()
    assert error["code"] == "invalid_argument"
    assert "2 bytes" in error["message"]
    assert (await write(tmp_path, "a", offset=3, atomic=False).error())["code"] == "invalid_argument"
    assert (tmp_path / "a").read_bytes() == b"12"
    assert (await write(tmp_path, "b", offset=3).error())["code"] == "file_not_found"
    assert names(tmp_path) == ["a"]


async def test_in_place_keeps_what_arrived(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old content")
    inode = os.stat(tmp_path / "a").st_ino
    channel = write(tmp_path, "a", atomic=False)
    await channel.write(b"new")
    await channel.used(3)
    channel.handler.close(False)
    await channel.error()
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.stat(tmp_path / "a").st_ino == inode


async def test_final_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("later")
    await put(tmp_path, "link", b"new")
    await put(tmp_path, "dangling", b"there")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "later").read_bytes() == b"there"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("d", "is_a_directory"),
        ("d/", "is_a_directory"),
        ("/", "is_a_directory"),
        ("a/b", "not_a_directory"),
        ("n" * 300, "invalid_path"),
        ("loop", "invalid_path"),
        ("fifo", "not_a_file"),
        ("", "invalid_path"),
        ("/proc/nothing/here", "file_not_found"),
    ],
)
async def test_bad_targets_are_refused(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "a").touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    channel = write(tmp_path, path)
    error = await channel.error()
    assert error["code"] == code
    assert path.strip("/") in error["message"]
    assert names(tmp_path) == ["a", "d", "fifo", "loop"]


async def test_device_is_written_in_place_only() -> None:
    assert (await write("/", "/dev/null").error())["code"] == "not_a_file"
    await put("/", "/dev/null", b"x" * 1000, atomic=False)


async def test_fifo_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert (await write(tmp_path, "fifo", atomic=False).error())["code"] == "not_a_file"


async def test_full_device_is_reported() -> None:
    channel = write("/", "/dev/full", atomic=False)
    await channel.write(b"x", eof=True)
    error = await channel.error()
    assert (error["code"], error["fault"]) == ("no_space", "workload")
    assert "/dev/full" in error["message"]


@pytest.mark.parametrize(("options", "code"), [("size=1m", "no_space"), ("ro", "read_only")])
@root_only
async def test_full_and_read_only_file_systems(tmp_path: Path, options: str, code: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(tmp_path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("cannot mount here")
    try:
        channel = write(tmp_path, "a")
        await channel.write(b"x" * 3_000_000, eof=True)
        assert (await channel.error())["code"] == code
        assert names(tmp_path) == []
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@root_only
async def test_mounted_file_is_written_through(tmp_path: Path) -> None:
    """/etc/hosts and /etc/resolv.conf are mounts in most containers, and cannot be replaced."""
    (tmp_path / "hosts").write_bytes(b"old and longer")
    (tmp_path / "mounted").touch()
    if subprocess.run(["mount", "--bind", str(tmp_path / "hosts"), str(tmp_path / "mounted")], capture_output=True, check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        await put(tmp_path, "mounted", b"new")
        assert (tmp_path / "hosts").read_bytes() == b"new"
        assert names(tmp_path) == ["hosts", "mounted"]
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "mounted")], check=True)


@pytest.mark.parametrize(
    "params",
    [{"mode": "755"}, {"mode": 0o10000}, {"offset": -1}, {"sha256": "abc"}, {"sha256": 5}, {"crc32": 1 << 32}, {"crc32": "0"},
     {"parents": 1}, {"size": -1}, {"atomic": "no"}],
)  # fmt: skip
async def test_invalid_parameters_are_refused(tmp_path: Path, params: dict[str, object]) -> None:
    assert (await write(tmp_path, "a", **params).error())["code"] == "invalid_argument"
    assert names(tmp_path) == []


async def test_input_after_the_failure_gets_its_credit_back(tmp_path: Path) -> None:
    channel = write(tmp_path, ".")
    await channel.error()
    channel.handler.write(b"late", False)
    assert channel.consumed == 4


async def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    await put(tmp_path, b"n\xff", b"odd")
    assert os.listdir(os.fsencode(tmp_path)) == [b"n\xff"]


@root_only
@root_only
async def test_an_owner_without_a_user_gets_the_new_files_and_limits_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    await put(tmp_path, "new/file", b"x", owner="123:456")
    await put(tmp_path, "new/in-place", b"x", owner="123:456", atomic=False)
    for name in ("new", "new/file", "new/in-place"):
        state = (tmp_path / name).stat()
        assert (state.st_uid, state.st_gid) == (123, 456)
    assert (await write(tmp_path, "a", owner="nobody-of-that-name").error())["code"] == "user_not_found"


@requires("root")
async def test_new_files_belong_to_the_sandboxs_own_user(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    for path in ("old", "new/file"):
        channel = serve(open_write, "write", tmp_path, {"path": path}, user="123:456")
        await channel.write(b"x", eof=True)
        await channel.result()
    assert os.stat(tmp_path / "old").st_uid == 0
    for path in ("new", "new/file"):
        assert (os.stat(tmp_path / path).st_uid, os.stat(tmp_path / path).st_gid) == (123, 456)


async def test_extended_attributes_of_a_prefix_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.setxattr(tmp_path / "a", "user.other", b"stays")
    os.setxattr(tmp_path / "a", "user.p.old", b"goes")
    for atomic in (False, True):
        values = {"new": f"value {atomic}"}
        await put(tmp_path, "a", b"x", xattrs={"prefix": "user.p.", "values": values}, atomic=atomic)
        assert xattrs.read(str(tmp_path / "a"), "user.p.") == values
        if not atomic:
            assert os.getxattr(tmp_path / "a", "user.other") == b"stays"
    for wrong in ("user.", {"prefix": "security.", "values": {}}, {"prefix": "user.p.", "values": {"a": 1}}, {"prefix": "user.p."}):
        assert (await write(tmp_path, "a", xattrs=wrong).error())["code"] == "invalid_argument"
    huge = {"prefix": "user.p.", "values": {"a": "x" * 5000}}
    assert (await write(tmp_path, "a", xattrs=huge).error())["code"] == "invalid_argument"
