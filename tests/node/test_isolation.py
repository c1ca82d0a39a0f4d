"""Attempts to break out of a `host` sandbox, everything on the list of reliability.md, are refused."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

from session_agent.node.kernel.namespaces import HIGH_IDS, LOW_IDS
from session_agent.node.settings import ID_BASE, NodeSettings
from tests.node.harness import REPOSITORY, Node, NodeClient, ask, run
from tests.node.harness import node as running_node
from tests.node.leftovers import first_process
from tests.support.requires import requires

pytestmark = requires("namespaces")
PROBE = (REPOSITORY / "tests/node/probe.py").read_text()


@pytest.fixture
def marker() -> object:
    """A file that only the machine's owner should see, in places where people keep such files."""
    name = f"holdfast-probe-marker-{os.getpid()}"
    places = [Path.home(), Path("/tmp"), Path("/root"), Path("/home")]
    made = []
    for place in places:
        try:
            (place / name).write_text("private")
            made.append(place / name)
        except OSError:
            continue
    assert made
    yield name
    for path in made:
        path.unlink(missing_ok=True)


async def test_every_attempt_to_get_out_is_refused(client: NodeClient, marker: str) -> None:
    box = await client.create("probe")
    done = await run(box["endpoint"], "/usr/bin/python3", "-", marker, text=PROBE)
    assert done["code"] == 0, done["err"]
    results = json.loads(done["out"])
    assert len(results) >= 70
    assert {name: result for name, result in results.items() if result is not None} == {}


async def test_the_probe_succeeds_outside_of_a_sandbox(tmp_path: Path, marker: str) -> None:
    """If the same attempts found nothing outside, finding nothing inside would prove nothing."""
    done = subprocess.run(["/usr/bin/python3", "-", marker], input=_harmless(), capture_output=True, check=True)
    results = json.loads(done.stdout)
    found = {name for name, result in results.items() if result is not None}
    assert {"host files", "other processes", "devices", "sys", "capabilities"} <= found


def _harmless() -> bytes:
    """The probe without what would harm the machine it runs on."""
    keep = ("host files", "other processes", "devices", "sys", "capabilities", "interfaces", "mount table")
    return PROBE.replace("ATTEMPTS.items()", f"((n, a) for n, a in ATTEMPTS.items() if n in {keep!r})").encode()


async def test_the_toolchain_of_the_host_image_works(client: NodeClient) -> None:
    box = await client.create("tools")
    script = "bash --version && ls / && python3 -c 'import ssl, sqlite3' && git --version && id -un"
    done = await run(box["endpoint"], "bash", "-ec", script)
    assert done["code"] == 0, done["err"]
    assert done["out"].splitlines()[-1:] == ["root"]


async def test_the_command_python_exists(client: NodeClient) -> None:
    box = await client.create("named")
    for argv in (("python", "-c", "print(6 * 7)"), ("bash", "-lc", "python -c 'print(6 * 7)'")):
        assert (await run(box["endpoint"], *argv))["out"] == "42\n"


async def test_a_sandbox_has_its_own_name_files_and_devices(client: NodeClient) -> None:
    box = await client.create("own-name", env={"WHO": "me"})
    script = (
        "hostname; cat /etc/hostname; pwd; echo $WHO; stat -c %a /tmp /workspace /dev/shm; "
        "touch /workspace/a /tmp/b /root/c /etc/d && echo writable; echo x > /dev/null && echo null; "
        'python3 -c \'import pty; pty.spawn(["echo", "tty"])\'; '
        'python3 -c \'import socket; s = socket.create_server(("127.0.0.1", 0)); '
        'socket.create_connection(s.getsockname()); print("loopback")\'; '
        "getent hosts own-name | cut -d' ' -f1"
    )
    done = await run(box["endpoint"], "bash", "-c", script)
    assert done["err"] == ""
    assert done["out"].split() == [
        "own-name", "own-name", "/workspace", "me", "1777", "777", "1777", "writable", "null", "tty", "loopback",
        "127.0.0.1",
    ]  # fmt: skip


