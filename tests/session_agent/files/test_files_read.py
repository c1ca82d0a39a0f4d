"""Reading files: content, ranges, checksums, back-pressure, and special files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import zlib
from pathlib import Path

import pytest

from session_agent.agent.files.read import open_read
from tests.support.channel import FakeChannel, serve
from tests.support.own_process import in_own_process


def read(workdir: object, path: object, **params: object) -> FakeChannel:
    return serve(open_read, "read", workdir, {"path": path if isinstance(path, bytes) else str(path), **params})


async def test_content_and_digest(tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    (tmp_path / "a").write_bytes(data)
    os.chmod(tmp_path / "a", 0o640)
    channel = read(tmp_path, "a")
    info = await channel.opened()
    assert info["size"] == len(data)
    assert info["mode"] == 0o640
    assert info["mtime"] == os.stat(tmp_path / "a").st_mtime
    assert await channel.result() == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "crc32": zlib.crc32(data)}
    assert channel.output == data


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, 5), (3, None), (3, 4), (9, 10), (10, None), (50, 5)])
async def test_ranges(tmp_path: Path, offset: int, length: int | None) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    channel = read("/", tmp_path / "a", offset=offset, length=length)
    result = await channel.result()
    expected = b"0123456789"[offset : None if length is None else offset + length]
    assert (bytes(channel.output), result["size"]) == (expected, len(expected))


async def test_empty(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    channel = read(tmp_path, "a")
    assert await channel.result() == {"size": 0, "sha256": hashlib.sha256().hexdigest(), "crc32": 0}


async def test_reader_that_stops_holds_a_bounded_amount(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        file.truncate(64 * 1024 * 1024)
    channel = serve(open_read, "read", tmp_path, {"path": "a"}, window=200_000, reading=False)
    while channel.output_bytes < 200_000:
        channel.heard.clear()
        await channel.heard.wait()
    assert channel.handler._read_ahead.held <= 512 * 1024
    while not channel.ended.is_set():
        channel.read()
        await asyncio.sleep(0)
    assert channel.output_bytes == 64 * 1024 * 1024


@pytest.mark.parametrize("window", [1, 100, 131_072, 200_001])
async def test_any_credit_gives_the_same_bytes(tmp_path: Path, window: int) -> None:
    data = os.urandom(3000 if window < 1000 else 700_000)
    (tmp_path / "a").write_bytes(data)
    channel = serve(open_read, "read", tmp_path, {"path": "a"}, window=window)
    await channel.result()
    assert channel.output == data


async def test_other_channels_go_on_during_a_transfer(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        file.truncate(64 * 1024 * 1024)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    channel = serve(open_read, "read", tmp_path, {"path": "a"}, keep=False)
    counting = asyncio.create_task(count())
    await channel.result()
    counting.cancel()
    assert turns > 100


async def test_file_that_grows_ends_at_its_first_size(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 500_000)
    channel = serve(open_read, "read", tmp_path, {"path": "log"}, window=1000, reading=False)
    await channel.opened()
    with open(tmp_path / "log", "ab") as file:
        file.write(b"y" * 500_000)
    channel._reading = True
    channel.read()
    assert (await channel.result())["size"] == 500_000
    assert b"y" not in channel.output


async def test_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    """A shorter result without an error would be silent truncation."""
    (tmp_path / "log").write_bytes(b"x" * 2_000_000)
    channel = serve(open_read, "read", tmp_path, {"path": "log"}, window=1000, reading=False)
    await channel.opened()
    os.truncate(tmp_path / "log", 1_000_000)
    channel._reading = True
    channel.read()
    error = await channel.error()
    assert (error["code"], "truncated" in error["message"]) == ("io_error", True)


async def test_proc_files_report_size_zero_and_have_content() -> None:
    channel = read("/", "/proc/self/status")
    assert (await channel.opened())["size"] == 0
    await channel.result()
    assert b"Pid:" in channel.output


async def test_fifo_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    error = await read(tmp_path, "fifo").error()
    assert error["code"] == "not_a_file"
    assert "length" in error["hint"]
    assert (await read(tmp_path, "fifo", length=10).result())["size"] == 0


async def test_devices_need_a_length() -> None:
    assert (await read("/", "/dev/zero").error())["code"] == "not_a_file"
    channel = read("/", "/dev/zero", length=300_000)
    assert (await channel.result())["size"] == 300_000
    assert not channel.output.strip(b"\0")


async def test_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert (await read(tmp_path, "s").error())["code"] == "not_a_file"
        assert (await read(tmp_path, "s", length=1).error())["code"] == "not_a_file"


async def test_file_of_kernel_memory_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "kcore", "wb") as file:
        file.truncate(2**42)  # as /proc/kcore: a huge size without a block
    assert (await read(tmp_path, "kcore").error())["code"] == "not_a_file"
    assert (await read(tmp_path, "kcore", offset=2**41, length=5).result())["size"] == 5


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("missing", "file_not_found"),
        (".", "is_a_directory"),
        ("a/b", "not_a_directory"),
        ("n" * 300, "invalid_path"),
        ("loop", "invalid_path"),
        ("", "invalid_path"),
        ("a\0b", "invalid_path"),
        ("x" * 5000, "invalid_path"),
    ],
)
async def test_bad_paths_are_refused(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "loop").symlink_to("loop")
    error = await read(tmp_path, path).error()
    assert error["code"] == code
    assert error["message"]


@pytest.mark.parametrize("params", [{"offset": -1}, {"offset": "3"}, {"length": 1.5}, {"length": True}, {"offset": 2**60}])
async def test_invalid_parameters_are_refused(tmp_path: Path, params: dict[str, object]) -> None:
    (tmp_path / "a").touch()
    assert (await read(tmp_path, "a", **params).error())["code"] == "invalid_argument"


async def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"n\xff")).write_bytes(b"odd")
    channel = read(tmp_path, b"n\xff")
    await channel.result()
    assert channel.output == b"odd"
    error = await read(tmp_path, b"missing\xff\n").error()
    assert "missing\\xff\\n" in error["message"]
    error["message"].encode()


async def test_cancel_ends_a_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 500_000)
    channel = serve(open_read, "read", tmp_path, {"path": "a"}, window=10, reading=False)
    await channel.opened()
    channel.handler.close(False)
    assert (await channel.error())["code"] == "cancelled"


@in_own_process
async def test_drop_closes_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 500_000)
    before = len(os.listdir("/proc/self/fd"))
    channel = serve(open_read, "read", tmp_path, {"path": "a"}, window=10, reading=False)
    await channel.opened()
    channel.handler.drop()
    async with asyncio.timeout(60):
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0)
    assert not channel.ended.is_set()


async def test_permission_denied_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(mode=0)
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    error = await read(tmp_path, "secret").error()
    assert error["code"] == "permission_denied"
    assert "secret" in error["message"]
