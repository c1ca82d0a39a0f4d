"""The environment of an agent that is the command of a container, as the container runtime passed it.

Owns reading it from the kernel (``os.environ`` also has what the interpreter or the bundle added), removing the agent's settings from
where every process of the container could read them, and closing the agent's memory to the processes it starts. Called by
``settings`` and ``server``.
"""

from __future__ import annotations

import os

PREFIX = "HOLDFAST_AGENT_"
_PR_SET_DUMPABLE = 4


def given_environment() -> dict[str, str]:
    """The environment this process was started with."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environ)
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry[1:])
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def wipe_settings() -> bool:
    """Overwrite ``HOLDFAST_AGENT_*`` in this process's memory and environment: ``/proc/1/environ`` is open to the same user.

    False where the kernel does not allow it. ``hide_memory`` closes the memory itself; the token gives access to this one sandbox only.
    """
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])  # env_start and env_end of proc(5), counted behind the name
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            block = memory.read(end - start)
            for entry in block.split(b"\0"):
                if entry.startswith(PREFIX.encode()):
                    memory.seek(start + block.index(entry))
                    memory.write(bytes(len(entry)))
    except (OSError, ValueError, IndexError):
        return False
    return True


def hide_memory() -> bool:
    """Keep processes of the container without CAP_SYS_PTRACE, root included, from tracing the agent and from its memory, descriptors and
    environment; False if that is not possible. Programs that are executed from now on are not protected.

    Files of ``/proc/self`` belong to root from now on: whatever an agent that is not root writes there has to be open before.
    """
    import ctypes  # loaded by nothing else in most sandboxes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
