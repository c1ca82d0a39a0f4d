"""Limits with each kind of cgroup hierarchy: which files get which values, in directories that stand in for the kernel's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from session_agent.node.kernel import cgroups, hierarchies
from session_agent.node.kernel import syscalls as sys_
from session_agent.node.kernel.cgroups import Limits, SandboxCgroup
from session_agent.node.kernel.hierarchies import Hierarchies, Hierarchy, detect
from tests.support.requires import requires, unmet

V1_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    "pids": ("pids.max",),
    "cpu": ("cpu.cfs_quota_us", "cpu.shares"),
}
V2_FILES = ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cgroup.subtree_control", "cgroup.max.descendants", "cgroup.procs")
LIMITS = Limits(cpu=2.0, memory_bytes=1 << 30, pids=100)


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_cgroup_v1_keeps_a_reserve_for_the_agent(tmp_path: Path) -> None:
    group = SandboxCgroup(Hierarchies(tuple(Hierarchy(str(tmp_path / name), frozenset({name})) for name in V1_FILES)), "box")
    for name in V1_FILES:
        (tmp_path / name).mkdir()
    group.create()
    for name, files in V1_FILES.items():
        for part in ("", "commands", *(["agent", "rescue"] if name == "cpu" else [])):
            touch(tmp_path / name / "box" / part, *files, "cgroup.procs")
    group.divide()
    group.limit(LIMITS)
    assert (tmp_path / "memory/box/commands/memory.limit_in_bytes").read_text() == str(1 << 30)
    assert int((tmp_path / "memory/box/memory.limit_in_bytes").read_text()) == (1 << 30) + cgroups.RESERVE_BYTES
    assert int((tmp_path / "pids/box/pids.max").read_text()) - int((tmp_path / "pids/box/commands/pids.max").read_text()) == 32
    assert (tmp_path / "cpu/box/cpu.cfs_quota_us").read_text() == "", "commands could use up a quota that the agent shares"
    assert (tmp_path / "cpu/box/agent/cpu.cfs_quota_us").read_text() == "100000"
    assert (tmp_path / "cpu/box/commands/cpu.cfs_quota_us").read_text() == "200000"
    shares = [int((tmp_path / f"cpu/box/{part}/cpu.shares").read_text()) for part in ("commands", "agent", "")]
    assert shares == [128, 1024, 2048]
    group.add(os.getpid())
    assert (tmp_path / "cpu/box/agent/cgroup.procs").read_text() == str(os.getpid())


def test_cgroup_v2_alone(tmp_path: Path) -> None:
    group = SandboxCgroup(Hierarchies((Hierarchy(str(tmp_path), frozenset({"cpu", "memory", "pids"}), v2=True),)), "box")
    touch(tmp_path / "box")
    os.rmdir(tmp_path / "box")
    with pytest.raises(FileNotFoundError):
        group.create()  # a plain directory, unlike the kernel's, contains no files when it is created
    touch(tmp_path / "box", *V2_FILES)
    touch(tmp_path / "box/commands", *V2_FILES)
    touch(tmp_path / "box/agent", *V2_FILES)
    group.limit(LIMITS)
    assert (tmp_path / "box/commands/cpu.max").read_text() == "200000 100000"
    assert (tmp_path / "box/cpu.max").read_text() == "225000 100000"
    assert (tmp_path / "box/agent/cpu.max").read_text() == "", "one-off commands are in that group"
    assert (tmp_path / "box/memory.swap.max").read_text() == "0"
    group.add(os.getpid())
    assert (tmp_path / "box/agent/cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("mounts", "own", "expected"),
    [
        ("0 0 0:1 / {root}/v2 rw - cgroup2 cgroup2 rw\n", "0::/\n", {"v2": "v2"}),
        ("0 0 0:1 / {root}/v2 rw - cgroup2 cgroup2 rw\n", "0::/user.slice/a\n", {"v2": "v2/user.slice/a"}),
        (
            "0 0 0:1 / {root}/cpu rw - cgroup cgroup rw,cpu\n0 0 0:2 / {root}/v2 rw - cgroup2 cgroup2 rw\n",
            "2:cpu:/deep\n0::/\n",
            {"cpu": "cpu/deep", "v2": "v2"},
        ),
        ("0 0 0:1 /docker/x {root}/cpu rw - cgroup cgroup rw,cpu\n", "2:cpu:/docker/x/y\n", {"cpu": "cpu/y"}),
        ("0 0 0:1 / /proc rw - proc proc rw\n", "", {}),
    ],
    ids=["v2 alone", "v2, delegated", "hybrid", "v1, in a container", "none"],
)
def test_the_base_directories_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str, own: str, expected: dict[str, str]
) -> None:
    for folder in expected.values():
        touch(tmp_path / folder)
        (tmp_path / folder / "cgroup.controllers").write_text("cpu memory pids\n")
        (tmp_path / folder / "cgroup.subtree_control").touch()
    fake = tmp_path / "proc"
    fake.mkdir()
    (fake / "mountinfo").write_text(mounts.format(root=tmp_path))
    (fake / "cgroup").write_text(own)
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: real(str(path).replace("/proc/self", str(fake)) if isinstance(path, str) else path, *a, **k)
    )
    found = detect("tag")
    bases = {"v2" if hierarchy.v2 else "".join(hierarchy.controllers): hierarchy.base for hierarchy in found.limiting}
    assert bases == {name: f"{tmp_path}/{folder}/holdfast-tag" for name, folder in expected.items()}


@requires("cgroups", "root")
def test_a_delegated_group_of_v2_with_other_members_gives_its_controllers() -> None:
    """In a scope of systemd are all processes of `holdfast up`: the kernel enables no controller below a group with members (EBUSY)."""
    point = hierarchies.mounts().get("", ("", ""))[0]
    offered = Path(point, "cgroup.controllers").read_text().split() if point else []
    if not offered:
        unmet("cgroups", "no controller in the hierarchy of version 2")
    group, user = f"{point}/holdfast-delegated-{os.getpid()}", 54321
    had = offered[0] in Path(point, "cgroup.subtree_control").read_text().split()
    sys_.write_file(f"{point}/cgroup.subtree_control", f"+{offered[0]}")
    os.mkdir(group)
    reader, writer = os.pipe()
    other = subprocess.Popen(["sleep", "3600"], user=user, group=user, extra_groups=[])
    try:
        for path in (group, *(f"{group}/cgroup.{name}" for name in ("procs", "threads", "subtree_control"))):
            os.chown(path, user, user)
        sys_.write_file(f"{group}/cgroup.procs", str(other.pid))
        if (child := os.fork()) == 0:
            try:
                sys_.write_file(f"{group}/cgroup.procs", str(os.getpid()))
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                found = hierarchies.usable_v2((point, "/"), os.path.basename(group), "tag", frozenset(offered[:1]))
                os.write(writer, repr([(one.base, sorted(one.controllers)) for one in found]).encode())
            except BaseException as error:
                os.write(writer, repr(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 4096).decode() == repr([(f"{group}/holdfast-tag", offered[:1])])
        assert Path(group, "holdfast-node", "cgroup.procs").read_text().split() == [str(other.pid)]
    finally:
        other.kill()
        other.wait()
        os.close(reader)
        os.close(writer)
        hierarchies.remove(group)
        if not had:
            sys_.write_file(f"{point}/cgroup.subtree_control", f"-{offered[0]}")
