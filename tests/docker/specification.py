"""docker's default OCI specification, as `docker run --network none --init --memory … --cpus … IMAGE` creates it.

Owns the capabilities, mounts, masks, sysctls, resource limits and the seccomp section. Facts from moby (daemon/pkg/oci/defaults.go,
daemon/oci_linux.go), from moby/profiles (seccomp/default.json, 2026) and from docker's page "Seccomp security profiles for Docker".
Starts nothing; `reference.py` gives this to runc.
"""

from __future__ import annotations

import re
import resource
from functools import cache
from pathlib import Path
from typing import Any


def _words(text: str) -> list[str]:
    return text.split()


CAPABILITIES = [
    f"CAP_{name}"
    for name in _words(
        "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE"
    )
]

# The profile's refusals without further capabilities; all other calls of the kernel's table are allowed.
_REFUSED = frozenset(
    _words(
        """
    _sysctl acct add_key afs_syscall bpf clock_settime clone clone3 create_module delete_module fanotify_init finit_module fsconfig
    fsmount fsopen fspick get_kernel_syms get_mempolicy getpmsg init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl
    kcmp kexec_file_load kexec_load keyctl lookup_dcookie lsm_get_self_attr lsm_list_modules lsm_set_self_attr mbind migrate_pages mount
    mount_setattr move_mount move_pages nfsservctl open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root
    process_madvise putpmsg query_module quotactl quotactl_fd reboot request_key security set_mempolicy set_mempolicy_home_node
    setdomainname sethostname setns settimeofday socket stime swapoff swapon sysfs syslog tuxcall umount umount2 unshare uselib
    userfaultfd ustat vhangup vserver
    """
    )
)
_NAMESPACES = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_AF_ALG, _AF_VSOCK = 38, 40
_EPERM, _ENOSYS = 1, 38

_MASKED = _words(
    """
/proc/acpi /proc/asound /proc/interrupts /proc/kcore /proc/keys /proc/latency_stats /proc/sched_debug /proc/scsi /proc/timer_list
/proc/timer_stats /sys/devices/virtual/powercap /sys/firmware
"""
)
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]

# docker gives a container a cgroup namespace only with version 2 of cgroups, and limits swap where the kernel counts it.
_CGROUPS_V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
_SWAP_IS_COUNTED = _CGROUPS_V2 or Path("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists()

# From docker's unit (LimitNPROC and LimitCORE infinity) and, for files, what systemd gives a service by default.
UNLIMITED = (1 << 64) - 1
_RLIMITS = (("CORE", UNLIMITED, UNLIMITED), ("NPROC", UNLIMITED, UNLIMITED), ("NOFILE", 1024, 524288))
_SYS_RESOURCE = 1 << 24


@cache
def rlimits() -> list[dict[str, Any]]:
    """docker's resource limits, as far as this process may set them: without CAP_SYS_RESOURCE at most its own limits."""
    status = Path("/proc/self/status").read_text()
    unbound = int(status.partition("CapEff:")[2].split()[0], 16) & _SYS_RESOURCE
    found = []
    for name, soft, hard in _RLIMITS:
        own_limit = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
        most = UNLIMITED if unbound or own_limit == resource.RLIM_INFINITY else own_limit
        found.append({"type": f"RLIMIT_{name}", "soft": min(soft, most), "hard": min(hard, most)})
    return found


def process(
    arguments: list[str], uid: int, gid: int, groups: list[int], cwd: str, environment: list[str], *, terminal: bool
) -> dict[str, Any]:
    """The `process` section of a container or of an exec in it."""
    return {
        "terminal": terminal,
        "user": {"uid": uid, "gid": gid, "additionalGids": groups},
        "args": arguments,
        "env": environment,
        "cwd": cwd,
        "capabilities": {"bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES},
        "rlimits": rlimits(),
        "noNewPrivileges": False,
    }


def container(
    *,
    root: str,
    hostname: str,
    first: dict[str, Any],
    files: dict[str, str],
    cgroup: str,
    cpu: float,
    memory: int,
    pids: int,
    headers: Path,
) -> dict[str, Any]:
    """The whole specification; `files` are bind mounts (docker's hosts, hostname, resolv.conf), from path inside to path outside."""
    binds = [
        {"destination": inside, "type": "bind", "source": outside, "options": ["rbind", "rprivate"]} for inside, outside in files.items()
    ]
    return {
        "ociVersion": "1.0.2",
        "process": first,
        "root": {"path": root, "readonly": False},
        "hostname": hostname,
        "mounts": [*_mounts(), *binds],
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": kind} for kind in ("mount", "network", "uts", "pid", "ipc", *(["cgroup"] if _CGROUPS_V2 else []))],
            "maskedPaths": _MASKED,
            "readonlyPaths": _READ_ONLY,
            "sysctl": {"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"},
            "resources": {
                "devices": _device_rules(),
                "memory": {"limit": memory} | ({"swap": memory * 2} if _SWAP_IS_COUNTED else {}),
                "cpu": {"quota": int(cpu * 100_000), "period": 100_000},
                "pids": {"limit": pids},
            },
            "seccomp": seccomp(headers),
        },
    }


def _mounts() -> list[dict[str, Any]]:
    quiet = ["nosuid", "noexec", "nodev"]
    rows: list[tuple[str, str, str, list[str]]] = [
        ("/proc", "proc", "proc", quiet),
        ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        ("/sys", "sysfs", "sysfs", [*quiet, "ro"]),
        ("/sys/fs/cgroup", "cgroup", "cgroup", ["ro", *quiet]),
        ("/dev/mqueue", "mqueue", "mqueue", quiet),
        ("/dev/shm", "tmpfs", "shm", [*quiet, "mode=1777", "size=67108864"]),
    ]
    return [{"destination": where, "type": kind, "source": source, "options": options} for where, kind, source, options in rows]


def _device_rules() -> list[dict[str, Any]]:
    allowed = [(1, 5), (1, 3), (1, 9), (1, 8), (5, 0), (5, 1)]
    rules: list[dict[str, Any]] = [{"allow": False, "access": "rwm"}]
    return rules + [{"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"} for major, minor in allowed]


@cache
def seccomp(headers: Path) -> dict[str, Any]:
    """The default profile for this processor. `headers`: a kernel header (unistd_64.h, unistd.h) that names all calls."""
    names = set(re.findall(r"#define __NR(?:3264)?_(\w+)", headers.read_text()))

    def allowed(calls: list[str], *arguments: tuple[int, int, int | None, str]) -> dict[str, Any]:
        conditions = [
            {"index": index, "value": value, "op": f"SCMP_CMP_{op}"} | ({} if two is None else {"valueTwo": two})
            for index, value, two, op in arguments
        ]
        return {"names": calls, "action": "SCMP_ACT_ALLOW", "args": conditions}

    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _EPERM,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            allowed(sorted(names - _REFUSED)),
            allowed(["socket"], (0, _AF_ALG, None, "LT")),
            allowed(["socket"], (0, _AF_ALG + 1, None, "EQ")),
            allowed(["socket"], (0, _AF_VSOCK, None, "GT")),
            *[allowed(["personality"], (0, value, None, "EQ")) for value in _PERSONALITIES],
            allowed(["clone"], (0, _NAMESPACES, 0, "MASKED_EQ")),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        ],
    }
