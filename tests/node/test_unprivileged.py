"""The node run by an ordinary user: one id, no control groups, the same isolation."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from holdfast_server.redis import find_redis_server

from session_agent.node.kernel import hierarchies
from session_agent.node.kernel import syscalls as sys_
from tests.node.harness import BOMB, ENTRY, REPOSITORY, Node, ask, run
from tests.node.ociimages import directory, file, oci_layout, tar
from tests.node.test_port_sockets import connect_port, said, serve_inside
from tests.support.requires import requires

pytestmark = requires("namespaces", "root")
USER = 54321


def usable_python() -> str:
    """An interpreter that the user may execute and that can import what the node imports."""
    code = "import sys, session_agent.node.zygote.forking, tests.node.entry; assert sys.version_info >= (3, 11)"
    path = os.pathsep.join(part for part in sys.path if part)
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        try:
            done = subprocess.run(
                [python, "-B", "-c", code], cwd=REPOSITORY, env={"PYTHONPATH": path}, user=USER, group=USER,
                extra_groups=[], capture_output=True,
            )  # fmt: skip
        except PermissionError:
            continue
        if done.returncode == 0:
            return python
    return ""


def python_or_skip() -> str:
    python = usable_python()
    if not python:
        reason = f"no Python that user {USER} may run and that can import the node from {REPOSITORY}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return python


_AS_USER = """
set -e
prefix=$1 closed=$2 user=$3
shift 3
if [ -n "$closed" ]; then
  mount --bind "$prefix" /mnt
  mount -t tmpfs -o mode=0755 tmpfs "$closed"
  mkdir -p "$prefix"
  mount --move /mnt "$prefix"
fi
exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
"""


def as_user(*command: str) -> list[str]:
    """The command line that runs ``command`` as the user, in a mount namespace where the user can reach the interpreter of these tests.

    The installation of an interpreter may lie in root's home, which others cannot enter: an empty folder replaces that home there, and
    holds only the installation.
    """
    prefix = Path(sys.base_prefix).resolve()
    closed = next((str(folder) for folder in reversed(prefix.parents) if not folder.stat().st_mode & 0o001), "")
    return ["unshare", "--mount", "bash", "-c", _AS_USER, "as_user", str(prefix), closed, str(USER), *command]


@pytest_asyncio.fixture
async def node() -> AsyncIterator[Node]:
    python = python_or_skip()
    data = Path(f"/tmp/holdfast-user-{os.getpid()}")
    data.mkdir(mode=0o700)
    os.chown(data, USER, USER)
    made = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY, "PYTHONDONTWRITEBYTECODE": "1"}, python, USER)
    try:
        made.start()
        yield made
        if made.process and made.process.poll() is None:
            assert await made.stop() == 0
        assert not list(data.glob("sandboxes/*"))
    finally:
        made.close_clients()
        made.log.unlink(missing_ok=True)
        subprocess.run(["rm", "-rf", str(data)], check=True)


async def test_every_attempt_of_the_probe_fails_without_root(node: Node) -> None:
    client = await node.client()
    box = await client.create("user-probe")
    probe = (REPOSITORY / "tests/node/probe.py").read_text()
    done = await run(box["endpoint"], "/usr/bin/python3", "-", text=probe)
    results = json.loads(done["out"])
    assert len(results) >= 70
    assert {name: result for name, result in results.items() if result is not None} == {}


async def test_sandboxes_work_and_leave_nothing(node: Node) -> None:
    client = await node.client()
    for number in range(5):
        box = await client.create(f"box-{number}")
        script = "id -u; touch /workspace/a /etc/b; mkdir -p /tmp/x/y; chmod 0 /tmp/x; hostname; git --version >/dev/null"
        done = await run(box["endpoint"], "bash", "-c", script)
        assert (done["code"], done["out"], done["err"]) == (0, f"0\nbox-{number}\n", "")
        await client.call("delete", sandbox_id=f"box-{number}")


async def test_ports_are_connected_to_from_outside(node: Node) -> None:
    client = await node.client()
    box = await client.create("one")
    port = await serve_inside(box["endpoint"])
    assert said(await connect_port(node, "one", port)) == b"inside word"


async def test_a_fork_bomb_is_stopped_without_cgroups(node: Node) -> None:
    client = await node.client()
    box = await client.create("bomb", pids=64)
    done = await run(box["endpoint"], "/usr/bin/python3", "-c", BOMB)
    assert 30 < int(done["out"]) < 100


async def test_images_of_several_owners_are_usable(node: Node, tmp_path: Path) -> None:
    lower = [directory("d", uid=5, gid=5), file("d/f", "x", 0o600, uid=5), file("gone", "1"), directory("o"), file("o/hidden", "1")]
    upper = [file(".wh.gone"), file("o/.wh..wh..opq"), file("o/new", "1")]
    layout = oci_layout(node.data / "layout", [tar(lower), tar(upper)])
    for path in [layout, *layout.rglob("*")]:
        os.chown(path, USER, USER)
    client = await node.client()
    await client.call("image_import", path=str(layout), name="app")
    box = await client.create("app", image="app")
    assert await ask(box["endpoint"], "read", path="/d/f") == "x"
    assert await ask(box["endpoint"], "list", path="/o") == ["new"]
    assert "gone" not in await ask(box["endpoint"], "list", path="/")
    await ask(box["endpoint"], "write", path="/d/f", text="y")
    assert await ask(box["endpoint"], "read", path="/d/f") == "y"


async def test_the_doctor_reports_what_is_not_limited(node: Node) -> None:
    checks = {check["name"]: check for check in (await (await node.client()).call("doctor"))["checks"]}
    assert all(check["ok"] for check in checks.values() if check["required"])
    assert checks["cgroups"]["ok"] or "not limited" in checks["cgroups"]["detail"]


EPISODE = """
import json, os, sys
from pathlib import Path
from holdfast import SandboxClient
from holdfast_server import embed
said = {"uid": os.getuid()}
with embed.running_stack(Path(sys.argv[1])) as stack, SandboxClient(stack.url, stack.key) as client:
    with client.create_sandbox("host", ready_timeout_s=60) as sandbox:
        shell = sandbox.shell()
        shell.run("cd /tmp && export N=41 && mkdir d && touch d/f && chmod 0 d")
        said["shell"] = shell.run("echo $((N + 1)); pwd; id -u").stdout
        said["exec"] = sandbox.exec(["cat"], input=b"through").stdout
        sandbox.files.write("/etc/mine", b"written")
        said["file"] = sandbox.files.read("/etc/mine").decode()
        said["late"] = sandbox.exec("sleep 60", timeout=0.2).timed_out
        bomb = sandbox.exec("f() { f | f & }; f; sleep 9", timeout=1)
        said["after the bomb"] = [bomb.timed_out or bomb.exit_code != 0, sandbox.exec("echo here").stdout]
    said["left"] = [box.sandbox_id for box in client.list_sandboxes()]
