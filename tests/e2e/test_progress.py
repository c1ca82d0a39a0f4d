"""The progress of transfers: what callbacks are told, that what they raise ends the transfer, and the line of the command line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from holdfast import Sandbox
from holdfast._progress import TransferBar

from tests.support.requires import requires

pytestmark = requires("namespaces", "redis", "bash")
SIZE = 3_000_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "file").write_bytes(b"x" * SIZE)
    (tmp_path / "tree" / "sub" / "small").write_text("text")
    return tmp_path / "tree"


def test_callbacks_count_up_to_the_whole(sandbox: Sandbox, tree: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    sandbox.files.upload(tree / "file", "/tmp/file", progress=lambda *moved: seen.append(moved))
    assert seen[-1] == (SIZE, SIZE)
    assert seen == sorted(seen)
    seen.clear()
    sandbox.files.download("/tmp/file", tmp_path / "back", progress=lambda *moved: seen.append(moved))
    assert (seen[-1], len(seen) > 3) == ((SIZE, SIZE), True)
    seen.clear()
    sandbox.files.upload(tree, "/tmp/tree", progress=lambda *moved: seen.append(moved))
    sandbox.files.download("/tmp/tree", tmp_path / "tree-back", progress=lambda *moved: seen.append(moved))
    assert all(total is None for _, total in seen)
    assert max(moved for moved, _ in seen) > SIZE


def test_what_a_callback_raises_ends_the_transfer(sandbox: Sandbox, tree: Path, tmp_path: Path) -> None:
    def stop(moved: int, total: int | None) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        sandbox.files.upload(tree / "file", "/tmp/never", progress=stop)
    assert not sandbox.files.exists("/tmp/never")
    sandbox.files.upload(tree / "file", "/tmp/there")
    with pytest.raises(ValueError, match="enough"):
        sandbox.files.download("/tmp/there", tmp_path / "never", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_appears_after_a_second_and_is_removed() -> None:
    time_s, stream = [0.0], _Terminal()
    bar = TransferBar(stream, lambda: time_s[0])
    bar(10 << 20, 100 << 20)
    assert stream.getvalue() == "", "most transfers are over at once"
    time_s[0] = 2.0
    bar(50 << 20, 100 << 20)
    bar(51 << 20, 100 << 20)
    assert stream.getvalue() == "\r[###############...............] 50.0 of 100.0 MiB, 25.0 MiB/s"
    time_s[0] = 3.0
    bar(60 << 20, None)
    assert stream.getvalue().endswith("\r60.0 MiB, 20.0 MiB/s".ljust(63))
    bar.clear()
    bar.clear()
    assert stream.getvalue().endswith("\r" + " " * 20 + "\r")


def test_no_line_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    bar = TransferBar(stream, iter([0.0, 5.0, 6.0]).__next__)
    bar(1, 2)
    bar.clear()
    assert stream.getvalue() == ""
