"""Files, directories, patches and tunnels of a real sandbox, on both APIs."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from holdfast import (
    InvalidPathError,
    PortUnreachableError,
    RemoteFileExistsError,
    RemoteFileNotFoundError,
    RemoteIsADirectoryError,
    RemoteNotADirectoryError,
    RemotePermissionError,
)

from tests.sdk.support.requirements import STACK

pytestmark = STACK


async def test_written_content_is_read_back(live: Any) -> None:
    files = live.files
    for data in (b"", b"x", bytes(range(256)) * 8192):
        written = await files.write("/tmp/a", data)
        assert written.size_bytes == len(data)
        assert written.sha256 == hashlib.sha256(data).hexdigest()
        assert await files.read("/tmp/a") == data
    await files.write("/tmp/deep/er/b", "grüße\n", mode=0o600)
    assert await files.read_text("/tmp/deep/er/b") == "grüße\n"
    assert (await files.stat("/tmp/deep/er/b")).mode == 0o600
    await files.append("/tmp/deep/er/b", "more")
    await files.append("/tmp/new", b"new")
    assert await files.read_text("/tmp/deep/er/b") == "grüße\nmore"
    assert await files.read("/tmp/new") == b"new"
    assert await files.read("/tmp/deep/er/b", offset=2, length=3) == "grüße".encode()[2:5]
    await files.write("/tmp/from-file", io.BytesIO(b"z" * 3_000_000))
    pieces = [piece async for piece in files.stream("/tmp/from-file")]
    assert b"".join(pieces) == b"z" * 3_000_000
    assert len(pieces) > 1


async def test_search(live: Any) -> None:
    await live.files.write("/tmp/s/a.py", "one\nTwo.*\n")
    await live.files.write("/tmp/s/sub/b.txt", "two.*\n")
    assert [match.path for match in await live.files.search("/tmp/s", glob="*.py")] == ["/tmp/s/a.py"]
    found = await live.files.search("/tmp/s", pattern="two.*", ignore_case=True)
    assert [(match.path, match.line, match.text) for match in found] == [("/tmp/s/a.py", 2, "Two.*"), ("/tmp/s/sub/b.txt", 1, "two.*")]
    assert await live.files.search("/tmp/s", pattern="two.*", exclude=["sub"]) == []
    assert len(await live.files.search("/tmp/s", limit=1)) == 1


async def test_listing_moving_and_removing(live: Any) -> None:
    files = live.files
    await files.mkdir("/tmp/d/e")
    await files.write("/tmp/d/f", b"12345")
    await live.exec("ln -s f /tmp/d/link")
    entries = await files.list("/tmp/d")
    assert [(e.name, e.type, e.is_dir) for e in entries] == [("e", "directory", True), ("f", "file", False), ("link", "symlink", False)]
    assert (entries[1].size, entries[1].path, entries[2].target) == (5, "/tmp/d/f", "f")
    assert [e.path for e in await files.list("/tmp", recursive=True) if e.name == "f"] == ["/tmp/d/f"]
    assert await files.exists("/tmp/d/f")
    assert not await files.exists("/tmp/d/g")
    await files.move("/tmp/d/f", "/tmp/d/g")
    await files.chmod("/tmp/d/g", 0o755)
    assert (await files.stat("/tmp/d/g")).mode == 0o755
    with pytest.raises(RemoteFileExistsError):
        await files.remove("/tmp/d")
    await files.remove("/tmp/d", recursive=True)
    await files.remove("/tmp/d", missing_ok=True)
    assert not await files.exists("/tmp/d")


async def test_names_that_are_not_valid_utf8(live: Any) -> None:
    await live.exec(["python3", "-c", r"open(b'/tmp/odd-\xff', 'w').write('x')"])
    (entry,) = [e for e in await live.files.list("/tmp") if e.name.startswith("odd")]
    assert entry.raw_path == b"/tmp/odd-\xff"
    assert await live.files.read(entry.raw_path) == b"x"
    assert await live.files.read(os.fsdecode(entry.raw_path)) == b"x"


async def test_errors_are_also_builtin_exceptions(live: Any) -> None:
    files = live.files
    for wrong in (files.read("/tmp/none"), files.stat("/tmp/none"), files.remove("/tmp/none"), files.move("/tmp/none", "/tmp/x")):
        with pytest.raises(FileNotFoundError) as missing:
            await wrong
        assert isinstance(missing.value, RemoteFileNotFoundError)
        assert "/tmp/none" in str(missing.value)
    with pytest.raises(RemoteIsADirectoryError):
        await files.read("/tmp")
    with pytest.raises(RemoteNotADirectoryError):
        await files.list("/etc/passwd")
    with pytest.raises(InvalidPathError):
        await files.read("")
    await files.write("/tmp/bin", b"\xff")
    with pytest.raises(UnicodeDecodeError):
        await files.read_text("/tmp/bin")
    assert (await live.exec("true")).ok, "an error of one channel does not end the session"


async def test_files_are_uploaded_and_downloaded(live: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(5_000_000))
    source.chmod(0o750)
    moved = await live.files.upload(source, "/tmp/there")
    assert (moved.size_bytes, (await live.files.stat("/tmp/there")).mode) == (5_000_000, 0o750)
    back = await live.files.download("/tmp/there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert back.sha256 == moved.sha256
    folder = tmp_path / "folder"
    folder.mkdir()
    await live.files.download("/tmp/there", folder)
    assert (folder / "there").stat().st_size == 5_000_000
    with pytest.raises(RemoteFileNotFoundError):
        await live.files.download("/tmp/none", tmp_path / "none")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "folder", "source"], "no partial file is left"


async def test_directories_are_uploaded_and_downloaded(live: Any, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "a.txt").write_text("a")
    (source / "sub" / "run").write_bytes(os.urandom(300_000))
    (source / "sub" / "run").chmod(0o755)
    (source / "link").symlink_to("a.txt")
    (source / ("long" * 40)).write_text("long name")
    await live.files.upload(source, "/tmp/tree")
    assert (await live.exec("cd /tmp/tree && find . | sort | head -3; readlink link; stat -c %a sub/run")).stdout == (
        ".\n./a.txt\n./link\na.txt\n755\n"
    )
    target = tmp_path / "copy"
    moved = await live.files.download("/tmp/tree", target)
    assert moved.entries >= 6
    assert (target / "sub" / "run").read_bytes() == (source / "sub" / "run").read_bytes()
    assert stat.S_IMODE((target / "sub" / "run").stat().st_mode) == 0o755
    assert os.readlink(target / "link") == "a.txt"
    assert (target / "sub" / "empty").is_dir()


async def test_links_of_a_hostile_tree_lead_nowhere_outside_the_target(live: Any, tmp_path: Path) -> None:
    await live.exec("mkdir /tmp/h && cd /tmp/h && ln -s /etc/passwd abs && ln -s ../../../x up && echo ok > fine")
    target = tmp_path / "in"
    await live.files.download("/tmp/h", target)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert [path.name for path in target.iterdir()] == ["fine"], "links that lead outside are left out"
    assert (target / "fine").read_text() == "ok\n"


async def test_patches(live: Any) -> None:
    await live.files.write("/tmp/p/x.txt", "one\ntwo\n")
    diff = "--- a/x.txt\n+++ b/x.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert (await live.apply_patch(diff, cwd="/tmp/p", check=True)).success
    result = await live.apply_patch(diff, cwd="/tmp/p")
    assert (result.success, result.exit_code, len(result.files)) == (True, 0, 1)
    assert await live.files.read_text("/tmp/p/x.txt") == "one\n2\n"
    again = await live.apply_patch(diff, cwd="/tmp/p")
    assert not again.success
    assert again.exit_code != 0
    assert again.stderr


SERVER = """
import socket
s = socket.create_server(("127.0.0.1", 8000)); print("up", flush=True)
while True:
    c, _ = s.accept(); data = b""
    while piece := c.recv(65536): data += piece
    c.sendall(data[::-1]); c.close()
