"""What ``upload`` and ``download`` of directories leave out, by the same patterns in both directions and on both APIs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from holdfast import InvalidArgumentError

from tests.sdk.support.requirements import STACK

pytestmark = STACK
FILES = (
    "a.py",
    "a.pyc",
    "pkg/b.py",
    "pkg/b.pyc",
    "pkg/.git/config",
    ".git/config",
    "data/raw/big",
    "data/clean/small",
    "pkg/data/raw/kept",
)
EXCLUDE = ["*.pyc", ".git", "data/raw"]
LEFT = {"a.py", "pkg/b.py", "data/clean/small", "pkg/data/raw/kept"}


def tree(folder: Path) -> Path:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


async def test_leaves_out_what_matches(live: Any, tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    await live.files.upload(source, "/tmp/some", exclude=EXCLUDE)
    listed = await live.exec("cd /tmp/some && find . -type f")
    assert {line.removeprefix("./") for line in listed.stdout.splitlines()} == LEFT
    await live.files.upload(source, "/tmp/all")
    await live.files.download("/tmp/all", tmp_path / "some", exclude=EXCLUDE)
    assert files_of(tmp_path / "some") == LEFT
    await live.files.download("/tmp/all", tmp_path / "all")
    assert files_of(tmp_path / "all") == set(FILES)
    await live.files.download("/tmp/all", tmp_path / "one", exclude="data")
    assert not (tmp_path / "one" / "pkg" / "data").exists()
    with pytest.raises(InvalidArgumentError):
        await live.files.upload(source, "/tmp/wrong", exclude=[1])