said["folders"] = sorted(os.listdir(Path(sys.argv[1]) / "sandboxes"))
print(json.dumps(said))
"""


@requires("redis")
def test_a_whole_stack_runs_as_an_ordinary_user() -> None:
    """Gateway, controller, Redis, node and the real agent run as one user, and nothing is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="hfu-") as home:
        os.symlink(sys.executable, f"{home}/python")
        os.chown(home, USER, USER)
        redis = os.path.dirname(find_redis_server() or "")
        environment = {
            "PATH": f"{home}:{os.defpath}:{redis}:/usr/sbin:/sbin", "HOME": home, "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        }  # fmt: skip
        done = subprocess.run(
            as_user(sys.executable, "-c", EPISODE, f"{home}/data"), cwd=REPOSITORY, env=environment,
            capture_output=True, text=True, timeout=170,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "uid": USER, "shell": "42\n/tmp\n0\n", "exec": "through", "file": "written", "late": True,
        "after the bomb": [True, "here\n"], "left": [], "folders": [],
    }  # fmt: skip


@contextlib.contextmanager
def delegated_groups() -> Iterator[list[str]]:
    """Control groups that root has created and given to the user, as systemd does for a scope with ``Delegate=yes``."""
    name, found = f"holdfast-delegated-{os.getpid()}", dict[str, list[str]]()
    mounts = hierarchies.mounts()
    for controller in ("memory", "pids", "cpu"):
        mount = mounts.get(controller, mounts.get("", ("", "")))[0]
        if controller not in mounts:
            sys_.write_file(f"{mount}/cgroup.subtree_control", f"+{controller}")
        found.setdefault(f"{mount}/{name}", []).append(controller)
    try:
        for path in found:
            os.mkdir(path)
            for entry in (".", "cgroup.procs", "tasks", "cgroup.threads", "cgroup.subtree_control"):
                if os.path.exists(f"{path}/{entry}"):
                    os.chown(f"{path}/{entry}", USER, USER)
        yield list(found)
    finally:
        for path in found:
            hierarchies.remove(path)


@requires("cgroups")
async def test_limits_apply_where_the_user_was_given_control_groups(tmp_path: Path) -> None:
    python = python_or_skip()
    data = Path(f"/tmp/holdfast-delegated-{os.getpid()}")
    data.mkdir(mode=0o700)
    os.chown(data, USER, USER)
    with delegated_groups() as groups:
        start = tmp_path / "start"
        joins = "".join(f"echo $$ > {group}/cgroup.procs\n" for group in groups)
        identity = f"setpriv --reuid {USER} --regid {USER} --clear-groups"
        # A second process in the group, as in a scope of systemd that has all of `holdfast up`: in v2 it is in the way of limits.
        start.write_text(f'#!/bin/sh\n{joins}{identity} sleep 3600 & exec {identity} {python} "$@"\n')
        start.chmod(0o755)
        made = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY, "PYTHONDONTWRITEBYTECODE": "1"}, str(start))
        try:
            made.start()
            client = await made.client()
            assert (await client.call("stats"))["limits"] == ["cpu", "memory", "pids"]
            box = await client.create("limited", memory=64 << 20, pids=40)
            too_much = await run(box["endpoint"], "/usr/bin/python3", "-c", "x = bytearray(1 << 28); print(len(x))")
            assert (too_much["code"], too_much["out"]) == (-signal.SIGKILL, "")
            bomb = await run(box["endpoint"], "/usr/bin/python3", "-c", BOMB)
            assert int(bomb["out"]) <= 40
            assert await made.stop() == 0
        finally:
            made.close_clients()
            made.log.unlink(missing_ok=True)
            subprocess.run(["rm", "-rf", str(data)], check=True)


async def test_the_disk_of_a_users_sandbox_has_the_requested_size(node: Node) -> None:
    """It is in memory, as no loop device can be used: a limit all the same."""
    client = await node.client()
    box = await client.create("small-disk", disk=16 << 20)
    for place in ("/workspace", "/tmp", "/root"):
        script = f"head -c 40000000 /dev/zero > {place}/full; stat -c %s {place}/full; rm {place}/full"
        done = await run(box["endpoint"], "sh", "-c", script)
        assert int(done["out"]) <= 16 << 20
        assert "No space left" in done["err"]
