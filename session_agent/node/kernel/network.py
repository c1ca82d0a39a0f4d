"""The network of a sandbox that requested one: a slirp4netns process, which uses the machine's own sockets.

Owns that process, the list of addresses that no sandbox may reach through it (this machine, private, link-local and metadata ranges), and
the routes inside the sandbox that block them. A sandbox cannot change its routes, because it has no CAP_NET_ADMIN; a program that binds to
the device gets no answer to ARP for an address without a route. IPv4 only. Called by sandboxes.py; ``close_off`` by the zygote's child.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.node.descriptors import until_readable

PROGRAM = "slirp4netns"
RESOLVER = "10.0.2.3"
_DEVICE = "/dev/net/tun"
# The last is Azure's service for its machines, which has an address of the internet.
_RANGES = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16",
    "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
)  # fmt: skip
_READY_S = 10.0
# The helper leaves the machine's file tree and detaches mounts, which would also disappear from every namespace that shares its mounts.
_OWN_MOUNTS = ("unshare", "--mount", "--propagation", "slave", "--") if os.geteuid() == 0 else ()
_RTM_NEWROUTE, _RTN_BLACKHOLE = 24, 6
_REQUEST_ACK_CREATE_REPLACE = 0x001 | 0x004 | 0x400 | 0x100
_MAIN_TABLE, _BY_BOOT = 254, 3


@dataclass(slots=True)
class NetworkHelper:
    """A running helper. It ends when the other end of *alive* is closed, so also when the node is killed."""

    process: subprocess.Popen[bytes]
    alive: int

    def stop(self) -> None:
        os.close(self.alive)
        self.process.kill()
        self.process.wait()


def check_available() -> None:
    """Raises HoldfastError(unsupported) if the helper is not installed or cannot work."""
    problem, fix = missing_requirement()
    if problem:
        raise HoldfastError(
            "unsupported",
            f"sandboxes on this machine have no network except loopback: {problem}",
            hint=f"{fix} where the node runs, or leave network out",
        )


def missing_requirement() -> tuple[str, str]:
    """What is missing and what to do about it; both empty if nothing is missing."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed", f"install the package {PROGRAM}"
    if _OWN_MOUNTS and shutil.which(_OWN_MOUNTS[0]) is None:
        return f"{_OWN_MOUNTS[0]} is not installed", "install the package util-linux"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return f"{_DEVICE} cannot be opened by the node's user", f"load the module tun and let users open it (chmod 666 {_DEVICE})"
    return "", ""


async def start(pid: int) -> NetworkHelper:
    """Give the network namespace of *pid* a device, an address and a default route. Raises HoldfastError(runtime_unavailable)."""
    ready, ready_w = os.pipe2(os.O_CLOEXEC)
    ended, alive = os.pipe2(os.O_CLOEXEC)
    argv = [
        *_OWN_MOUNTS,
        PROGRAM, "--configure", "--disable-host-loopback", "--enable-sandbox", "--enable-seccomp", "--mtu=1500",
        f"--ready-fd={ready_w}", f"--exit-fd={ended}", str(pid), "tap0",
    ]  # fmt: skip
    try:
        process = subprocess.Popen(
            argv, pass_fds=[ready_w, ended], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        os.close(ready)
        os.close(alive)
        raise HoldfastError("runtime_unavailable", f"{PROGRAM} cannot be started: {error}") from error
    finally:
        os.close(ready_w)
        os.close(ended)
    helper = NetworkHelper(process, alive)
    try:
        with contextlib.suppress(TimeoutError):
            await until_readable(ready, _READY_S)
            if os.read(ready, 1) == b"1":
                return helper
        raise HoldfastError("runtime_unavailable", f"{PROGRAM} could not give the sandbox its network")
    except BaseException:
        helper.stop()
        raise
    finally:
        os.close(ready)


def out_of_reach() -> list[str]:
    """The ranges that a sandbox may not reach: private ranges, which the internet does not route, and every address of this machine."""
    return [*_RANGES, *own_addresses()]


def own_addresses() -> list[str]:
    """This machine's IPv4 addresses except loopback, as /32 ranges."""
    found: dict[str, None] = {}
    address = ""
    with open("/proc/net/fib_trie", encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[:1] == ["|--"]:
                address = words[1]
            elif words[:3] == ["/32", "host", "LOCAL"] and not address.startswith("127."):
                found[f"{address}/32"] = None
    return list(found)


def close_off(ranges: list[Any]) -> None:
    """Child: routes that end all traffic to *ranges*. Needs CAP_NET_ADMIN in this namespace."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as route:
        for number, text in enumerate(ranges, 1):
            network = ipaddress.IPv4Network(text)
            body = struct.pack("=BBBBBBBBI", socket.AF_INET, network.prefixlen, 0, 0, _MAIN_TABLE, _BY_BOOT, 0, _RTN_BLACKHOLE, 0)
            body += struct.pack("=HH4s", 8, 1, network.network_address.packed)
            route.send(struct.pack("=IHHII", 16 + len(body), _RTM_NEWROUTE, _REQUEST_ACK_CREATE_REPLACE, number, 0) + body)
            error = struct.unpack_from("=i", route.recv(4096), 16)[0]
            if error:
                raise OSError(-error, f"route {text}: {os.strerror(-error)}")
