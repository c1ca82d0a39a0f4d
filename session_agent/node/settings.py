"""The settings of the node, read from its environment once in main.

Owns names, defaults and units. Does not check the machine: doctor.py does.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import parse_bytes

MAX_SOCKET_PATH = 107
MAX_NAME = 63
"""Longest name of a sandbox; it is its host name too."""
MAX_SANDBOX_ID = 74
"""A name and the tag of its owner."""
AGENT_ENTRY = "session_agent.agent.startup.server:serve_forked"
ID_BASE = 1_879_048_192
ID_SLOTS = 4000
HIGH_BASE = 1 << 31
DISK_BYTES = 10 << 30


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Paths are absolute.

    `id_base` is the first of `id_slots` ranges of 65536 host ids given to sandboxes as root; it lies above what distributions hand to users
    and containers. `high_base` is the first of as many ranges of 524288 for ids above 65535, where kernels allow users and distributions
    have none. `tmpfs` sizes and limits are bytes; without `default_disk` a sandbox's disk use is limited only if its request sets a limit.
    `registries` (images/registries.py), `auth_files` and `proxy` (this machine's own) are for pulls.
    """

    data_dir: str
    socket_path: str
    image_fallback: str | None = None
    registries: str = ""
    auth_files: tuple[str, ...] = ()
    proxy: str = ""
    agent_entry: str = AGENT_ENTRY
    id_base: int = ID_BASE
    id_slots: int = ID_SLOTS
    high_base: int = HIGH_BASE
    open_files: int = 65536
    default_pids: int = 2048
    shm_bytes: int = 64 << 20
    default_disk: int | None = None
    ready_timeout_s: float = 20.0
    concurrent_creates: int = 8
    spares: int = 4
    id_mapping: bool = True
    remembered_failures: int = 1000

    @property
    def tag(self) -> str:
        """A name for resources of this data directory that are outside of it: cgroups and short socket folders."""
        return hashlib.sha256(self.data_dir.encode()).hexdigest()[:12]

    @property
    def sandboxes_dir(self) -> str:
        return os.path.join(self.data_dir, "sandboxes")

    @property
    def suspended_dir(self) -> str:
        """The folder of the sandboxes that are paused on disk."""
        return os.path.join(self.data_dir, "suspended")

    @property
    def images_dir(self) -> str:
        return os.path.join(self.data_dir, "images")

    @property
    def run_dir(self) -> str:
        """The folder of the sandboxes' sockets: for root in memory, where creating a file takes a twentieth of the time on a disk;
        otherwise ``sandboxes_dir``, or a folder with a short name if that path is too long for a socket."""
        parent = memory_dir() if os.geteuid() == 0 else None
        if parent is None:
            if len(os.fsencode(f"{self.sandboxes_dir}/{'x' * MAX_SANDBOX_ID}.s")) <= MAX_SOCKET_PATH:
                return self.sandboxes_dir
            parent = "/run" if os.access("/run", os.W_OK) else "/tmp"
        return f"{parent}/holdfast-{self.tag}"

    def agent_socket(self, sandbox_id: str) -> str:
        return f"{self.run_dir}/{sandbox_id}.s"


def from_environment(environ: Mapping[str, str]) -> NodeSettings:
    """Read the settings. Raises ValueError with what to change."""
    data_dir = os.path.abspath(environ.get("HOLDFAST_DATA") or ".holdfast")
    socket_path = os.path.abspath(environ.get("HOLDFAST_NODE_SOCKET") or os.path.join(data_dir, "node.sock"))
    if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH:
        raise ValueError(f"the node's socket path is longer than {MAX_SOCKET_PATH} bytes: set HOLDFAST_NODE_SOCKET to a shorter one")
    first = _number(environ, "HOLDFAST_SUBID_BASE", ID_BASE, 65536, HIGH_BASE - 65536)
    fallback = environ.get("HOLDFAST_IMAGE_FALLBACK", "")
    if fallback not in ("", "host"):
        raise ValueError(f"HOLDFAST_IMAGE_FALLBACK must be host, or not set, not {fallback[:80]!r}")
    mapping = environ.get("HOLDFAST_NODE_ID_MAPPING") or "on"
    if mapping not in ("on", "off"):
        raise ValueError(f"HOLDFAST_NODE_ID_MAPPING must be on or off, not {mapping[:80]!r}")
    disk = environ.get("HOLDFAST_DEFAULT_DISK", "")
    return NodeSettings(
        data_dir=data_dir,
        socket_path=socket_path,
        image_fallback=fallback or None,
        registries=environ.get("HOLDFAST_REGISTRIES", ""),
        auth_files=_auth_files(environ),
        proxy=environ.get("HTTPS_PROXY") or environ.get("https_proxy") or "",
        agent_entry=environ.get("HOLDFAST_AGENT_ENTRY") or AGENT_ENTRY,
        id_base=first,
        spares=_number(environ, "HOLDFAST_NODE_SPARES", 4, 0, 8),
        default_disk=None if disk == "none" else _bytes(disk) if disk else _share_of(data_dir),
        default_pids=_number(environ, "HOLDFAST_NODE_PIDS", 2048, 8, 1 << 20),
        id_mapping=mapping == "on",
        id_slots=min(ID_SLOTS, (HIGH_BASE - first) // 65536),
    )


@functools.cache
def memory_dir() -> str | None:
    """A folder of this machine whose files are in memory."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        kinds = {point: kind for _, point, kind, *_ in map(str.split, file)}
    return next((path for path in ("/run", "/dev/shm") if kinds.get(path) == "tmpfs" and os.access(path, os.W_OK)), None)


def _auth_files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where ``skopeo login`` and ``docker login`` store the operator's logins, in the order in which skopeo reads them."""
    home, run = environ.get("HOME") or "/root", environ.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.geteuid()}"
    files = [f"{run}/containers/auth.json", f"{run}/auth.json", f"{home}/.config/containers/auth.json", f"{home}/.docker/config.json"]
    return tuple(filter(None, [environ.get("REGISTRY_AUTH_FILE"), *files]))


def _number(environ: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environ.get(name) or str(default)
    if not (text.isdecimal() and least <= int(text) <= most):
        raise ValueError(f"{name} must be a number from {least} to {most}")
    return int(text)


def _bytes(text: str) -> int:
    try:
        size = parse_bytes(text, "HOLDFAST_DEFAULT_DISK")
    except HoldfastError as error:
        raise ValueError(f"{error.message}; write 10Gi or the like, or none for no limit") from None
    if size < 64 << 20:
        raise ValueError("HOLDFAST_DEFAULT_DISK must be at least 64Mi, or none")
    return size


def _share_of(data_dir: str) -> int:
    """10 GiB, or a quarter of the free space if that is less; in whole MiB."""
    return max(64 << 20, min(DISK_BYTES, shutil.disk_usage(existing(data_dir)).free // 4 >> 20 << 20))


def existing(path: str) -> str:
    """The directory itself, or its nearest parent that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
