"""Limits with each kind of cgroup hierarchy: which files get which values, in directories that stand in for the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from session_agent.node.kernel import cgroups
from session_agent.node.kernel.cgroups import Limits, SandboxCgroup
from session_agent.node.kernel.hierarchies import Hierarchies, Hierarchy, detect

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
