"""A sandbox with network reaches public addresses, but not this machine and private ranges; without network it reaches nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tarfile import TarInfo

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node import doctor
from session_agent.node.request import parse_create
from session_agent.node.settings import NodeSettings
from tests.node.harness import ENTRY, Node, NodeClient, ask, run
from tests.node.ociimages import Member, directory, file, oci_layout, symlink, tar
from tests.node.test_unprivileged import USER, python_or_skip
from tests.support.requires import requires
from tests.support.until import until

pytestmark = [
    requires("namespaces", "root"),
    pytest.mark.skipif(not all(map(shutil.which, ("slirp4netns", "ip", "nsenter"))), reason="needs slirp4netns, ip and nsenter"),
]
OUTSIDE, PRIVATE, METADATA, MACHINE = "203.0.113.9", "10.9.9.9", "169.254.169.254", "192.0.2.1"
AZURE = "168.63.129.16"
SERVE = "import socket, time\ns = socket.create_server(('0.0.0.0', 8080))\nwhile True: c, _ = s.accept(); c.send(b'hi'); c.close()"
TRY = """
import json, socket, sys
said = {}
for target in sys.argv[1:]:
    for device in ("", "tap0"):
        s = socket.socket(); s.settimeout(3)
        try:
            if device: s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            s.connect((target, 8080)); said[target + device] = s.recv(2).decode()
        except OSError as error:
            said[target + device] = type(error).__name__ + str(error.errno)
print(json.dumps(said))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machine() -> Iterator[str]:
    """A network namespace that stands for this machine, connected to one that stands for the internet; servers run in both."""
    here, there = f"hf-here-{os.getpid()}", f"hf-there-{os.getpid()}"
    servers = []
    try:
        for name in (here, there):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "hfv0", "netns", here, "type", "veth", "peer", "name", "hfv0", "netns", there)
        ip("-n", here, "addr", "add", f"{MACHINE}/24", "dev", "hfv0")
        ip("-n", there, "addr", "add", "192.0.2.2/24", "dev", "hfv0")
        for name in (here, there):
            ip("-n", name, "link", "set", "hfv0", "up")
        for address in (OUTSIDE, PRIVATE, METADATA, AZURE):
            ip("-n", there, "addr", "add", f"{address}/32", "dev", "lo")
        ip("-n", here, "route", "add", "default", "via", "192.0.2.2")
        servers += [subprocess.Popen(["nsenter", f"--net=/run/netns/{name}", sys.executable, "-c", SERVE]) for name in (here, there)]
        yield here
    finally:
        for server in servers:
            server.kill()
            server.wait()
        for name in (here, there):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def reached_from(machine: str, *targets: str) -> dict[str, str]:
    done = subprocess.run(
        ["nsenter", f"--net=/run/netns/{machine}", sys.executable, "-c", TRY, *targets], capture_output=True, check=True, timeout=60
    )
    results: dict[str, str] = json.loads(done.stdout)
    return results


def python_of(user: str, machine: str, folder: Path) -> str:
    """A command that is Python in the network of *machine*, run by root or by an ordinary user who may open /dev/net/tun."""
    command = sys.executable
    if user != "root":
        os.mknod(folder / "tun", 0o666 | stat.S_IFCHR, os.makedev(10, 200))
        (folder / "tun").chmod(0o666)
        identity = f"setpriv --reuid {USER} --regid {USER} --clear-groups {python_or_skip()}"
        command = f"unshare --mount sh -c 'mount --bind {folder}/tun /dev/net/tun && exec {identity} \"$@\"' sh"
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec nsenter --net=/run/netns/{machine} {command} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize("user", ["root", "an ordinary user"])
async def test_a_sandbox_with_network_reaches_only_public_addresses(machine: str, tmp_path: Path, user: str) -> None:
    everything = (OUTSIDE, PRIVATE, METADATA, AZURE, MACHINE)
    until(lambda: {reached_from(machine, *everything)[name] for name in everything} == {"hi"}, deadline_s=60, what="the servers to serve")
    data = tmp_path / "data" if user == "root" else Path(f"/tmp/holdfast-network-{os.getpid()}")
    data.mkdir(mode=0o700)
    if user != "root":
        os.chown(data, USER, USER)
    node = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY, "PYTHONDONTWRITEBYTECODE": "1"}, python=python_of(user, machine, tmp_path))
    node.start()
    try:
        client = await node.client()
        box = await client.create("open", network=True)
        done = await run(box["endpoint"], "/usr/bin/python3", "-c", TRY, *everything, "10.0.2.2", "127.0.0.1")
        results = json.loads(done["out"])
        assert {target for target, result in results.items() if result == "hi"} == {OUTSIDE, f"{OUTSIDE}tap0"}, results
        assert (await run(box["endpoint"], "cat", "/etc/resolv.conf"))["out"] == "nameserver 10.0.2.3\n"
        plain = await client.create("closed")
        done = await run(plain["endpoint"], "/usr/bin/python3", "-c", TRY, *everything, "10.0.2.2")
        assert "hi" not in json.loads(done["out"]).values()
        helpers = Path(f"/proc/{node.pid}/task/{node.pid}/children")
        assert "slirp4netns" in _names(helpers)
        await client.call("delete", sandbox_id="open")
        assert "slirp4netns" not in _names(helpers)
    finally:
        node.close_clients()
        node.end()
        node.log.unlink(missing_ok=True)
        shutil.rmtree(data)


