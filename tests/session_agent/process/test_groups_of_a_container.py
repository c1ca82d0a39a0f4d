"""A pod's agent detects by itself that the kernel killed for lack of memory, on both versions of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from session_agent.agent.process.cgroups import Groups, container_events

V2 = "low 0\nhigh 0\nmax 41\noom {n}\noom_kill {n}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {n}\n"


@pytest.mark.parametrize(("name", "text"), [("memory.events", V2), ("memory/memory.oom_control", V1)])
def test_kills_are_counted(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.format(n=0))
    (descriptor,) = events = container_events(str(tmp_path))
    groups = Groups((), events)
    assert groups.oom_kills() == 0
    path.write_text(text.format(n=2))
    assert groups.oom_kills() == 2
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    assert groups.oom_kills() == 0, "a file that cannot be read counts no kills"


def test_without_a_counter_of_kills_none_is_reported(tmp_path: Path) -> None:
    assert container_events(str(tmp_path)) == ()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    (descriptor,) = events = container_events(str(tmp_path))
    assert Groups((), events).oom_kills() == 0
    os.close(descriptor)
