"""Names, places and neighbours that most files never have: control characters, devices, writers at work on the same file."""

from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from holdfast import InvalidArgumentError, InvalidPathError, RemoteFileNotFoundError, RequestTooLargeError, Sandbox


def test_what_is_wrong_with_a_name_of_control_characters_is_told(sandbox: Sandbox) -> None:
    with pytest.raises(RemoteFileNotFoundError, match=r"no\\nsuch\\x1b\[31m") as missing:
        sandbox.files.read("/tmp/no\nsuch\x1b[31m")
    assert missing.value.filename == "/tmp/no\nsuch\x1b[31m"


def test_what_is_appended_side_by_side_is_all_there(sandbox: Sandbox) -> None:
    """Also beside a process in the sandbox, which appends as shells do."""
    files = sandbox.files
    with sandbox.start("for i in $(seq 2000); do echo inside >> /tmp/log; done") as process:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: files.append("/tmp/log", b"outside\n"), range(60)))
        process.wait()
    lines = files.read("/tmp/log").splitlines()
    assert (lines.count(b"inside"), lines.count(b"outside"), len(lines)) == (2000, 60, 2060)


def test_the_hint_at_a_pipe_leads_somewhere(sandbox: Sandbox) -> None:
    sandbox.exec("mkfifo /tmp/pipe").check()
    with pytest.raises(InvalidPathError) as pipe:
        sandbox.files.write("/tmp/pipe", b"")
    assert "command" in pipe.value.hint


def test_a_file_that_cannot_be_replaced_says_how_it_is_written(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidPathError, match="/proc/sys/kernel/domainname") as virtual:
        sandbox.files.write("/proc/sys/kernel/domainname", b"x")
    assert "atomic=False" in virtual.value.hint


@pytest.mark.parametrize("into", ["directory", "file"])
def test_a_name_as_long_as_they_get_is_downloaded(sandbox: Sandbox, tmp_path: Path, into: str) -> None:
    name = "n" * 255
    sandbox.files.write(f"/tmp/{name}", b"long")
    sandbox.files.download(f"/tmp/{name}", tmp_path if into == "directory" else tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"long"


def test_a_download_to_a_device_or_pipe_goes_into_it(sandbox: Sandbox, tmp_path: Path) -> None:
    """As root, /dev/null would be a file from then on."""
    sandbox.files.write("/tmp/down", b"through")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert sandbox.files.download("/tmp/down", pipe).size_bytes == 7
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_download_to_a_socket_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.files.write("/tmp/down", b"through")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="socket"):
            sandbox.files.download("/tmp/down", tmp_path / "socket")
    assert stat.S_ISSOCK((tmp_path / "socket").lstat().st_mode)


def test_a_link_to_a_directory_is_uploaded_as_what_it_leads_to(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree/empty").mkdir(parents=True)
    (tmp_path / "tree/file").write_text("1")
    (tmp_path / "link").symlink_to("tree")
    sandbox.files.upload(tmp_path / "link", "/tmp/linked")
    assert [entry.name for entry in sandbox.files.list("/tmp/linked")] == ["empty", "file"]


def test_a_list_is_whole_or_says_that_it_is_not(sandbox: Sandbox) -> None:
    sandbox.exec("mkdir /tmp/deep; cd /tmp/deep; for i in $(seq 25); do mkdir $(printf '%0200d' 0); cd 0*; done").check()
    with pytest.raises(RequestTooLargeError, match="than the 20 entries"):
        sandbox.files.list("/tmp/deep", recursive=True)
    sandbox.files.remove("/tmp/deep", recursive=True)
    assert not sandbox.files.exists("/tmp/deep")


def test_what_a_copy_of_a_directory_left_out_is_counted(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree/pipe")
    (tmp_path / "tree/file").write_text("1")
    moved = sandbox.files.upload(tmp_path / "tree", "/tmp/counted")
    assert (moved.entries, moved.skipped) == (2, 1)
    sandbox.exec("cd /tmp/counted; mkfifo pipe; ln -s /etc/passwd out; ln -s file in").check()
    moved = sandbox.files.download("/tmp/counted", tmp_path / "back")
    assert (moved.entries, moved.skipped, moved.changed) == (3, 2, 0)
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["file", "in"]


def test_files_that_hold_more_than_their_size_says_are_counted(sandbox: Sandbox, tmp_path: Path) -> None:
    """As those that are written to meanwhile: an archive says how long a file is before it holds it."""
    moved = sandbox.files.download("/proc/sys/kernel/random", tmp_path / "random")
    assert moved.changed >= 1


def test_paths_of_the_working_directory_are_plain(sandbox: Sandbox) -> None:
    sandbox.files.write("plain/file", "needle")
    assert "/workspace/plain" in [entry.path for entry in sandbox.files.list()]
    assert [match.path for match in sandbox.files.search(pattern="needle")] == ["/workspace/plain/file"]


def test_a_source_that_has_nothing_yet_is_no_source_that_has_ended(sandbox: Sandbox) -> None:
    """``read`` of what is open without waiting answers None then: what was written would be cut off there."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.write(theirs, b"some")
    with open(ours, "rb", buffering=0) as source, open(theirs, "wb"), pytest.raises(InvalidArgumentError, match="file object"):
        sandbox.files.write("/tmp/cut-off", source)
    assert not sandbox.files.exists("/tmp/cut-off")
