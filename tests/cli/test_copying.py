"""``holdfast cp`` copies to the same place as ``docker cp``: its whole table, in both directions, on a real stack."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast import Sandbox, SandboxClient

from tests.support.requires import requires

pytestmark = requires("namespaces", "redis")

# source, what is at the target before (None, "file", "dir"), target as typed, path of the source's content afterwards (None: refused)
TABLE = [
    ("file", None, "T", "T"),
    ("file", None, "T/", None),
    ("file", None, "missing/T", None),
    ("file", "file", "T", "T"),
    ("file", "file", "T/", None),
    ("file", "dir", "T", "T/file"),
    ("file", "dir", "T/", "T/file"),
    ("file/", None, "T", None),
    ("dir", None, "T", "T/inside"),
    ("dir", None, "T/", "T/inside"),
    ("dir", None, "missing/T", None),
    ("dir/.", None, "T", "T/inside"),
    ("dir", "file", "T", None),
    ("dir/.", "file", "T", None),
    ("dir", "dir", "T", "T/dir/inside"),
    ("dir", "dir", "T/", "T/dir/inside"),
    ("dir/", "dir", "T", "T/dir/inside"),
    ("dir/.", "dir", "T", "T/inside"),
    ("dir/.", "dir", "T/", "T/inside"),
    ("none", None, "T", None),
]


@pytest.fixture(scope="module")
def environment(stack: Any) -> dict[str, str]:
    return dict(stack.environment())


@pytest.fixture(scope="module")
def sandbox(stack: Any) -> Iterator[Sandbox]:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="256Mi") as sandbox:
        yield sandbox


def cp(environment: dict[str, str], *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "cp", *words], env=environment, capture_output=True, timeout=120, **options
    )


def make_local(root: Path, kind: str | None, name: str) -> None:
    if kind == "dir":
        (root / name).mkdir()
    elif kind == "file":
        (root / name).write_text("before")


def sources(root: Path) -> None:
    (root / "dir").mkdir()
    (root / "dir" / "inside").write_text("content")
    (root / "file").write_text("content")


@pytest.mark.parametrize(("source", "before", "target", "expected"), TABLE)
def test_copies_into_the_sandbox(
    environment: dict[str, str], sandbox: Sandbox, tmp_path: Path, source: str, before: str | None, target: str, expected: str | None
) -> None:
    sources(tmp_path)
    sandbox.exec("rm -rf /tmp/w && mkdir /tmp/w").check()
    if before:
        sandbox.exec("mkdir /tmp/w/T" if before == "dir" else "echo before > /tmp/w/T").check()
    done = cp(environment, f"{tmp_path}/{source}", f"{sandbox.id}:/tmp/w/{target}")
    if expected is None:
        assert (done.returncode, done.stdout) == (2, b""), done.stderr
        assert b"Traceback" not in done.stderr
        assert b"content" not in sandbox.exec("cat /tmp/w/T; find /tmp/w -type f -exec cat {} +").stdout_bytes
    else:
        assert done.returncode == 0, done.stderr
        assert sandbox.files.read_text(f"/tmp/w/{expected}") == "content"


@pytest.mark.parametrize(("source", "before", "target", "expected"), TABLE)
def test_copies_out_of_the_sandbox(
    environment: dict[str, str], sandbox: Sandbox, tmp_path: Path, source: str, before: str | None, target: str, expected: str | None
) -> None:
    sandbox.exec("rm -rf /tmp/r && mkdir -p /tmp/r/dir && printf content | tee /tmp/r/file > /tmp/r/dir/inside").check()
    make_local(tmp_path, before, "T")
    done = cp(environment, f"{sandbox.id}:/tmp/r/{source}", f"{tmp_path}/{target}")
    if expected is None:
        is_refused_by_agent = source in ("file/", "none")  # what is wrong with the source is only known in the sandbox
        assert done.returncode == (125 if is_refused_by_agent else 2), done.stderr
        assert done.stderr
        assert b"Traceback" not in done.stderr
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_text() == "content"]
    else:
        assert done.returncode == 0, done.stderr
        assert (tmp_path / expected).read_text() == "content"


def test_a_directory_is_copied_as_one_and_merged_with_an_existing_one(
    environment: dict[str, str], sandbox: Sandbox, tmp_path: Path
) -> None:
    sources(tmp_path)
    assert cp(environment, str(tmp_path / "dir"), f"{sandbox.id}:/tmp/").returncode == 0
    assert sandbox.files.read_text("/tmp/dir/inside") == "content"
    assert not sandbox.files.exists("/tmp/inside")
    sandbox.files.write("/tmp/dir/other", "stays")
    (tmp_path / "dir" / "inside").write_text("newer")
    assert cp(environment, "-a", "dir", f"{sandbox.id}:/tmp", cwd=tmp_path).returncode == 0
    assert (sandbox.files.read_text("/tmp/dir/inside"), sandbox.files.read_text("/tmp/dir/other")) == ("newer", "stays")
    sandbox.exec("mkdir /tmp/flat").check()
    assert cp(environment, ".", f"{sandbox.id}:/tmp/flat", cwd=tmp_path / "dir").returncode == 0
    assert sandbox.files.read_text("/tmp/flat/inside") == "newer"


def test_a_file_and_a_directory_do_not_replace_each_other(environment: dict[str, str], sandbox: Sandbox, tmp_path: Path) -> None:
    sources(tmp_path)
    sandbox.exec("rm -rf /tmp/k && mkdir -p /tmp/k/file && echo x > /tmp/k/dir").check()
    for name in ("file", "dir"):
        done = cp(environment, str(tmp_path / name), f"{sandbox.id}:/tmp/k")
        assert done.returncode == 2, name
        assert b"cannot replace" in done.stderr
    sandbox.exec("mkdir -p /tmp/s/dir && echo x > /tmp/s/file").check()
    (tmp_path / "k" / "file").mkdir(parents=True)
    (tmp_path / "k" / "dir").write_text("x")
    for name in ("file", "dir"):
        done = cp(environment, f"{sandbox.id}:/tmp/s/{name}", str(tmp_path / "k"))
        assert done.returncode == 2, name
        assert b"cannot replace" in done.stderr


def test_links(environment: dict[str, str], sandbox: Sandbox, tmp_path: Path) -> None:
    sources(tmp_path)
    (tmp_path / "link").symlink_to("file")
    sandbox.exec("rm -rf /tmp/l && mkdir /tmp/l").check()
    assert cp(environment, str(tmp_path / "link"), f"{sandbox.id}:/tmp/l/").returncode == 0
    entry = sandbox.files.stat("/tmp/l/link", follow=False)
    assert (entry.type, entry.target) == ("symlink", "file")
    assert cp(environment, "-L", str(tmp_path / "link"), f"{sandbox.id}:/tmp/l/followed").returncode == 0
    assert sandbox.files.read_text("/tmp/l/followed") == "content"
    assert cp(environment, f"{sandbox.id}:/tmp/l/followed", str(tmp_path / "back")).returncode == 0
    sandbox.exec("ln -s /etc/hostname /tmp/l/out").check()
    assert cp(environment, f"{sandbox.id}:/tmp/l/out", str(tmp_path)).returncode == 0
    assert not (tmp_path / "out").is_symlink(), "a link of the sandbox is not copied as a link"
    done = cp(environment, f"{sandbox.id}:/tmp/l", str(tmp_path))
    assert (done.returncode, (tmp_path / "l" / "out").exists()) == (0, False)
    assert b"left out" in done.stderr


def archive_of(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {m.name: b"" if (f := archive.extractfile(m)) is None else f.read() for m in archive}


def test_archives_on_standard_output(environment: dict[str, str], sandbox: Sandbox) -> None:
    long_name = "n" * 150
    sandbox.exec(f"rm -rf /tmp/a && mkdir -p /tmp/a/sub && printf one > /tmp/a/f && printf two > /tmp/a/sub/{long_name}").check()
    got = cp(environment, f"{sandbox.id}:/tmp/a", "-")
    assert got.stderr == b""
    assert archive_of(got.stdout) == {"a": b"", "a/f": b"one", "a/sub": b"", f"a/sub/{long_name}": b"two"}
    assert "./f" in archive_of(cp(environment, f"{sandbox.id}:/tmp/a/.", "-").stdout)
    assert archive_of(cp(environment, f"{sandbox.id}:/tmp/a/f", "-").stdout) == {"f": b"one"}
    sandbox.exec("ln -s f /tmp/a/l").check()
    assert archive_of(cp(environment, f"{sandbox.id}:/tmp/a/l", "-").stdout) == {"l": b"one"}
    missing = cp(environment, f"{sandbox.id}:/tmp/never", "-")
    assert (missing.returncode, missing.stdout) == (125, b"")
    assert cp(environment, "--json", f"{sandbox.id}:/tmp/a", "-").returncode == 2


@pytest.mark.parametrize("how", ["", "gz", "bz2", "xz"])
def test_archives_on_standard_input(environment: dict[str, str], sandbox: Sandbox, how: str) -> None:
    content = os.urandom(700_000)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{how}") as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo("top/f")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    sandbox.exec("rm -rf /tmp/in && mkdir /tmp/in").check()
    done = cp(environment, "-", f"{sandbox.id}:/tmp/in", input=packed.getvalue())
    assert done.returncode == 0, done.stderr
    assert sandbox.files.read("/tmp/in/top/f") == content
    cut = cp(environment, "-", f"{sandbox.id}:/tmp/in", input=packed.getvalue()[:-300_000])
    assert cut.returncode != 0
    assert b"Traceback" not in cut.stderr


def test_input_that_is_no_archive_is_refused(environment: dict[str, str], sandbox: Sandbox) -> None:
    for data in (b"", b"plain text", b"x" * 5000):
        done = cp(environment, "-", f"{sandbox.id}:/tmp", input=data)
        assert done.returncode == 2
        assert b"not a tar archive" in done.stderr.splitlines()[0]
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    assert cp(environment, "-", f"{sandbox.id}:/tmp", input=empty.getvalue()).returncode == 0
    to_file = cp(environment, "-", f"{sandbox.id}:/etc/hostname", input=empty.getvalue())
    assert to_file.returncode == 2
    assert b"must be a directory" in to_file.stderr
