"""Which processes live: what the tests of killed trees look for on the machine."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.until import until_async


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


async def gone(pid: int) -> None:
    await until_async(lambda: not alive(pid), deadline_s=60, what=f"the end of {pid}")


def sleepers(argument: str) -> list[int]:
    """The living processes that have this argument; make it one that no other run on this machine has."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if argument.encode() in words and alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def nap(seconds: int) -> str:
    """An argument for `sleep` that is this process's own."""
    return f"{seconds}.{os.getpid()}"
