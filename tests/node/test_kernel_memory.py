"""What a sandbox's sockets and its network helper hold of the kernel's memory is limited, or ends the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from session_agent.node.kernel.network import missing_requirement
from session_agent.node.socket_memory import allowed
from tests.node.harness import DEADLINE_S, Node, NodeClient, run
from tests.node.leftovers import first_process
from tests.support.requires import requires

pytestmark = requires("namespaces", "root", "cgroups")
MEMORY = 128 << 20
MOST = 300 << 20

FILL = """
import os, resource, socket, struct, sys, time
kind, most, kept, total = sys.argv[1], int(sys.argv[2]), [], 0
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
server = socket.create_server(("127.0.0.1", 0))
def udp():
    sink, source, sent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0
    kept.append(sink)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sink.bind(("127.0.0.1", 0))
    for _ in range(3):
        sent += source.sendto(bytes(60000), sink.getsockname())
    return sent
def tcp():
    source = socket.create_connection(server.getsockname())
    kept.extend((source, server.accept()[0]))
    source.setblocking(False)
    sent = 0
    try:
        while True:
            sent += source.send(bytes(65536))
    except BlockingIOError:
        return sent
def raw():
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)
    kept.append(sock)
    return sum(sock.sendto(bytes(60000), ("127.0.0.1", 0)) for _ in range(2))
def netlink():
    sock, sent = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0), 0
    kept.append(sock)
    for number in range(200):  # each answer waits until it is read
        sent += 20 * sock.send(struct.pack("=IHHII16x", 32, 18, 1, number, 0))
    return sent
try:
    until = time.monotonic() + 20
    while total < most and time.monotonic() < until:
        total += globals()[kind]()
except OSError:
    pass
if os.fork():
    os._exit(0)
os.setsid()
for number in (0, 1, 2):
    os.close(number)
time.sleep(600)
"""


def queued(pid: int, *names: str) -> int:
    """Bytes in the queues of the sockets in the network namespace of the process."""
    total = 0
    for name in names:
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            total += sum(int(word, 16) for word in line.split()[4].split(":"))
    return total


@pytest.mark.parametrize("kind", ["udp", "tcp", "netlink", "raw"])
async def test_what_sockets_hold_is_limited(shared: Node, client: NodeClient, kind: str) -> None:
    """By the kernel, or the sandbox ends. No control group counts what netlink and raw sockets hold, a hundred times what they cost."""
    box = await client.create("sockets", memory=MEMORY)
    agent = first_process(shared.data, "sockets")
    filling = asyncio.ensure_future(run(box["endpoint"], "/usr/bin/python3", "-c", FILL, kind, str(MOST)))
    async with asyncio.timeout(DEADLINE_S):
        while not filling.done() or _held(agent) > allowed(MEMORY):
            (found,) = (await client.call("list"))["sandboxes"]
            if found["state"] == "failed":
                assert (found["reason"], found["fault"]) == ("oom", "workload")
                assert kind != "udp", "it is limited by the kernel"
                break
            await asyncio.wait([filling], timeout=0.1)
    with contextlib.suppress(OSError, ValueError, TypeError):
        await filling


def _held(pid: int) -> int:
    with contextlib.suppress(OSError):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/netlink").read_text().splitlines()[1:]]
        return queued(pid, "udp", "tcp", "raw") + sum(int(row[4]) for row in rows)
    return 0


async def test_the_network_helper_is_in_the_groups_of_its_sandbox(shared: Node, client: NodeClient) -> None:
    if missing_requirement()[0]:
        pytest.skip(missing_requirement()[0])
    await client.create("helped", network=True)
    agent = first_process(shared.data, "helped")
    children = Path(f"/proc/{shared.pid}/task/{shared.pid}/children").read_text().split()
    helper = next(pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "slirp4netns")
    rows = [Path(f"/proc/{pid}/cgroup").read_text().splitlines() for pid in (agent, helper)]
    wanted = [row for row in rows[0] if "holdfast-" in row and "cpuset" not in row and "cpuacct" not in row]
    assert wanted
    assert set(wanted) <= set(rows[1])


COUNTED = """
import ctypes, fcntl, os, resource, socket, sys, tempfile
kind, most, kept, total = sys.argv[1], int(sys.argv[2]), [], 0
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
libc = ctypes.CDLL(None)
def fill(write, size):
    sent = 0
    try:
        while sent < most:
            sent += write(bytes(size))
    except BlockingIOError:
        return sent
    return sent
def unix():
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    kept.extend(pair)
    pair[0].setblocking(False)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    return fill(pair[0].send, 60000)
def pipes():
    ends = os.pipe2(os.O_NONBLOCK)
    kept.append(ends)
    return fill(lambda data: os.write(ends[1], data), 65536)
def inotify():
    # 8000 files with long names, created and removed: two events each, in every queue
    folder = tempfile.mkdtemp()
    for _ in range(200):
        queue = libc.inotify_init1(os.O_NONBLOCK)
        if queue < 0 or libc.inotify_add_watch(queue, folder.encode(), 0x300) < 0:
            break
        kept.append(queue)
    for number in range(8000):
        path = os.path.join(folder, f"{number:05}" + "x" * 240)
        open(path, "w").close()
        os.unlink(path)
    return len(kept) * 8000 * 2 * 270
def files():
    file = os.memfd_create("x")
    kept.append(file)
    return os.write(file, bytes(1 << 20))
try:
    while total < most and (kind != "inotify" or not total):
        more = globals()[kind]()
        if more <= 0:
            break
        total += more
except OSError:
    pass
print(total, flush=True)
"""


@pytest.mark.parametrize("kind", ["unix", "pipes", "inotify", "files"])
async def test_what_the_kernel_counts_ends_or_stops_its_user(client: NodeClient, kind: str) -> None:
    """What a command makes the kernel keep is part of its sandbox's memory: it gets less than it asks for, or is ended."""
    box = await client.create("counted", memory=MEMORY)
    async with asyncio.timeout(DEADLINE_S):
        done = await run(box["endpoint"], "/usr/bin/python3", "-c", COUNTED, kind, str(MOST))
        assert done["code"] == -9 or int(done["out"]) < MOST, done
        assert (await run(box["endpoint"], "echo", "alive"))["out"] == "alive\n"
