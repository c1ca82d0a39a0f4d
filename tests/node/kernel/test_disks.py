"""A sandbox's disk has a fixed size, and nothing of it is left on the machine after its removal."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from session_agent.node.kernel import disks, rootfs
from session_agent.node.kernel.disks import missing_requirement
from session_agent.node.settings import from_environment
from tests.node.harness import node as running_node
from tests.node.harness import run
from tests.support.requires import requires
from tests.support.until import until

pytestmark = requires("namespaces", "root")


@pytest.fixture(autouse=True)
def _disks(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := missing_requirement(str(tmp_path_factory.mktemp("disks"))):
        pytest.skip(f"sandboxes have no disks of their own on this machine: {reason}")


def disks_of(data: Path) -> list[str]:
    """The unnamed backing files of loop devices below *data*; other stacks of this machine have their own."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(path.read_text())
        except OSError:
            continue
    return [text for text in found if str(data) in text]


async def test_every_sandbox_has_the_default_size(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", HOLDFAST_DEFAULT_DISK="96Mi") as made:
        client = await made.client()
        for name in ("made-cold", "from-a-spare"):
            box = await client.create(name)
            fill = await run(box["endpoint"], "dd", "if=/dev/zero", "of=/workspace/big", "bs=1M", "count=200")
            assert "No space left" in fill["err"]
            output = await run(box["endpoint"], "sh", "-c", "df -m /workspace | tail -1; rm /workspace/big; echo ok > /tmp/x; cat /tmp/x")
            size, line = int(output["out"].split()[1]), output["out"].splitlines()[-1]
            assert 80 < size <= 96
            assert line == "ok"
        other = await client.create("asked-for-more", disk=256 << 20)
        assert (await run(other["endpoint"], "dd", "if=/dev/zero", "of=/workspace/big", "bs=1M", "count=200"))["code"] == 0
        for name in ("made-cold", "from-a-spare", "asked-for-more"):
            await client.call("delete", sandbox_id=name)
    assert disks_of(tmp_path) == []


async def test_a_deleted_file_that_is_open_counts_against_the_size(tmp_path: Path) -> None:
    script = "import os; f = open('/tmp/a', 'wb'); os.unlink('/tmp/a')\nwhile True: f.write(bytes(1 << 20))"
    async with running_node(tmp_path / "data", HOLDFAST_DEFAULT_DISK="64Mi") as made:
        box = await (await made.client()).create("sly")
        done = await run(box["endpoint"], "/usr/bin/python3", "-c", script)
        assert "No space left" in done["err"]


async def test_a_killed_node_leaves_no_disk(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", HOLDFAST_DEFAULT_DISK="64Mi") as made:
        await (await made.client()).create("lost")
        assert disks_of(tmp_path)
        await made.stop(signal.SIGKILL)
    until(lambda: not disks_of(tmp_path), deadline_s=60, what="the disks to go")


def test_a_disk_is_shut_down_only_if_its_identity_matches(tmp_path: Path) -> None:
    store = disks.Disks(str(tmp_path))
    mine, other = store.create(disks.LEAST_BYTES, 0), store.create(disks.LEAST_BYTES, 0)
    disks.discard(replace(mine, root=os.dup(mine.root), backing=os.dup(mine.backing), file=other.file))
    os.mkdir("still-there", dir_fd=mine.root)
    disks.discard(replace(mine, root=os.dup(mine.root), backing=os.dup(mine.backing)))
    with pytest.raises(OSError, match=r"Input.output error|shutdown"):
        os.mkdir("gone", dir_fd=mine.root)
    for disk in (mine, other):
        os.close(disk.tree)
        disks.discard(disk)
    until(lambda: not disks_of(tmp_path), deadline_s=60, what="the disks to go")


def test_discarding_a_disk_writes_no_alert_to_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ext4 logs a shutdown as an alert, which the kernel writes to the console at once: half a millisecond on a serial line."""
    disk = disks.Disks(str(tmp_path)).create(disks.LEAST_BYTES, 0)
    device = os.path.basename(os.readlink(f"/sys/dev/block/7:{os.minor(os.fstat(disk.root).st_dev)}"))
    limit = f"/sys/fs/ext4/{device}/msg_ratelimit_burst"
    limits_seen: list[str] = []
    call = fcntl.ioctl

    def recorded(fd: int, number: int, argument: bytes) -> object:
        limits_seen.append(Path(limit).read_text().strip())
        return call(fd, number, argument)

    assert int(Path(limit).read_text()) > 0
    monkeypatch.setattr("session_agent.node.kernel.disks.fcntl.ioctl", recorded)
    os.close(disk.tree)
    disks.discard(disk)
    assert limits_seen[-1] == "0"
    until(lambda: not disks_of(tmp_path), deadline_s=60, what="the disk to go")


def test_disks_created_in_parallel_are_separate_and_belong_to_their_sandbox(tmp_path: Path) -> None:
    """Eight threads create disks, as concurrent creates do: no two get the same device, and none appears as a mount."""
    store = disks.Disks(str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda owner: store.create(disks.LEAST_BYTES, owner), range(70_000, 70_024)))
    try:
        assert len({os.fstat(disk.root).st_dev for disk in made}) == 24
        for owner, disk in enumerate(made, 70_000):
            for path in (".", *rootfs.PREPARED):
                status = os.stat(path, dir_fd=disk.root, follow_symlinks=False)
                assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (
                    owner,
                    owner,
                    0o644 if path.endswith(rootfs.NAME_FILES) else 0o755,
                )
        assert len({disk.file for disk in made}) == 24
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    finally:
        for disk in made:
            os.close(disk.tree)
            disks.discard(disk)
    until(lambda: not disks_of(tmp_path), deadline_s=60, what="the disks to go")
    assert os.listdir(tmp_path) == []


def test_a_file_system_of_the_machine_is_not_shut_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("session_agent.node.kernel.disks.fcntl.ioctl", lambda fd, number, *rest: calls.append(number))
    root = os.open(tmp_path, os.O_RDONLY)
    disks.discard(disks.Disk(-1, root, disks.identity(root), os.dup(root), "loop0", disks.LEAST_BYTES, reserved=False))
    assert calls == []


def test_the_reason_for_missing_disks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_requirement(str(tmp_path)) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing_requirement(str(tmp_path)) == "only root can use loop devices"


@pytest.mark.parametrize("text", ["much", "1Ki", "-1"])
def test_a_wrong_default_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOLDFAST_DEFAULT_DISK"):
        from_environment({"HOLDFAST_DATA": "/tmp/x", "HOLDFAST_DEFAULT_DISK": text})


def test_the_default_is_ten_gibibytes_or_a_quarter_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, expected in ((100 << 30, 10 << 30), (4 << 30, 1 << 30)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _place, free=free: shutil._ntuple_diskusage(0, 0, free))
        assert from_environment({"HOLDFAST_DATA": "/tmp/x"}).default_disk == expected
    assert from_environment({"HOLDFAST_DATA": "/tmp/x", "HOLDFAST_DEFAULT_DISK": "none"}).default_disk is None