"""


async def test_a_tunnel_reaches_a_port(live: Any) -> None:
    async with await live.start(["python3", "-c", SERVER]) as server:
        assert (await server.read()).text == "up\n"
        async with await live.tunnel(8000) as address:
            assert str(address) == f"127.0.0.1:{address.port}"
            for size in (1, 3_000_000):
                sent = os.urandom(size)
                reader, writer = await asyncio.open_connection(*address)
                writer.write(sent)
                writer.write_eof()
                assert await asyncio.wait_for(reader.read(-1), 60) == sent[::-1]
                writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)


async def test_a_tunnel_to_a_closed_port_reports_port_unreachable(live: Any) -> None:
    tunnel = await live.tunnel(9)
    reader, writer = await asyncio.open_connection(*tunnel.address)
    assert await asyncio.wait_for(reader.read(-1), 60) == b""
    writer.close()
    assert isinstance(tunnel.last_error, PortUnreachableError)
    await tunnel.close()


async def test_copies_inside_the_sandbox(live: Any) -> None:
    made = "cd /tmp/c/src; echo one >a; echo two >sub/b; ln -s a link; chmod 640 a; touch -d @1000000000 a"
    assert (await live.exec(f"mkdir -p /tmp/c/src/sub /tmp/c/into; {made}")).stderr == ""
    whole = await live.files.copy("/tmp/c/src", "/tmp/c/dst")
    assert (whole.entries, whole.size_bytes) == (5, 8)
    assert (await live.files.copy("/tmp/c/src/a", "/tmp/c/into")).entries == 1
    found = {entry.path.removeprefix("/tmp/c/"): entry for entry in await live.files.list("/tmp/c", recursive=True)}
    assert {"dst", "dst/a", "dst/link", "dst/sub", "dst/sub/b", "into/a"} <= found.keys()
    assert (found["dst/a"].mode, found["dst/a"].mtime, found["dst/link"].target) == (0o640, 1e9, "a")
    await live.files.write("/tmp/c/src/a", "longer than before")
    await live.files.copy("/tmp/c/src/.", "/tmp/c/dst")
    assert await live.files.read_text("/tmp/c/dst/a") == "longer than before"
    with pytest.raises(RemoteFileNotFoundError) as missing:
        await live.files.copy("/tmp/c/no", "/tmp/c/dst")
    assert missing.value.filename == "/tmp/c/no"
    with pytest.raises(RemoteFileNotFoundError) as missing:
        await live.files.copy("/tmp/c/src/a", "/tmp/c/no/such/place")
    assert missing.value.filename == "/tmp/c/no/such/place"
    with pytest.raises(InvalidPathError, match="into itself"):
        await live.files.copy("/tmp/c/src", "/tmp/c/src/sub")
    with pytest.raises(RemoteNotADirectoryError):
        await live.files.copy("/tmp/c/src", "/tmp/c/dst/a")
    with pytest.raises(InvalidPathError):
        await live.files.copy("/tmp/c/src", "")


async def test_copies_with_a_users_permissions(live: Any) -> None:
    await live.exec("mkdir -p /tmp/u/own; echo s >/tmp/u/secret; chmod 600 /tmp/u/secret; echo o >/tmp/u/open; chown 1000 /tmp/u/own")
    await live.files.copy("/tmp/u/open", "/tmp/u/own", user=1000)
    assert (await live.files.stat("/tmp/u/own/open")).uid == 1000
    with pytest.raises(RemotePermissionError):
        await live.files.copy("/tmp/u/secret", "/tmp/u/own", user=1000)
    await live.files.copy("/tmp/u/secret", "/tmp/u/own")
    assert (await live.files.stat("/tmp/u/own/secret")).uid == 0


async def test_a_file_that_grows_while_it_is_read_is_read_to_its_first_size(live: Any, tmp_path: Path) -> None:
    """A log of a running program: the limits on what an agent may send do not refuse it."""
    size = 30_000_000
    await live.exec(f"head -c {size} /dev/zero > /tmp/log")
    async with await live.start("while :; do head -c 100000 /dev/zero; done >> /tmp/log") as writer:
        pieces = [len(piece) async for piece in live.files.stream("/tmp/log")]
        there = await live.files.stat("/tmp/log")
        got = await live.files.download("/tmp/log", tmp_path / "log")
        assert not writer.done
    assert sum(pieces) >= size
    assert got.size_bytes >= there.size > size
    assert len(await live.files.read("/proc/self/maps")) > 0, "a file that reports no size"
    assert len(await live.files.read("/dev/zero", length=3_000_000)) == 3_000_000
