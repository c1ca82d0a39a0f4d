"""The requirements of a test on the machine: `requires("namespaces", "root")`.

Owns the probes and their explanations. A missing requirement skips the test with a message on a developer's machine and fails it with
CI=true, so that the suite cannot pass by testing nothing. Use as a decorator or as `pytestmark = requires(...)`. A test that
finds out on its way that a requirement is missing calls `unmet`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from holdfast_server.redis import find_redis_server

from session_agent.bundle.libraries import MissingLibraryError, loader, needed


def requires(*needs: str) -> pytest.MarkDecorator:
    """Mark a test with what it needs: bash, busybox, cgroups, cluster, container tools, git, memory file system, …"""
    unknown = set(needs) - set(_PROBES)
    if unknown:
        raise ValueError(f"no probe for {', '.join(sorted(unknown))}: one of {', '.join(sorted(_PROBES))}")
    return pytest.mark.requires(*needs)


_WITH_SBIN = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


@functools.cache
def missing(need: str) -> str | None:
    """Why a requirement is not met here, else None. Each is probed once per run."""
    return _PROBES[need]()


def enforce(item: pytest.Item) -> None:
    """Called before each test: skip, or fail where CI=true."""
    for mark in item.iter_markers("requires"):
        for need in mark.args:
            reason = missing(need)
            if reason is not None:
                unmet(need, reason)


def unmet(need: str, reason: str) -> NoReturn:
    """End the running test, which cannot run here: skip it, or fail it where CI=true."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"needs {need}, which CI must have: {reason}", pytrace=False)
    pytest.skip(f"needs {need}: {reason}")


def _namespaces() -> str | None:
    command = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "true"]
    if os.geteuid() != 0:
        command[1:1] = ["--user", "--map-root-user"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if result.returncode == 0 else result.stderr.strip() or f"unshare ended with {result.returncode}"


def _cgroups() -> str | None:
    roots = ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs")
    return None if any(os.access(root, os.W_OK) for root in roots) else "no writable cgroup hierarchy"


def _program(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"{name} is not installed"


@functools.cache
def static_busybox() -> str | None:
    """A busybox that needs no libraries, such as that of Debian's busybox-static."""
    found = shutil.which("busybox")
    return found if found is not None and _is_static(found) else None


def _is_static(program: str) -> bool:
    glibc = loader()
    try:
        return glibc is not None and not needed(Path(program).resolve(), glibc)
    except MissingLibraryError:
        return True


def _cluster() -> str | None:
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG names no cluster"
    bundle = os.environ.get("HOLDFAST_BUNDLE_IMAGE")
    return None if bundle else "HOLDFAST_BUNDLE_IMAGE names no image that the cluster has or can pull"


def _container_tools() -> str | None:
    """runc and debootstrap, which only the differential suite needs, and which it installs where it has permission."""
    return _install("runc", "debootstrap")


def _reflink() -> str | None:
    lacking = [name for name in ("xfs", "btrfs") if shutil.which(f"mkfs.{name}", path=_WITH_SBIN) is None]
    return f"no mkfs.{', no mkfs.'.join(lacking)}: apt-get install xfsprogs btrfs-progs" if lacking else None


def _install(*names: str) -> str | None:
    """Install missing programs from Debian's packages of the same names, as root; returns why one is missing, else None."""
    lacking = [name for name in names if shutil.which(name) is None]
    if not lacking:
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"not installed: {', '.join(lacking)}"
    install = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *lacking]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (install, ["apt-get", "-qq", "update"], install):
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if result.returncode == 0 and command is install:
            return None
    return f"apt-get could not install {' '.join(lacking)}: {result.stderr.strip()[-300:]}"


_PROBES: dict[str, Callable[[], str | None]] = {
    "bash": _program("bash"),
    "busybox": lambda: None if static_busybox() else "no static busybox: apt-get install busybox-static",
    "cgroups": _cgroups,
    "chromium": lambda: _install("chromium"),
    "cluster": _cluster,
    "reflink file systems": _reflink,
    "skopeo": _program("skopeo"),
    "container tools": _container_tools,
    "fuse": lambda: None if os.access("/dev/fuse", os.R_OK | os.W_OK) else "/dev/fuse cannot be opened",
    "git": _program("git"),
    "namespaces": _namespaces,
    "redis": lambda: None if find_redis_server() else "no redis-server: run make setup",
    "memory file system": lambda: None if os.path.ismount("/dev/shm") else "/dev/shm is no file system of its own",
    "subordinate ids": _program("newuidmap"),
    "tun": lambda: None if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "/dev/net/tun cannot be opened",
    "prometheus": lambda: _install("prometheus") or _program("promtool")(),
    "root": lambda: None if os.geteuid() == 0 else "not root",
}
