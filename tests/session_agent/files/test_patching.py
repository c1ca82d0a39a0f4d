"""Patches on real files: diffs of git and diff are applied whole or not at all, and never outside of the directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from session_agent.agent.files.patches import patch as patching
from session_agent.agent.files.patches.patch import open_patch
from session_agent.agent.files.transfers import finish
from tests.support.channel import FakeChannel, serve

EDIT = b"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
needs_git = pytest.mark.skipif(not shutil.which("git"), reason="there is no git here")


async def patch(cwd: Path, diff: bytes, **params: Any) -> dict[str, Any]:
    channel = await send(cwd, diff, **params)
    return await channel.result()


async def send(cwd: Path, diff: bytes, **params: Any) -> FakeChannel:
    channel = serve(open_patch, "patch", "/", {"cwd": str(cwd), **params})
    await channel.write(diff, eof=True)
    await channel.end()
    return channel


def tree(root: Path) -> dict[str, Any]:
    """Every file below, except git's own: its executable bits, and its content or link target."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.split("/", maxsplit=1)[0] == ".git" or path.is_dir():
            continue
        state = path.lstat()
        found[name] = (state.st_mode & 0o111, os.readlink(path)) if path.is_symlink() else (state.st_mode & 0o111, path.read_bytes())
    return found


def git(cwd: Path, *arguments: str) -> bytes:
    config = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"]
    return subprocess.run(["git", *config, *arguments], cwd=cwd, check=True, capture_output=True).stdout


async def test_one_edit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    os.chmod(tmp_path / "f", 0o750)
    assert await patch(tmp_path, EDIT) == {"success": True, "exit_code": 0, "stdout": "patched f\n", "stderr": "", "files": ["f"]}
    assert (tmp_path / "f").read_bytes() == b"one\nTWO\nthree\n"
    assert os.stat(tmp_path / "f").st_mode & 0o7777 == 0o750
    assert os.listdir(tmp_path) == ["f"]


async def test_check_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    result = await patch(tmp_path, EDIT, check=True)
    assert (result["success"], result["files"]) == (True, ["f"])
    assert (tmp_path / "f").read_bytes() == b"one\ntwo\nthree\n"


async def test_a_diff_that_does_not_apply_is_a_result_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\nzwei\nthree\n")
    result = await patch(tmp_path, EDIT)
    assert (result["success"], result["exit_code"], result["files"]) == (False, 1, [])
    assert "f: hunk #1" in result["stderr"]
    assert "'two\\n' at line 2, found 'zwei\\n'" in result["stderr"]
    assert (await patch(tmp_path, b"no diff"))["exit_code"] == 128
    assert (await patch(tmp_path, b""))["exit_code"] == 128
    assert (tmp_path / "f").read_bytes() == b"one\nzwei\nthree\n"


async def test_all_or_nothing(tmp_path: Path) -> None:
    for name in ("f", "g"):
        (tmp_path / name).write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "h").write_bytes(b"other\n")
    before = tree(tmp_path)
    diff = EDIT + EDIT.replace(b"/f", b"/new/g") + EDIT.replace(b"/f", b"/g") + EDIT.replace(b"/f", b"/h")
    result = await patch(tmp_path, diff)
    assert result["stderr"].count("error: ") == 2
    assert "new/g does not exist" in result["stderr"]
    assert "h: hunk #1" in result["stderr"]
    assert tree(tmp_path) == before


