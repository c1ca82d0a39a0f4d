"""Path and command of the injected agent in a container, shared by the bundle's builder and the cluster runtime.

Owns the mount path and the argument list. The loader is named first, so the image needs no shell, libc, Python or PATH. Called by
``session_agent.bundle`` (which builds the folder) and by the gateway's Kubernetes runtime (which writes the container's command).
"""

from __future__ import annotations

MOUNT = "/.holdfast"
"""Where the bundle is mounted, read-only."""
AGENT_PORT = 8717
"""Port of the agent in a pod."""


def agent_command(mount: str = MOUNT) -> list[str]:
    """The container's command: the bundle's own loader, libraries, interpreter and agent.

    The loader does not use the image's cache. The interpreter finds its home from its own path, ignores the environment (``-I``), looks
    for no site packages (``-S``), writes nothing (``-B``) and uses UTF-8 whatever the image's locale is.
    """
    loader = [f"{mount}/lib/ld.so", "--inhibit-cache", "--library-path", f"{mount}/lib"]
    return [*loader, f"{mount}/bin/python3", "-I", "-S", "-B", "-X", "utf8", f"{mount}/agent/main.pyc"]


def copy_command(target: str, mount: str = MOUNT) -> list[str]:
    """An init container's command: copy the bundle it was started from into ``target``, for clusters without image volumes."""
    return [*agent_command(mount), "copy", target]
