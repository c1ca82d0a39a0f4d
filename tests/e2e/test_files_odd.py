"""Unusual files: names with control characters, devices, pipes and sockets, and files that other processes write at the same time."""

from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from holdfast import InvalidArgumentError, InvalidPathError, RemoteFileNotFoundError, RequestTooLargeError, Sandbox


def test_an_error_escapes_the_control_characters_of_a_name(sandbox: Sandbox) -> None:
    with pytest.raises(RemoteFileNotFoundError, match=r"no\\nsuch\\x1b\[31m") as missing:
        sandbox.files.read("/tmp/no\nsuch\x1b[31m")
    assert missing.value.filename == "/tmp/no\nsuch\x1b[31m"


def test_concurrent_appends_lose_nothing(sandbox: Sandbox) -> None:
    """Also while a process in the sandbox appends to the same file as shells do."""
    files = sandbox.files
    with sandbox.start("for i in $(seq 2000); do echo inside >> /tmp/log; done") as process:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: files.append("/tmp/log", b"outside\n"), range(60)))
        process.wait()
    lines = files.read("/tmp/log").splitlines()
    assert (lines.count(b"inside"), lines.count(b"outside"), len(lines)) == (2000, 60, 2060)


def test_the_hint_about_a_pipe_names_another_way(sandbox: Sandbox) -> None:
    sandbox.exec("mkfifo /tmp/pipe").check()
    with pytest.raises(InvalidPathError) as pipe:
        sandbox.files.write("/tmp/pipe", b"")
    assert "command" in pipe.value.hint


def test_the_error_about_a_file_that_cannot_be_replaced_names_the_option(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidPathError, match="/proc/sys/kernel/domainname") as virtual:
        sandbox.files.write("/proc/sys/kernel/domainname", b"x")
    assert "atomic=False" in virtual.value.hint


@pytest.mark.parametrize("into", ["directory", "file"])
def test_a_file_with_the_longest_possible_name_is_downloaded(sandbox: Sandbox, tmp_path: Path, into: str) -> None:
    name = "n" * 255
    sandbox.files.write(f"/tmp/{name}", b"long")
    sandbox.files.download(f"/tmp/{name}", tmp_path if into == "directory" else tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"long"


def test_a_download_to_a_device_or_pipe_is_written_into_it(sandbox: Sandbox, tmp_path: Path) -> None:
    """Otherwise a download by root to /dev/null would replace the device by a file."""
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


def test_a_link_to_a_directory_is_uploaded_as_that_directory(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree/empty").mkdir(parents=True)
    (tmp_path / "tree/file").write_text("1")
    (tmp_path / "link").symlink_to("tree")
    sandbox.files.upload(tmp_path / "link", "/tmp/linked")
    assert [entry.name for entry in sandbox.files.list("/tmp/linked")] == ["empty", "file"]


def test_a_list_that_would_be_incomplete_is_an_error(sandbox: Sandbox) -> None:
    sandbox.exec("mkdir /tmp/deep; cd /tmp/deep; for i in $(seq 25); do mkdir $(printf '%0200d' 0); cd 0*; done").check()
    with pytest.raises(RequestTooLargeError, match="than the 20 entries"):
        sandbox.files.list("/tmp/deep", recursive=True)
    sandbox.files.remove("/tmp/deep", recursive=True)
    assert not sandbox.files.exists("/tmp/deep")


def test_a_copy_of_a_directory_counts_the_files_it_left_out(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree/pipe")
    (tmp_path / "tree/file").write_text("1")
    moved = sandbox.files.upload(tmp_path / "tree", "/tmp/counted")
    assert (moved.entries, moved.skipped) == (2, 1)
    sandbox.exec("cd /tmp/counted; mkfifo pipe; ln -s /etc/passwd out; ln -s file in").check()
    moved = sandbox.files.download("/tmp/counted", tmp_path / "back")
    assert (moved.entries, moved.skipped, moved.changed) == (3, 2, 0)
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["file", "in"]


def test_files_longer_than_their_stated_size_are_counted(sandbox: Sandbox, tmp_path: Path) -> None:
    """As are files that grow during the copy: an archive states the length of a file before its content."""
    moved = sandbox.files.download("/proc/sys/kernel/random", tmp_path / "random")
    assert moved.changed >= 1


def test_results_below_the_working_directory_have_normalized_paths(sandbox: Sandbox) -> None:
    sandbox.files.write("plain/file", "needle")
    assert "/workspace/plain" in [entry.path for entry in sandbox.files.list()]
    assert [match.path for match in sandbox.files.search(pattern="needle")] == ["/workspace/plain/file"]


def test_a_nonblocking_source_without_data_is_refused(sandbox: Sandbox) -> None:
    """``read`` of a nonblocking file returns None when no data is ready: the written file would end there."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.write(write_end, b"some")
    with open(read_end, "rb", buffering=0) as source, open(write_end, "wb"), pytest.raises(InvalidArgumentError, match="file object"):
        sandbox.files.write("/tmp/cut-off", source)
    assert not sandbox.files.exists("/tmp/cut-off")
