"""The intended differences: a case's name and the reason why a sandbox behaves differently from docker.

A case listed here must differ; one that no longer does fails, so that this list stays true. Keep it short.
"""

from __future__ import annotations

_NAMESPACE = "a sandbox has a user namespace of its own, docker's default container has none"
_WORKSPACE = "commands start in /workspace where neither the image nor the caller names a directory"
_NODES = "the kernel makes no device nodes in a user namespace; the node makes those of /dev"
_AGENT = "process 1 is the agent, which nothing inside can read"
_DISKS = "the machine's disks and the kernel's memory are not shown"
_NETLINK = "netlink is for routes and socket statistics; shadow-utils and PAM go on without the audit family"
_PACKETS = "packet sockets go around the routes of a sandbox's network, and their rings take memory that no control group counts"

INTENDED: dict[str, str] = {
    "users/uid-map": _NAMESPACE,
    "processes/working-directory": _WORKSPACE,
    "processes/working-directory-of-a-user": _WORKSPACE,
    "files/no-files-besides-the-image": _WORKSPACE,
    "files/mknod-null": _NODES,
    "files/mknod-zero-reads": _NODES,
    "files/name-to-handle": "an overlay in a user namespace has no file handles",
    "files/replace-etc-hosts-by-rename": "/etc/hosts is a file of the sandbox, not a mount, and can be replaced",
    "debuggers/proc-environ-of-pid-1": _AGENT,
    "views/proc-1-readable": _AGENT,
    "networking/netlink-families": _NETLINK,
    "privileges/audit-write": _NETLINK,
    "networking/socket-families": _PACKETS,
    "networking/packet-socket": _PACKETS,
    "networking/tcpdump": _PACKETS,
    "views/sys-block": _DISKS,
    "views/proc-partitions": _DISKS,
    "views/proc-slabinfo": _DISKS,
    "processes/oom-score-adj": "where memory runs out, the kernel ends commands before the agent",
    "terminals/term-variable": "TERM is xterm-256color, docker's is xterm",
    "views/dockerenv": "a sandbox is not docker's: programs that look for /.dockerenv ask for docker itself",
}
