"""Diffs are read, filtered and reversed as git does it."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from holdfast_recipes.core import diffs


def git(folder: Path, *words: str, text: str | None = None) -> str:
    environment = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": "/usr/bin:/bin:/usr/local/bin"}
    return subprocess.run(["git", "-C", folder, *words], input=text, capture_output=True, text=True, check=True, env=environment).stdout


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts
    }


def changed(folder: Path) -> str:
    git(folder, "add", "-A")
    return git(folder, "diff", "--cached", "-M", "--no-ext-diff", "HEAD")


def repository(folder: Path, files: dict[str, str]) -> Path:
    git(folder, "init", "-q")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "start")
    return folder


def test_diffs_are_read_filtered_and_reversed_as_git_does(tmp_path: Path) -> None:
    long = "".join(f"line {n}\n" for n in range(40))
    repo = repository(
        tmp_path,
        {"a.py": long, "tests/test_a.py": "assert 1\n", "gone é.txt": "bye", "old name.py": long * 2, "mode.sh": "x\n", "ff.py": "a\fb\n"},
    )
    before = tree(repo)
    (repo / "a.py").write_text(long.replace("line 3\n", "line three\nand more\n").replace("line 39\n", "line 39"))
    (repo / "tests/test_a.py").write_text("assert 2\n--- fake\n+++ fake\n@@ -1 +1 @@\n")
    (repo / "gone é.txt").unlink()
    (repo / "old name.py").rename(repo / "new name.py")
    (repo / "empty").touch()
    (repo / "fresh.py").write_text("new")
    (repo / "mode.sh").chmod(0o755)
    (repo / "ff.py").write_text("a\fc\n")
    diff = changed(repo)
    assert sorted(diffs.touched(diff)) == sorted(
        ["a.py", "tests/test_a.py", "gone é.txt", "new name.py", "empty", "fresh.py", "mode.sh", "ff.py"]
    )
    numbers = [line.split("\t") for line in git(repo, "diff", "--cached", "-M", "--numstat", "HEAD").splitlines()]
    assert diffs.size(diff) == sum(int(added) + int(removed) for added, removed, _ in numbers)
    assert "".join(each.text for each in diffs.parse(diff)) == diff

    kept, dropped = diffs.without(diff, lambda path: path.startswith("tests/") or path == "old name.py")
    assert sorted(dropped) == ["new name.py", "tests/test_a.py"]
    after = tree(repo)
    git(repo, "apply", "--index", text=diffs.reverse(diff))
    assert tree(repo) == before
    git(repo, "apply", "--index", text=kept)
    expected = {**after, "tests/test_a.py": before["tests/test_a.py"], "old name.py": before["old name.py"]}
    del expected["new name.py"]
    assert tree(repo) == expected


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_reverse(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)

    def text() -> str:
        lines = [draw.choice(["a", "b", "", "-x", "+y", "\\ no", "@@ -1 +1 @@", "é\u2028f"]) for _ in range(draw.randint(0, 30))]
        return "\n".join(lines) + draw.choice(["", "\n"])

    repo = repository(tmp_path, {f"f{n}": text() for n in range(4)})
    before = tree(repo)
    for name in draw.sample(list(before), 3):
        lines = (repo / name).read_text().split("\n")
        for _ in range(4):
            lines.insert(draw.randint(0, len(lines)), draw.choice(["new", "", "-z"]))
            lines.pop(draw.randrange(len(lines)))
        (repo / name).write_text("\n".join(lines))
    (repo / "extra").write_text(text())
    diff = changed(repo)
    assert "".join(each.text for each in diffs.parse(diff)) == diff
    after = tree(repo)
    git(repo, "apply", "--index", text=diffs.reverse(diff))
    assert tree(repo) == before
    git(repo, "apply", "--index", text=diffs.reverse(diffs.reverse(diff)))
    assert tree(repo) == after


@pytest.mark.parametrize(
    "text", ["no diff at all", "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,2 @@\n a\n", "--- a/x\n+++ b/x\n@@ bad @@\n"]
)
def test_malformed_diffs(text: str) -> None:
    with pytest.raises(diffs.DiffError):
        diffs.parse(text)


def test_irreversible_diffs_are_refused() -> None:
    for extra in ("GIT binary patch\n", "copy from y\ncopy to x\n"):
        with pytest.raises(diffs.DiffError):
            diffs.reverse("diff --git a/y b/x\n" + extra)


def test_names_with_blanks_in_headers_alone(tmp_path: Path) -> None:
    repo = repository(tmp_path, {"two words.sh": "x\n", 'quo"te \t.sh': "y\n"})
    before = tree(repo)
    for name in before:
        (repo / name).chmod(0o755)
    (repo / "empty file").touch()
    diff = changed(repo)
    assert "--- " not in diff
    assert sorted(diffs.touched(diff)) == sorted(["two words.sh", 'quo"te \t.sh', "empty file"])
    assert diffs.reverse(diffs.reverse(diff)) == diff
    git(repo, "apply", "--index", text=diffs.reverse(diff))
    assert tree(repo) == before
    assert not (repo / "two words.sh").stat().st_mode & 0o100


def test_quoted_renames_reverse(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(20))
    repo = repository(tmp_path, {"é\told": text, "plain": text.upper()})
    before = tree(repo)
    (repo / "é\told").rename(repo / "ü\tnew")
    (repo / "ü\tnew").write_text(text.replace("line 3", "line three"))
    (repo / "plain").rename(repo / "renamed")
    diff = changed(repo)
    git(repo, "apply", "--index", text=diffs.reverse(diff))
    assert tree(repo) == before


def test_plain_diffs_without_git_headers() -> None:
    plain = "--- a/x.py\t2024\n+++ b/x.py\t2024\n@@ -1 +1,2 @@\n-a\n+b\n+c\n--- y\n+++ y\n@@ -0,0 +1 @@\n+z\n"
    assert diffs.touched(plain) == ["x.py", "y"]
    assert diffs.size(plain) == 4
    assert diffs.parse("") == []
