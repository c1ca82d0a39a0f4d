"""The data folder of a stack: whose it is, what may be in it, and what happens when it is full or cannot be written to."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from holdfast_server.datadir import DataDir, child_environment

from tests.e2e.runner import SLEEPER, refused, up
from tests.support.requires import requires


def test_second_stack_in_one_folder_is_refused(tmp_path: Path) -> None:
    with up(tmp_path, f"a: {SLEEPER}\n") as run:
        run.wait_text("a | up")
        message = refused(tmp_path, HOLDFAST_DATA=str(run.data))
        assert f"another stack (process {run.process.pid})" in message
        assert "--data" in message
        with up(tmp_path, f"a: {SLEEPER}\n", name="other") as second:
            second.wait_text("a | up")


def test_a_folder_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    """Such as HOLDFAST_DATA=/var/lib."""
    dump = tmp_path / "refused" / "redis" / "dump.rdb"
    dump.parent.mkdir(parents=True)
    dump.write_text("somebody's")
    message = refused(tmp_path)
    assert "is not a data folder of a stack" in message
    assert "HOLDFAST_DATA" in message
    assert dump.read_text() == "somebody's"
    assert os.listdir(tmp_path / "refused") == ["redis"]


@pytest.mark.parametrize("name", ["notes.txt", "lock", ".git/HEAD", "images/holiday.jpg", "run/one.pid", "env/bin/python", "logs/a.log"])
def test_a_folder_with_other_files_is_refused_and_unchanged(tmp_path: Path, name: str) -> None:
    """Such as HOLDFAST_DATA=$HOME, or /var/lib/dpkg, which has a `lock` too."""
    existing = tmp_path / "refused" / name
    existing.parent.mkdir(parents=True)
    existing.write_text("of others")
    (tmp_path / "refused" / "other").write_text("of others")
    message = refused(tmp_path)
    assert "is not a data folder of a stack, and it is not empty" in message
    assert "HOLDFAST_DATA" in message
    assert sorted(os.listdir(tmp_path / "refused")) == sorted({"other", name.partition("/")[0]})


def test_a_folder_of_an_earlier_stack_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret").write_text("s" * 64 + "\n")
    (tmp_path / "data" / "demo").mkdir()
    for _ in range(2):
        with up(tmp_path, f"a: {SLEEPER}\n") as run:
            run.wait_text("a | up")
    assert (tmp_path / "data" / "secret").read_text() == "s" * 64 + "\n"
    (tmp_path / "data" / "more").write_text("of the user's")
    with up(tmp_path, f"a: {SLEEPER}\n") as run:
        run.wait_text("a | up")


@requires("root")
def test_a_full_data_folder_is_reported_and_survived(tmp_path: Path) -> None:
    """A folder that is full before the start is refused with a hint. If it fills up later, only log lines are lost."""
    disk = tmp_path / "full"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        (disk / "runner.out").write_bytes(bytes(16 << 12))
        message = refused(tmp_path, HOLDFAST_DATA=str(disk))
        assert "No space left on device" in message
        assert "HOLDFAST_DATA" in message
        (disk / "runner.out").unlink()
        flood = "sh -c 'head -c 100000 /dev/zero | tr \\\\0 x; echo; echo through; exec sleep 600'"
        with up(tmp_path, f"a: {flood}\n", name="full") as run:
            run.wait_text("a | through")
            os.kill(run.pid("a"), signal.SIGKILL)
            run.wait_text("a | through", count=2)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@requires("root")
def test_a_folder_without_write_permission_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "refused"
    for name in ("logs", "run", "redis"):
        (data / name).mkdir(parents=True)
    subprocess.run(["chattr", "+i", data], check=True)
    try:
        message = refused(tmp_path)
    finally:
        subprocess.run(["chattr", "-i", data], check=True)
    assert "cannot write in the data folder" in message
    assert "make the folder your own" in message


def test_long_data_folder_still_gets_sockets(tmp_path: Path) -> None:
    deep = "d" * 120
    with up(tmp_path, "a: sh -c 'echo \"<$HOLDFAST_NODE_SOCKET>\"; exec sleep 600'\n", name=deep) as run:
        run.wait_text("<")
        socket_path = run.text().partition("<")[2].partition(">")[0]
        assert len(socket_path) < 100
        Path(socket_path).parent.rmdir()


@pytest.mark.parametrize(("given", "used"), [({}, "data/node.sock"), ({"HOLDFAST_NODE_SOCKET": "n.sock"}, "n.sock")])
def test_the_socket_of_the_node_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], used: str) -> None:
    monkeypatch.chdir(tmp_path)  # the processes run in another folder
    environment = child_environment(DataDir(tmp_path / "data"), 8765, given)
    assert environment["HOLDFAST_NODE_SOCKET"] == str(tmp_path / used)
