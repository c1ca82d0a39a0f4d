"""The command line's snapshot, commit, tag, save, branch, pause and resume on the real stack, in docker's words."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.requires import requires

pytestmark = requires("namespaces", "root", "redis")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def holdfast(stack: Any) -> Run:
    def run(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.cli", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=120, stdin=subprocess.DEVNULL, env=stack.environment()
        )
        assert done.returncode == status, done
        return done

    return run


def docker(stack: Any, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """``holdfast-docker``."""
    program = Path(sys.executable).parent / "holdfast-docker"
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, env=stack.environment(), check=False
    )
    assert done.returncode == status, done
    return done


@pytest.fixture
def box(holdfast: Run) -> Iterator[str]:
    name = holdfast("create", "-m", "512m", "host").stdout.strip()
    yield name
    holdfast("rm", "-f", name)


def test_commit_tag_save(holdfast: Run, box: str, tmp_path: Path) -> None:
    holdfast("exec", box, "sh", "-c", "echo work > /tmp/f")
    assert holdfast("commit", "-m", "some work", box, "cli/work").stdout == "cli/work\n"
    assert holdfast("snapshot", box).stdout.startswith("sha256:")
    digest = json.loads(holdfast("snapshot", box, "--json").stdout)["digest"]
    assert holdfast("run", "--rm", "-m", "512m", "cli/work", "cat", "/tmp/f").stdout == "work\n"
    assert holdfast("tag", "cli/work", "cli/again").stdout == "cli/again\n"
    assert "cli/again" in holdfast("images", "-q").stdout.split()
    assert "machine" in holdfast("save", "-o", str(tmp_path / "x.tar"), "cli/work", status=125).stderr
    assert not list(tmp_path.iterdir())
    (tmp_path / "hello").write_text("hello")
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(tmp_path / "hello", "hello")
    holdfast("import", str(tmp_path / "root.tar"), "cli/plain")
    holdfast("save", "-o", str(tmp_path / "x.tar"), "cli/plain")
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert "index.json" in archive.getnames()
    assert "oci-layout" in holdfast("save", "cli/plain").stdout
    holdfast("rmi", "cli/work", "cli/again", "cli/plain", digest)


def test_branch(holdfast: Run, box: str) -> None:
    holdfast("exec", box, "sh", "-c", "echo work > /tmp/f")
    holdfast("exec", "-d", box, "sleep", "900")
    done = holdfast("branch", box, "-n", "2", "--turn", "7")
    ids = done.stdout.split()
    assert len(ids) == 2
    assert "not continued: command" in done.stderr
    record = json.loads(holdfast("inspect", ids[0]).stdout)[0]
    assert (record["parent"], record["turn"]) == (box, 7)
    assert [holdfast("exec", one, "cat", "/tmp/f").stdout for one in ids] == ["work\n"] * 2
    holdfast("rm", *ids)
    answer = json.loads(holdfast("branch", box, "--now", "--json").stdout)
    holdfast("rm", *answer["sandboxes"])
    assert answer["lost"]


def test_pause_and_unpause(holdfast: Run, box: str) -> None:
    assert holdfast("pause", box).stdout == f"{box}\n"
    assert "unpause" in holdfast("exec", box, "true", status=125).stderr
    assert "paused" in holdfast("list").stdout
    assert holdfast("unpause", box).stdout == f"{box}\n"
    holdfast("exec", box, "true")
    assert json.loads(holdfast("pause", "--to-disk", "--json", box).stdout)[0]["sandbox"]["paused"] == "disk"
    assert "there is no sandbox" in holdfast("resume", box, "no-such-one", status=125).stderr
    holdfast("exec", box, "true")


def test_dockers_words_print_what_docker_prints(stack: Any, box: str) -> None:
    docker(stack, "exec", box, "sh", "-c", "echo work > /tmp/f")
    digest = docker(stack, "commit", "-a", "me", "--message=some work", box, "cli/docker:1").stdout
    assert digest.startswith("sha256:")
    assert digest == docker(stack, "container", "commit", box).stdout, "the same content"
    assert docker(stack, "run", "--rm", "-m", "512m", digest.strip(), "cat", "/tmp/f").stdout == "work\n"
    assert docker(stack, "tag", "cli/docker:1", "cli/docker:2").stdout == ""
    assert {"cli/docker:1", "cli/docker:2"} <= set(docker(stack, "images", "-q").stdout.split())
    assert docker(stack, "pause", box).stdout == f"{box}\n"
    assert json.loads(docker(stack, "inspect", box).stdout)[0]["State"]["Status"] == "paused"
    assert docker(stack, "container", "unpause", box).stdout == f"{box}\n"
    assert json.loads(docker(stack, "inspect", box).stdout)[0]["State"]["Paused"] is False
    for words in (("commit", "no-such-one"), ("pause", "no-such-one"), ("unpause", "no-such-one"), ("tag", "no/such:one", "x/y")):
        assert docker(stack, *words, status=1).stderr, words
    docker(stack, "rmi", "cli/docker:1", "cli/docker:2", digest.strip())


def test_update_changes_labels_and_limits(holdfast: Run, box: str) -> None:
    assert holdfast("update", "-l", "run=7", "-l", "x=1", "--idle-timeout", "600", box).stdout.strip() == box
    assert holdfast("ps", "-q", "-l", "run in (7,8)").stdout.strip() == box
    assert holdfast("ps", "-q", "-l", "run", "-l", "!x").stdout == ""
    record = json.loads(holdfast("container", "update", "--unlabel", "x", "--lifetime", "900", box, "--json").stdout)[0]
    assert (record["labels"], record["idle_timeout_s"]) == ({"run": "7"}, 600)
    assert "nothing is changed" in holdfast("update", box, status=2).stderr
    assert "no-such" in holdfast("update", "--lifetime", "60", "no-such", box, status=125).stderr
