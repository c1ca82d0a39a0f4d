"""Immortal objects, in a process of its own: what is made immortal stays so until the process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from session_agent.node.zygote import immortal

_COUNTS = """
import sys
from session_agent.node.zygote import immortal

class Node:
    def __init__(self):
        self.items = [f"item {id(self)}"]

node = Node()
makes = immortal.make_all_immortal()
after = Node()

def count_of(it):
    return sys.getrefcount(it) == sys.getrefcount(None)

print(makes > 1000, [count_of(it) for it in (node, node.items, node.items[0], Node, Node.__init__.__code__, after, after.items[0])])
"""
_SHARED = """
import gc, os, sys
from session_agent.node.zygote import immortal

texts = [f"text {number:0200}" for number in range(40_000)]
if sys.argv[1] == "yes":
    immortal.make_all_immortal()
gc.freeze()

def dirty_kib():
    rows = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Private_Dirty:"))

pid = os.fork()
if pid == 0:
    before = dirty_kib()
    for text in texts:
        kept = text
    print(dirty_kib() - before, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def _run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_only_what_is_alive_becomes_immortal_where_the_python_supports_it() -> None:
    known = immortal.supported()
    assert _run(_COUNTS) == f"{known} {[known] * 5 + [False] * 2}"


def test_a_fork_that_uses_immortal_objects_copies_no_pages_of_them() -> None:
    copied_kib = int(_run(_SHARED, "no"))
    assert copied_kib > 4000, "the objects lie on fewer pages than this test assumes"
    now_kib = int(_run(_SHARED, "yes"))
    assert now_kib < copied_kib / 10 if immortal.supported() else now_kib > copied_kib / 2


def test_support_is_a_matter_of_version_and_build() -> None:
    assert immortal.supported() == (sys.version_info[:2] in ((3, 12), (3, 13)) and "t" not in sys.abiflags)


def test_a_version_that_was_not_tested_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(immortal, "TESTED", ((3, 0),))
    assert not immortal.supported()
    assert immortal.make_all_immortal() == 0
