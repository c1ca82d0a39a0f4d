"""The node run by an ordinary user with subordinate ids: sandboxes have users, as with rootless podman, and cannot reach the agent."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.node.harness import ENTRY, REPOSITORY, Node, ask, run
from tests.node.ociimages import directory, file, oci_layout, tar
from tests.node.test_port_sockets import connect_port, said, serve_inside
from tests.node.test_unprivileged import USER, python_or_skip
from tests.support.requires import requires

pytestmark = requires("namespaces", "root", "subordinate ids")
FIRST = 3_000_000_000
"""The first of the ids; no user of the machine has them."""


@pytest_asyncio.fixture
async def node() -> AsyncIterator[Node]:
    """A node of a user who has subordinate ids, by files that only this node sees in /etc."""
    python = python_or_skip()
    home = Path(f"/tmp/holdfast-ids-{os.getpid()}")
    home.mkdir(mode=0o755)
    data = home / "data"
    data.mkdir(mode=0o700)
    os.chown(data, USER, USER)
    user = f"holdfast-test:x:{USER}:{USER}::{home}:/bin/sh\n"
    files = {
        "passwd": Path("/etc/passwd").read_text() + user,
        "subuid": f"{USER}:{FIRST}:65536\n",
        "subgid": f"holdfast-test:{FIRST}:65536\n",
    }
    for name, text in files.items():
        (home / name).write_text(text)
    mounts = " && ".join(f"mount --bind {home}/{name} /etc/{name}" for name in files)
    enter = home / "python"
    setpriv = f"setpriv --reuid {USER} --regid {USER} --clear-groups"
    enter.write_text(f'#!/bin/sh\nexec unshare --mount sh -c \'{mounts} && exec {setpriv} {python} "$@"\' node "$@"\n')
    enter.chmod(0o755)
    made = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY, "PYTHONDONTWRITEBYTECODE": "1"}, str(enter))
    try:
        made.start()
        assert "single user id" not in made.log.read_text(), made.log.read_text()
        yield made
        if made.process and made.process.poll() is None:
            assert await made.stop() == 0
        assert not list(data.glob("sandboxes/*"))
    finally:
        made.close_clients()
        shutil.rmtree(home)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_commands_run_as_any_user_of_the_image(node: Node) -> None:
    box = await (await node.client()).create("users")
    script = "id -u; touch /tmp/a && chown 1000:1000 /tmp/a && stat -c %u:%g /tmp/a; setpriv --reuid 1000 --regid 1000 --clear-groups id -u"
    done = await run(box["endpoint"], "sh", "-c", script)
    assert (done["out"], done["err"]) == ("0\n1000:1000\n1000\n", "")
    agent = next(pid for pid in children_of(node.pid) if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"holdfast-agent"))
    rows = [[int(word) for word in row.split()] for row in Path(f"/proc/{agent}/uid_map").read_text().splitlines()]
    assert rows == [[0, USER, 1], [1, FIRST, 65535]]
    assert os.stat(f"/proc/{agent}").st_uid == FIRST + 65534, "an id that no command can have"


async def test_ports_are_connected_to_from_outside(node: Node) -> None:
    box = await (await node.client()).create("one")
    port = await serve_inside(box["endpoint"])
    assert said(await connect_port(node, "one", port)) == b"inside word"


async def test_every_attempt_of_the_probe_fails(node: Node) -> None:
    box = await (await node.client()).create("probe")
    probe = (REPOSITORY / "tests/node/probe.py").read_text()
    done = await run(box["endpoint"], "/usr/bin/python3", "-", text=probe)
    results = json.loads(done["out"])
    assert len(results) >= 70
    assert {name: result for name, result in results.items() if result is not None} == {}


async def test_images_keep_their_owners(node: Node) -> None:
    members = [
        directory("srv", uid=1000, gid=1000),
        file("srv/f", "x", 0o640, uid=1000, gid=1000),
        file("su", "", 0o4755),
        file("far", "", uid=200_000),
    ]
    layout = oci_layout(node.data / "layout", [tar(members)])
    for path in [layout, *layout.rglob("*")]:
        os.chown(path, USER, USER)
    client = await node.client()
    await client.call("image_import", path=str(layout), name="app")
    box = await client.create("app", image="app")
    found = [await ask(box["endpoint"], "stat", path=path) for path in ("/srv", "/srv/f", "/su", "/far")]
    assert [one["uid"] for one in found] == [1000, 1000, 0, 65534]
    assert stat.S_IMODE(found[2]["mode"]) == 0o4755
    await client.call("delete", sandbox_id="app")
    await client.call("image_remove", name="app")


async def test_the_doctor_names_the_ids(node: Node) -> None:
    checks = {check["name"]: check for check in (await (await node.client()).call("doctor"))["checks"]}
    assert all(check["ok"] for check in checks.values() if check["required"])
    assert checks["user ids"]["detail"] == "sandboxes share 65536 ids of this user's own"


def test_the_reason_for_a_single_id_is_said_once_with_the_package(tmp_path: Path) -> None:
    """Without the programs of the package uidmap the node works as before."""
    python = python_or_skip()
    data = Path(f"/tmp/holdfast-one-id-{os.getpid()}")
    data.mkdir(mode=0o700)
    os.chown(data, USER, USER)
    programs = data / "bin"
    programs.mkdir()
    try:
        made = Node(data, {"HOLDFAST_AGENT_ENTRY": ENTRY, "PATH": str(programs), "PYTHONDONTWRITEBYTECODE": "1"}, python, USER)
        made.start()
        assert made.end() == 0
        assert made.log.read_text().count("newuidmap is not installed; install the package uidmap") == 1
    finally:
        made.log.unlink(missing_ok=True)
        subprocess.run(["rm", "-rf", str(data)], check=True)
