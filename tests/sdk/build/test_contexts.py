"""The build context: what sources mean, what .dockerignore leaves out, and where COPY puts files."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from holdfast._build.context import Context, digest
from holdfast._build.copying import Placing, is_archive, tar_source
from holdfast._build.patterns import Ignored


@pytest.mark.parametrize(
    ("rules", "left_out", "kept"),
    [
        ("*.pyc", ["a.pyc"], ["b/a.pyc", "a.py"]),
        ("**/*.pyc", ["a.pyc", "b/a.pyc", "b/c/a.pyc"], ["a.py"]),
        ("node_modules", ["node_modules", "node_modules/a/b"], ["x/node_modules"]),
        ("/a/", ["a", "a/b"], ["b/a"]),
        ("a/**", ["a/b", "a/b/c"], ["a"]),
        ("# c\n\n  a  \n", ["a"], ["# c"]),
        ("*\n!keep\n!d/*.md", ["a", "d/x"], ["keep", "keep/x", "d/x.md"]),
        ("!a\na", ["a"], []),
        ("?.[ab]", ["x.a", "y.b"], ["xy.a", "x.c"]),
        ("a\n!a\na/b", ["a/b"], ["a", "a/c"]),
        (".", [], ["a"]),
    ],
)
def test_ignored(rules: str, left_out: list[str], kept: list[str]) -> None:
    ignored = Ignored(rules)
    assert [path for path in left_out if not ignored(path)] == []
    assert [path for path in kept if ignored(path)] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "context"
    (root / "d" / "e").mkdir(parents=True)
    (root / "a.py").write_text("a")
    (root / "b.py").write_text("b")
    (root / "d" / "c.txt").write_text("c")
    (root / "d" / "e" / "f").write_text("f")
    (root / "in").symlink_to("d/c.txt")
    (root / "absolute").symlink_to("/d")
    (tmp_path / "secret").write_text("s")
    (root / "out").symlink_to("../secret")
    os.mkfifo(root / "pipe")
    return root


def found(context: Context, text: str) -> list[tuple[str, list[str]]]:
    return [(source.name, [entry.path for entry in source.entries]) for source in context.sources(text)]


def test_sources(tree: Path) -> None:
    context = Context(tree)
    assert found(context, "a.py") == [("a.py", [""])]
    assert found(context, "/a.py") == found(context, "../../a.py") == [("a.py", [""])], "nothing is above the context"
    assert found(context, "*.py") == [("a.py", [""]), ("b.py", [""])]
    assert found(context, "d/") == [("d", ["", "c.txt", "e", "e/f"])]
    assert found(context, "d/*/f") == [("f", [""])]
    assert found(context, "in") == [("in", [""])]
    assert context.sources("in")[0].entries[0].size == 1
    assert found(context, "absolute")[0][1] == ["", "c.txt", "e", "e/f"], "an absolute link begins at the context"
    assert "pipe" not in found(context, ".")[0][1]
    for text in ("none", "*.none", "out", "d/none"):
        with pytest.raises(FileNotFoundError):
            context.sources(text)
    with pytest.raises(ValueError, match="without"):
        context.sources("[a")


def test_links_do_not_bring_back_what_is_ignored(tree: Path) -> None:
    (tree / "d" / "link").symlink_to("e")
    context = Context(tree, Ignored("d/e\nd/c.txt"))
    assert found(context, "absolute") == [("absolute", ["", "link"])]
    for text in ("in", "d/link/f", "d/link", "d/lin?/f"):
        with pytest.raises(FileNotFoundError):
            context.sources(text)


def test_what_is_ignored_is_no_source(tree: Path) -> None:
    context = Context(tree, Ignored("*\n!d/e"))
    assert found(context, ".") == [("", ["", "d/e", "d/e/f"])]
    assert found(Context(tree, Ignored("*\n!d/c.txt")), "d") == [("d", ["c.txt"])]
    with pytest.raises(FileNotFoundError):
        context.sources("a.py")


def test_the_digest_is_of_contents_and_not_of_times(tree: Path) -> None:
    context = Context(tree)
    before = digest(context.sources("d"))
    os.utime(tree / "d" / "c.txt", (1, 1))
    assert digest(context.sources("d")) == before
    os.chmod(tree / "d" / "c.txt", 0o600)
    moded = digest(context.sources("d"))
    (tree / "d" / "c.txt").write_text("C")
    assert len({before, moded, digest(context.sources("d"))}) == 3


def placed(context: Context, text: str, target: str, *, into: bool) -> list[str]:
    placing = Placing(target)
    placing.add(context.sources(text), into=into)
    with tarfile.open(fileobj=io.BytesIO(b"".join(placing.pieces(placing.parents())))) as archive:
        return archive.getnames()


def test_places_as_docker_does(tree: Path) -> None:
    context = Context(tree)
    assert placed(context, "a.py", "/x/y", into=False) == ["x", "x/y"]
    assert placed(context, "a.py", "/x/y", into=True) == ["x", "x/y", "x/y/a.py"]
    assert placed(context, "d", "/x", into=False) == ["x", "x/c.txt", "x/e", "x/e/f"]
    assert placed(context, "d", "/", into=True) == ["c.txt", "e", "e/f"]


def test_archives_keep_owners(tmp_path: Path) -> None:
    for mode in ("w", "w:gz", "w:xz", "w:bz2"):
        path = tmp_path / f"a.{mode[2:] or 'tar'}"
        with tarfile.open(path, mode) as archive:
            member = tarfile.TarInfo("./d/f")
            member.uid, member.gid, member.size = 7, 8, 3
            archive.addfile(member, io.BytesIO(b"abc"))
        with path.open("rb") as file:
            assert is_archive(file)
            source = tar_source(file)
            entry = source.entries[0]
            assert (entry.path, entry.uid, entry.gid, entry.size) == ("d/f", 7, 8, 3)
            assert entry.open is not None
            assert entry.open().read(10) == b"abc"
    (tmp_path / "text.tar.gz").write_text("no archive")
    with (tmp_path / "text.tar.gz").open("rb") as file:
        assert not is_archive(file)


def test_archives_that_leave_their_directory_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a", "w") as archive:
        archive.addfile(tarfile.TarInfo("../f"))
    with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match="outside"):
        tar_source(file)


def test_the_content_of_one_file_does_not_count_as_the_next_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "a").write_bytes(b"x")
    (tmp_path / "two" / "b").write_bytes(b"y")
    mode = (tmp_path / "two" / "b").stat().st_mode
    (tmp_path / "one" / "a").write_bytes(b"x" + f"\0b\0{mode}\0\0\0".encode() + b"0:0\0y")
    assert digest(Context(tmp_path / "one").sources(".")) != digest(Context(tmp_path / "two").sources("."))


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_files_with_holes_in_an_archive_are_whole(tmp_path: Path, form: str) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.write(b"a" * 4096)
        file.seek(1 << 20)
        file.write(b"b" * 4096)
        file.truncate(3 << 20)
    (tmp_path / "after").write_text("after")
    path = tmp_path / "made.tar"
    subprocess.run(["tar", "--sparse", f"--format={form}", "-cf", path, "-C", tmp_path, "holes", "after"], check=True)
    with path.open("rb") as file:
        entries = {entry.path: entry for entry in tar_source(file).entries}
        for name, entry in entries.items():
            assert entry.open is not None
            with entry.open() as content:
                assert content.read() == (tmp_path / name).read_bytes(), name
    assert path.stat().st_size < 1 << 20
    assert len(entries) == 2