async def test_mounts_of_the_machine_are_read_only(client: NodeClient) -> None:
    box = await client.create("mounts")
    rows = [row.split() for row in (await ask(box["endpoint"], "read", path="/proc/self/mountinfo")).splitlines()]
    mounts = {row[4]: set(row[5].split(",")) for row in rows}
    assert {"ro", "nosuid", "nodev"} <= mounts["/usr"]
    assert all("ro" in mounts[path] for path in ("/sys", "/proc/sys", "/proc/irq", "/proc/fs"))
    assert "nodev" in mounts["/"]
    assert "nosuid" not in mounts["/"], "programs with the set-user-ID bit work, as in docker"
    assert all({"nosuid"} <= mounts[path] for path in ("/proc", "/sys", "/dev", "/dev/shm", "/dev/mqueue"))
    assert {"/proc/keys", "/proc/timer_list", "/sys/firmware"} <= set(mounts)


async def test_the_agent_keeps_only_the_capabilities_it_needs(client: NodeClient) -> None:
    box = await client.create("capabilities")
    rows = dict(line.split(":\t", 1) for line in (await ask(box["endpoint"], "read", path="/proc/self/status")).splitlines())
    assert int(rows["CapPrm"], 16) == int(rows["CapEff"], 16) == 1 << 31 | 0b11111011
    assert int(rows["CapBnd"], 16) == int(rows["CapInh"], 16) == int(rows["CapAmb"], 16) == 0
    assert rows["Seccomp"] == "2"
    assert len({*rows["Uid"].split()[:3], *rows["Gid"].split()[:3]}) == 1, "its real, effective and saved ids"
    if os.geteuid() == 0:
        assert int(rows["Uid"].split()[0]) == LOW_IDS + HIGH_IDS - 1, "an id that no command can have"
    assert (rows["Uid"].split()[3], rows["Gid"].split()[3]) == ("0", "0"), "its files belong to the sandbox's root"


