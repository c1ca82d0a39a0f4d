"""Files of a sandbox in cases that would surprise a user of ``os`` and ``shutil``: its own disk, missing directories, unusual sources."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from holdfast import (
    InvalidArgumentError,
    InvalidPathError,
    RemoteFileNotFoundError,
    RemoteIsADirectoryError,
    RemotePermissionError,
    Sandbox,
)


@pytest.mark.parametrize("creator", ["files.write", "shell"])
def test_a_file_on_the_sandboxs_own_disk_is_removed(sandbox: Sandbox, creator: str) -> None:
    if creator == "shell":
        sandbox.exec("echo x > /tmp/gone").check()
    else:
        sandbox.files.write("/tmp/gone", b"x")
    sandbox.files.remove("/tmp/gone")
    assert not sandbox.files.exists("/tmp/gone")


def test_roots_of_file_systems_are_not_removed(sandbox: Sandbox) -> None:
    for path in ("/", "/proc", "/dev/shm", "/tmp/.."):
        with pytest.raises(RemotePermissionError, match="root of a file system"):
            sandbox.files.remove(path, recursive=True)
    with pytest.raises(InvalidPathError, match="name the directory itself"):
        sandbox.files.remove("/tmp/.", recursive=True)


def test_the_error_of_a_failed_move_names_the_path(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("/tmp/moving/one", "1")
    with pytest.raises(RemoteFileNotFoundError) as missing:
        files.move("/tmp/moving/one", "/tmp/no/such/place")
    assert missing.value.filename == "/tmp/no/such/place"
    with pytest.raises(RemoteIsADirectoryError) as directory:
        files.move("/tmp/moving/one", "/var/tmp", overwrite=True)
    assert directory.value.filename == "/var/tmp"
    with pytest.raises(InvalidPathError, match="into itself"):
        files.move("/tmp/moving", "/tmp/moving/below")
    assert files.read("/tmp/moving/one") == b"1"


def test_hints_match_the_cause(sandbox: Sandbox) -> None:
    sandbox.exec("ln -sfn loop /tmp/loop").check()
    with pytest.raises(InvalidPathError) as loop:
        sandbox.files.read("/tmp/loop")
    assert "links" in loop.value.hint
    with pytest.raises(InvalidPathError) as long:
        sandbox.files.write("/tmp/" + "x" * 300, "")
    assert "255" in long.value.hint


def test_text_files_are_written_as_utf8(sandbox: Sandbox, tmp_path: Path) -> None:
    assert sandbox.files.write("/tmp/text", io.StringIO("é\n" * 100_000)).size_bytes == 300_000
    (tmp_path / "local").write_text("ü")
    with (tmp_path / "local").open() as text:
        sandbox.files.write("/tmp/text", text)
    assert sandbox.files.read_text("/tmp/text") == "ü"


def test_a_source_that_returns_no_bytes_is_refused_and_leaves_no_file(sandbox: Sandbox) -> None:
    class Numbers:
        def read(self, size: int = -1) -> int:
            return 7

    with pytest.raises(InvalidArgumentError, match="bytes"):
        sandbox.files.write("/tmp/numbers", Numbers())  # type: ignore[arg-type]
    assert not sandbox.files.exists("/tmp/numbers")