def _names(children: Path) -> list[str]:
    names = []
    for pid in children.read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            names.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return names


ETC: dict[str, Sequence[Member]] = {
    "a link to the file of systemd": [directory("etc"), symlink("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf")],
    "a link to outside": [directory("etc"), symlink("etc/resolv.conf", "../" * 12 + "tmp/VICTIM")],
    "a directory": [directory("etc"), directory("etc/resolv.conf")],
    "not writable": [directory("etc", 0o555), file("etc/resolv.conf", "nameserver 192.0.2.9\n", 0o444)],
    "missing": [directory("etc")],
    "in no directory": [file("only", "")],
    "below a link": [symlink("etc", "../" * 12 + "tmp")],
    "below a file": [file("etc", "")],
}


@pytest.mark.parametrize("etc", ETC)
async def test_resolv_conf_is_written_whatever_the_image_contains(client: NodeClient, tmp_path: Path, etc: str) -> None:
    victim = Path(f"/tmp/holdfast-resolver-{os.getpid()}")
    members = [symlink(member.name, member.linkname.replace("VICTIM", victim.name)) if isinstance(member, TarInfo) and member.issym()
               else member for member in ETC[etc]]  # fmt: skip
    for path, text in ((victim, "untouched"), (Path("/tmp/resolv.conf"), None)):
        assert not path.exists()
        if text:
            path.write_text(text)
    try:
        await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [tar(members)])), name="resolver")
        for name in ("made-cold", "from-a-spare"):
            box = await client.create(name, image="resolver", network=True)
            assert await ask(box["endpoint"], "read", path="/etc/resolv.conf") == "nameserver 10.0.2.3\n"
        assert victim.read_text() == "untouched"
        assert not Path("/tmp/resolv.conf").exists()
    finally:
        victim.unlink()


def test_the_error_for_a_missing_helper_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HoldfastError) as refused:
        parse_create({"network": True}, 100)
    assert refused.value.code == "unsupported"
    assert "install the package slirp4netns" in refused.value.hint


def test_the_error_for_a_device_that_only_root_may_open_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/dev/net/tun")
    with pytest.raises(HoldfastError) as refused:
        parse_create({"network": True}, 100)
    assert refused.value.code == "unsupported"
    assert "/dev/net/tun cannot be opened" in refused.value.message
    assert "chmod 666 /dev/net/tun" in refused.value.hint
    assert [check.fix for check in doctor.run(NodeSettings("/tmp/x", "/tmp/x/s")) if check.name == "slirp4netns" and not check.ok]


async def test_shared_mounts_of_the_machine_stay_mounted(client: NodeClient, tmp_path: Path) -> None:
    """The network helper detaches the file tree it started in; through shared mounts, this would unmount those of other processes."""
    outer, inner = tmp_path / "shared", tmp_path / "shared/child"
    mounted: list[Path] = []
    try:
        for place in (outer, inner):
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "test", str(place)], check=True)
            mounted.append(place)
            subprocess.run(["mount", "--make-shared", str(place)], check=True)
        await client.create("beside-mounts", network=True)
        await client.call("delete", sandbox_id="beside-mounts")
        assert os.path.ismount(inner)
    finally:
        for place in reversed(mounted):
            subprocess.run(["umount", str(place)], check=False, capture_output=True)


PACKETS = """
import errno, json, socket, struct, sys
machine, hop = sys.argv[1:3]
said = {}
def attempt(name, step):
    try:
        step()
        said[name] = "done"
    except OSError as error:
        said[name] = errno.errorcode[error.errno]
def packet(target):
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 1, 0, 64, 17, 0, bytes(4), socket.inet_aton(target))
    return header + struct.pack("!HHHH", 9, 8080, 8, 0)
def included():
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    raw.setsockopt(socket.IPPROTO_IP, 3, 1)
    raw.sendto(packet(machine), (hop, 0))
def protocol():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).sendto(packet(machine), (hop, 0))
attempt("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
attempt("packet socket of old", lambda: socket.socket(socket.AF_INET, 10, 0x300))
attempt("header included", included)
attempt("protocol raw", protocol)
attempt("ping socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("by the route", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP).sendto(b"x" * 8, (machine, 0)))
print(json.dumps(said))
"""


async def test_hand_made_packets_take_no_other_routes(client: NodeClient) -> None:
    """The kernel routes a packet with the sender's own header by the address passed beside it, so blackhole routes do not apply."""
    box = await client.create("hand-made", network=True)
    results = json.loads((await run(box["endpoint"], "python3", "-c", PACKETS, PRIVATE, "8.8.8.8"))["out"])
    assert results == {
        "packet socket": "EPERM", "packet socket of old": "EPERM", "header included": "EPERM", "protocol raw": "EPERM",
        "ping socket": "done", "by the route": "EINVAL",
    }  # fmt: skip
    alone = await client.create("alone")
    results = json.loads((await run(alone["endpoint"], "python3", "-c", PACKETS, PRIVATE, "8.8.8.8"))["out"])
    assert (results["packet socket"], results["packet socket of old"], results["ping socket"]) == ("EPERM", "EPERM", "done")
    assert {results["header included"], results["protocol raw"], results["by the route"]} == {"ENETUNREACH"}