async def test_commands_have_dockers_capabilities(client: NodeClient) -> None:
    box = await client.create("docker-like")
    done = await run(box["endpoint"], "cat", "/proc/self/status")
    rows = dict(line.split(":\t", 1) for line in done["out"].splitlines())
    assert {rows[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {"00000000a80425fb"}
    assert {rows[name] for name in ("CapInh", "CapAmb")} == {"0000000000000000"}
    assert (rows["NoNewPrivs"], rows["Seccomp"]) == ("0", "2")


@requires("root")
async def test_what_a_sandbox_makes_privileged_means_nothing_outside(shared: Node, client: NodeClient) -> None:
    """On the machine, set-user-ID programs and file capabilities belong to a user id that it does not use."""
    box = await client.create("privileged-files")
    script = "cp /bin/cat /tmp/setuid && chmod 6755 /tmp/setuid && cp /bin/cat /tmp/capable && setcap cap_chown,cap_setuid+ep /tmp/capable"
    done = await run(box["endpoint"], "bash", "-ec", script.replace("setcap", "/sbin/setcap" if Path("/sbin/setcap").exists() else "true"))
    assert done["code"] == 0, done["err"]
    setter = (
        "import os, struct; os.setxattr('/tmp/capable', 'security.capability', struct.pack('<IIIII', 0x02000001, 0x81, 0, 0, 0)); "
        "print(os.getxattr('/tmp/capable', 'security.capability').hex())"
    )
    inside = await run(box["endpoint"], "python3", "-c", setter)
    assert inside["code"] == 0, inside["err"]
    pid = first_process(shared.data, "privileged-files")
    seen = Path(f"/proc/{pid}/root/tmp")
    assert (seen / "setuid").stat().st_uid >= ID_BASE
    raw = os.getxattr(seen / "capable", "security.capability")
    revision, root_id = struct.unpack_from("<I", raw)[0] >> 24, struct.unpack_from("<I", raw, 20)[0]
    assert revision == 3
    assert root_id >= ID_BASE, "they apply only where that id is root"


@requires("root")
async def test_the_store_and_the_sandboxes_are_closed_to_other_users(shared: Node, client: NodeClient) -> None:
    await client.create("closed")
    for path in (shared.data / "images", shared.data / "sandboxes", Path(NodeSettings(str(shared.data), "").run_dir)):
        assert path.stat().st_mode & 0o077 == 0, path


async def test_no_descriptor_of_the_agent_leads_out_of_the_sandbox(client: NodeClient) -> None:
    box = await client.create("fds")
    config = await ask(box["endpoint"], "config")
    descriptors = await ask(box["endpoint"], "fds")
    assert str(config["command_namespace_fd"]) in descriptors
    for name, target in descriptors.items():
        allowed = target.startswith(("socket:", "pipe:", "anon_inode:", "/dev/null", "/proc/")) or int(name) in {
            config["command_namespace_fd"],
            *config.get("cgroup_join_fds", ()),
            *config.get("cgroup_events_fds", ()),
            *config.get("cgroup_thread_fds", ()),
            *config.get("cgroup_pids_fds", ()),
            *config.get("cgroup_rescue_fds", ()),
        }
        assert allowed, f"descriptor {name} is {target}"


async def test_no_path_of_the_machine_is_visible(shared: Node, client: NodeClient) -> None:
    box = await client.create("somewhere")
    seen = (await run(box["endpoint"], "sh", "-c", "cat /proc/self/cgroup /proc/1/cgroup /proc/self/mountinfo /proc/mounts; env"))["out"]
    for word in (str(shared.data), "holdfast-", *filter(None, Path("/proc/self/cgroup").read_text().replace("\n", "/").split("/")[1:2])):
        assert word not in seen, word
    assert {row.split(":", 2)[2] for row in seen.splitlines() if row.count(":") == 2 and row[0].isdigit() and " " not in row} <= {
        "/",
        "/..",
        "/../agent",
    }
    assert (await run(box["endpoint"], "cat", "/proc/diskstats", "/proc/partitions"))["out"] == ""


EXHAUST = """
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
class Value(ctypes.Union): _fields_ = [("number", ctypes.c_int), ("pointer", ctypes.c_void_p)]
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, Value]
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
most = int(sys.argv[1])
got = [0, 0, 0]
queues, small = ctypes.CDLL("librt.so.1"), (ctypes.c_long * 8)(0, 1, 8)  # one message of eight bytes
def queue():
    name = f"/holdfast-{os.getpid()}-{got[2]}".encode()
    opened = queues.mq_open(name, 66, 384, ctypes.byref(small)) >= 0
    queues.mq_unlink(name)
    return opened
while got[2] < most and queue(): got[2] += 1
while got[0] < most and libc.inotify_init() >= 0: got[0] += 1
while got[1] < most and libc.sigqueue(os.getpid(), 40, Value(number=1)) == 0: got[1] += 1
print(json.dumps(got), flush=True)
sys.stdin.read()
"""


@requires("root")
async def test_one_sandbox_cannot_exhaust_what_the_kernel_counts_per_user(client: NodeClient) -> None:
    """Inotify instances (128 by default), queued signals and message queues stay available to other sandboxes and to the machine."""
    greedy, neighbour = await client.create("greedy"), await client.create("neighbour")
    background = f"python3 -c '{EXHAUST}' 200000 </tmp/hold >/tmp/got 2>/dev/null &"
    hold = "exec 3>/tmp/hold; setsid sleep 60 >/dev/null 2>&1 &"
    script = f"mkfifo /tmp/hold; {background} {hold} until [ -s /tmp/got ]; do :; done; cat /tmp/got"
    used = json.loads((await run(greedy["endpoint"], "bash", "-c", script))["out"])
    assert min(used) > 10, "it got its own allowance"
    assert json.loads((await run(neighbour["endpoint"], "python3", "-c", EXHAUST, "8"))["out"]) == [8, 8, 8]
    on_machine = subprocess.run(["/usr/bin/python3", "-c", EXHAUST, "8"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert json.loads(on_machine.stdout) == [8, 8, 8]


TERMINALS = """
import os
made = []
try:
    while True:
        made.append(os.open("/dev/ptmx", os.O_RDWR))
except OSError:
    print(len(made))
"""


async def test_one_sandbox_cannot_exhaust_the_terminals(client: NodeClient) -> None:
    """The kernel allows 3072 terminals for all sandboxes together."""
    box = await client.create("terminals")
    done = await run(box["endpoint"], "python3", "-c", TERMINALS)
    assert 64 <= int(done["out"]) <= 300, done["err"]


async def test_sandboxes_do_not_see_each_others_secrets(client: NodeClient) -> None:
    """A fork of the zygote must not find in its memory what the zygote handled for another sandbox."""
    secret = b"hunter2-is-the-secret-of-the-first"
    control = b"what-the-second-was-told-itself-00"
    await client.create("first", token="5ec7e7" * 8, env={"SECRET": secret.decode()})
    second = await client.create("second", env={"SECRET": control.decode()})
    inverted = [bytes(byte ^ 0xFF for byte in word).hex() for word in (secret, b"5ec7e7" * 8, control)]
    of_first, token_of_first, own = await ask(second["endpoint"], "grep", words=inverted)
    assert own > 0
    assert (of_first, token_of_first) == (1, 1)  # the search's own copies


LOCK = """
import fcntl, json, sys
taken = {}
for path in sys.argv[1:]:
    file = open(path, "rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken[path] = True
    except OSError:
        taken[path] = False
print(json.dumps(taken))
"""


@requires("root")
async def test_device_nodes_of_a_sandbox_are_its_own(client: NodeClient) -> None:
    """A lock on the machine's /dev/null would be seen in every sandbox, and a sandbox's lock by the machine."""
    paths = ["/dev/null", "/dev/zero"]
    with contextlib.ExitStack() as held:
        for path in paths:
            fcntl.flock(held.enter_context(open(path, "rb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        box = await client.create("own-devices")
        done = await run(box["endpoint"], "python3", "-c", LOCK, "/dev/null", "/dev/zero", "/proc/interrupts")
        assert done["code"] == 0, done["err"]
        assert json.loads(done["out"]) == {"/dev/null": True, "/dev/zero": True, "/proc/interrupts": True}
    script = "stat -c '%n %t %T %U %a' /dev/null /dev/tty; chmod 600 /dev/null && stat -c %a /dev/null; mkfifo /dev/mine && ls /dev"
    done = await run(box["endpoint"], "sh", "-c", script)
    assert done["out"].splitlines()[:3] == ["/dev/null 1 3 root 666", "/dev/tty 5 0 root 666", "600"]
    assert {"mine", "fd", "pts", "shm", "mqueue", "urandom"} <= set(done["out"].split())
    assert os.stat("/dev/null").st_mode & 0o777 == 0o666


async def test_locks_on_the_machines_programs_are_the_sandboxs_own(client: NodeClient) -> None:
    """A script that locks itself, as `flock "$0"` does, must not wait for one in another sandbox, nor hold up the machine."""
    path = os.path.realpath("/usr/bin/env")
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in ("locks", "locks-too"):
            box = await client.create(name)
            done = await run(box["endpoint"], "python3", "-c", LOCK, path)
            assert json.loads(done["out"]) == {path: True}
            rows = [row.split() for row in (await ask(box["endpoint"], "read", path="/proc/self/mountinfo")).splitlines()]
            assert "ro" in next(row[5] for row in rows if row[4] == "/usr").split(",")


@requires("root")
async def test_two_nodes_of_a_machine_give_different_ids(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with running_node(one, HOLDFAST_NODE_SPARES="0") as first, running_node(two, HOLDFAST_NODE_SPARES="0") as second:
        bases = set()
        for made, name in ((first, "of-first"), (second, "of-second")):
            await (await made.client()).create(name)
            rows = Path(f"/proc/{first_process(made.data, name)}/uid_map").read_text().splitlines()
            bases |= {int(row.split()[1]) for row in rows}
        assert len(bases) == 4, "two ranges each"


async def test_the_kernel_ends_a_sandbox_before_its_node(shared: Node, client: NodeClient) -> None:
    box = await client.create("scored")
    own = int(Path(f"/proc/{shared.pid}/oom_score_adj").read_text())
    assert int(await ask(box["endpoint"], "read", path="/proc/self/oom_score_adj")) == (0 if own < 0 else max(own, 200))
    done = await run(box["endpoint"], "sh", "-c", f"echo {own - 1} > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj")
    assert int(done["out"]) >= 0