async def test_failure_while_writing_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "z").write_bytes(b"gone\n")
    before = tree(tmp_path)
    diff = EDIT + b"--- /dev/null\n+++ b/n/e/w\n@@ -0,0 +1 @@\n+x\n--- a/z\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
    real, calls = os.rename, 0

    def failing(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise OSError(28, "No space left on device")
        real(*args, **kwargs)

    for fail_at in range(1, 10):
        calls = 0
        monkeypatch.setattr(os, "rename", failing)
        channel = await send(tmp_path, diff, check=False)
        monkeypatch.setattr(os, "rename", real)
        if calls < fail_at:
            break
        assert (await channel.error())["code"] == "no_space"
        assert tree(tmp_path) == before, fail_at
        assert sorted(os.listdir(tmp_path)) == ["f", "z"], fail_at
    assert fail_at > 3
    assert sorted(os.listdir(tmp_path)) == ["f", "n"]


def change(root: Path) -> None:
    (root / "edited").write_text("a\nb\nC\nd\n")
    (root / "moved").rename(root / "sub dir" / "moved to")
    with open(root / "sub dir" / "moved to", "a") as file:
        file.write("more\n")
    (root / "deleted").unlink()
    (root / "deep/only").unlink()
    (root / "new dir").mkdir()
    (root / "new dir/new file").write_text("no newline at the end")
    (root / "empty").touch()
    (root / "was empty").unlink()
    os.chmod(root / "script", 0o755)
    (root / "crlf").write_bytes(b"1\r\n2\r\n3\r\n")
    (root / 'ümlaut\t"x').write_text("y\n")
    (root / "link").unlink()
    (root / "link").symlink_to("elsewhere")
    (root / "new link").symlink_to("edited")
    (root / "old link").unlink()
    (root / "file to link").unlink()
    (root / "file to link").symlink_to("edited")
    (root / "a").write_text("a directory name that looks like a prefix\n")


def repository(root: Path) -> None:
    (root / "sub dir").mkdir(parents=True)
    (root / "deep").mkdir()
    (root / "edited").write_text("a\nb\nc\nd\n")
    (root / "moved").write_text("".join(f"line {i}\n" for i in range(30)))
    (root / "deleted").write_text("x\ny")
    (root / "deep/only").write_text("x\n")
    (root / "was empty").touch()
    (root / "script").write_text("#!/bin/sh\n")
    (root / "crlf").write_bytes(b"1\r\n2\r\n")
    (root / 'ümlaut\t"x').write_text("x\n")
    (root / "link").symlink_to("edited")
    (root / "old link").symlink_to("gone")
    (root / "file to link").write_text("content\n")
    (root / "sub dir/kept").touch()
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")


@needs_git
@pytest.mark.parametrize(
    "options", [[], ["--no-prefix"], ["-M"], ["-M", "-C", "--find-copies-harder"], ["-U0"], ["-U10"], ["--no-renames"]]
)
async def test_diffs_made_by_git_apply_and_revert(tmp_path: Path, options: list[str]) -> None:
    repository(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two", symlinks=True)
    change(tmp_path / "one")
    git(tmp_path / "one", "add", "-A")
    diff = git(tmp_path / "one", "diff", "--cached", *options)
    result = await patch(tmp_path / "two", diff)
    assert result["success"], result["stderr"]
    assert tree(tmp_path / "two") == tree(tmp_path / "one")
    assert not (tmp_path / "two/deep").exists()
    reverse = git(tmp_path / "one", "diff", "--cached", "-R", *options)
    assert (await patch(tmp_path / "two", reverse))["success"]
    git(tmp_path / "one", "reset", "-q", "--hard")
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


@needs_git
async def test_two_files_that_swap_names(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one" / name).write_text("".join(f"{name} {i * i}\n" for i in range(400)))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    git(tmp_path / "one", "init", "-q")
    git(tmp_path / "one", "add", "-A")
    git(tmp_path / "one", "commit", "-qm", "first")
    (tmp_path / "one/x").rename(tmp_path / "one/z")
    (tmp_path / "one/y").rename(tmp_path / "one/x")
    (tmp_path / "one/z").rename(tmp_path / "one/y")
    diff = git(tmp_path / "one", "diff", "-M", "-B", "HEAD")
    assert diff.count(b"rename from") == 2
    result = await patch(tmp_path / "two", diff)
    assert result["success"], result["stderr"]
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


@needs_git
async def test_mails_of_git_format_patch(tmp_path: Path) -> None:
    repository(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two", symlinks=True)
    change(tmp_path / "one")
    git(tmp_path / "one", "add", "-A")
    git(tmp_path / "one", "commit", "-qm", "second\n\n- with a list\n+ and more")
    (tmp_path / "one/edited").rename(tmp_path / "one/renamed after the edit")
    git(tmp_path / "one", "add", "-A")
    git(tmp_path / "one", "commit", "-qm", "third")
    result = await patch(tmp_path / "two", git(tmp_path / "one", "format-patch", "--stdout", "HEAD~2"))
    assert result["success"], result["stderr"]
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


async def test_diffs_made_by_diff(tmp_path: Path) -> None:
    if not shutil.which("diff"):
        pytest.skip("there is no diff here")
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_text("x\n")
        (tmp_path / name / "edited").write_text("1\n2\n3\n")
    (tmp_path / "b/edited").write_text("1\n2\n3\n4")
    (tmp_path / "b/new").write_text("n\n")
    completed = subprocess.run(["diff", "-ruN", "a", "b"], cwd=tmp_path, capture_output=True, check=False)
    result = await patch(tmp_path / "c", completed.stdout)
    assert result["success"], result["stderr"]
    assert tree(tmp_path / "c") == tree(tmp_path / "b")


@pytest.mark.parametrize(("old", "new"), [(b"a/f", b"b/f"), (b"f", b"f"), (b"a/f", b"a/f"), (b"x/f", b"y/f"), (b"i/f", b"w/f")])
async def test_name_prefixes_are_detected(tmp_path: Path, old: bytes, new: bytes) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    result = await patch(tmp_path, EDIT.replace(b"a/f", old).replace(b"b/f", new))
    assert result["success"], result["stderr"]
    assert result["files"] == ["f"]


async def test_a_directory_named_like_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/f").write_bytes(b"one\ntwo\nthree\n")
    result = await patch(tmp_path, EDIT.replace(b"b/f", b"a/f"))
    assert result["files"] == ["a/f"]


async def test_strip_removes_that_many_components(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    diff = EDIT.replace(b"a/f", b"x/y/z/f").replace(b"b/f", b"x/y/z/f")
    assert (await patch(tmp_path, diff, strip=2))["exit_code"] == 1
    assert "no name left" in (await patch(tmp_path, diff, strip=4))["stderr"]
    assert (await patch(tmp_path, diff, strip=3))["success"]


async def test_absolute_names_below_the_directory(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    name = os.fsencode(tmp_path / "f")
    assert (await patch(tmp_path, EDIT.replace(b"a/f", name).replace(b"b/f", name)))["files"] == ["f"]


@pytest.mark.parametrize("name", ["../out/f", "x/../../out/f", "/etc/passwd", "link/f", "far/f"])
async def test_a_patch_cannot_reach_outside_of_the_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "in/x").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/f").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "in/link").symlink_to("../out")
    (tmp_path / "in/far").symlink_to(tmp_path / "out")
    raw = name.encode()
    before = tree(tmp_path)
    create = b"--- /dev/null\n+++ %s\n@@ -0,0 +1 @@\n+evil\n" % raw.replace(b"/f", b"/evil")
    move = b"diff --git a/x b/y\nsimilarity index 100%%\nrename from %s\nrename to y\n" % raw
    for diff in (EDIT.replace(b"a/f", raw).replace(b"b/f", raw), create, move):
        for strip in (None, 0):
            result = await patch(tmp_path / "in", diff, strip=strip)
            assert result["exit_code"] == 1, result
            assert tree(tmp_path) == before


async def test_symbolic_links_are_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "f").symlink_to("real")
    result = await patch(tmp_path, EDIT)
    assert "symbolic link" in result["stderr"]
    assert (tmp_path / "real").read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("target", ["/etc", "sub", ""])
async def test_a_link_or_file_that_the_diff_creates_is_no_directory(tmp_path: Path, target: str) -> None:
    """The diff creates a link (without a target: a plain file) and a file below it."""
    (tmp_path / "sub").mkdir()
    mode = "120000" if target else "100644"
    first = f"diff --git a/ln b/ln\nnew file mode {mode}\n--- /dev/null\n+++ b/ln\n@@ -0,0 +1 @@\n+{target}\n\\ No newline at end of file\n"
    second = "diff --git a/ln/x b/ln/x\nnew file mode 100644\n--- /dev/null\n+++ b/ln/x\n@@ -0,0 +1 @@\n+evil\n"
    for diff in (first + second, second + first):
        result = await patch(tmp_path, diff.encode())
        assert (result["exit_code"], "ln/x" in result["stderr"]) == (1, True), result
        assert os.listdir(tmp_path) == ["sub"]
        assert not os.listdir(tmp_path / "sub")


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        (b"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "f exists already"),
        (b"--- a/f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n", "holds more than the diff removes"),
        (b"--- a/no\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "no does not exist"),
        (b"--- a/f/x\n+++ b/f/x\n@@ -1 +1 @@\n-one\n+two\n", "Not a directory"),
        (b"--- a/d\n+++ b/d\n@@ -1 +1 @@\n-one\n+two\n", "d is a directory"),
        (b"diff --git a/f b/g\nrename from f\nrename to g\n", "g exists already"),
        (b"diff --git a/s b/s\nnew file mode 160000\n", "submodules"),
    ],
)
async def test_conflicts_with_existing_files(tmp_path: Path, diff: bytes, message: str) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "g").touch()
    (tmp_path / "g").write_text("g")
    (tmp_path / "d").mkdir()
    before = tree(tmp_path)
    result = await patch(tmp_path, diff)
    assert (result["success"], result["exit_code"]) == (False, 1)
    assert message in result["stderr"]
    assert tree(tmp_path) == before


async def test_a_section_applies_to_the_result_of_those_before_it(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    result = await patch(tmp_path, EDIT + EDIT.replace(b"two", b"TWO").replace(b"+TWO", b"+2"))
    assert result["success"], result["stderr"]
    assert (tmp_path / "f").read_bytes() == b"one\n2\nthree\n"


async def test_the_directory_must_exist_and_has_a_default(tmp_path: Path) -> None:
    assert (await (await send(tmp_path / "no", EDIT)).error())["code"] == "file_not_found"
    channel = serve(open_patch, "patch", tmp_path, {})
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    await channel.write(EDIT, eof=True)
    assert (await channel.result())["files"] == ["f"]


async def test_a_file_that_the_diff_creates_and_deletes_is_not_there(tmp_path: Path) -> None:
    diff = b"--- /dev/null\n+++ b/d/f\n@@ -0,0 +1 @@\n+x\n--- a/d/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    assert (await patch(tmp_path, diff))["success"]
    assert os.listdir(tmp_path) == []


async def test_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patching, "DIFF_BYTES", 1000)
    assert (await (await send(tmp_path, b"x" * 1001)).error())["code"] == "request_too_large"
    monkeypatch.setattr(patching, "FILES_BYTES", 10)
    (tmp_path / "f").write_bytes(b"one\ntwo\nthree\n")
    assert (await (await send(tmp_path, EDIT)).error())["code"] == "request_too_large"


@given(junk=st.binary(max_size=200), strip=st.none() | st.integers(0, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_junk_changes_nothing(tmp_path: Path, junk: bytes, strip: int | None) -> None:
    sink = patching.patch(str(tmp_path), strip, False, None)
    next(sink)
    sink.send(junk)
    assert not finish(sink)["success"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("params", [{"strip": -1}, {"strip": "1"}, {"check": "yes"}, {"user": []}])
async def test_params_of_wrong_types_are_invalid_arguments(tmp_path: Path, params: dict[str, Any]) -> None:
    channel = serve(open_patch, "patch", tmp_path, params)
    assert (await channel.error())["code"] == "invalid_argument"
