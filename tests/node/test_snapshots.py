"""Snapshots of running sandboxes on a real node: what a sandbox made of one sees, and what happens to the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.node.harness import Node, NodeClient, RefusedError, ask, run
from tests.node.harness import node as running_node
from tests.node.ociimages import BASE, CONFIG, TOP, oci_layout
from tests.support.requires import requires

pytestmark = requires("namespaces", "root")

_LIST = "cd / && find etc data root tmp -xdev ! -name host* ! -name resolv.conf -printf '%p %y %m %U %G %n %l %s\\n' | sort"
"""Everything about the entries of these directories but their times."""


async def _sh(box: dict[str, Any], script: str) -> str:
    result = await run(box["endpoint"], "sh", "-c", script)
    assert result["code"] == 0, result
    return str(result["out"])


async def _snapshot(client: NodeClient, sandbox_id: str, name: str | None = None) -> dict[str, Any]:
    image: dict[str, Any] = (await client.call("snapshot", sandbox_id=sandbox_id, name=name))["image"]
    return image


async def test_a_sandbox_of_a_snapshot_has_the_same_files(client: NodeClient) -> None:
    parent = await client.create("parent")
    await _sh(
        parent,
        "mkdir -p /data/d && cd /data && echo one > f && ln f d/twin && ln -s f link && mkfifo pipe && chmod 4711 f && touch -d @1000 d/old"
        " && chown 1000:1001 d && chmod 1750 d && rm /etc/services && rm -r /etc/fonts /etc/alternatives && mkdir /etc/alternatives"
        " && echo mine > /etc/alternatives/mine && truncate -s 1G sparse && mkdir -m 000 closed",
    )
    before = await _sh(parent, _LIST)
    image = await _snapshot(client, "parent", "work:1")
    assert (image["name"], image["parent"]) == ("work:1", "host")
    assert image["size_bytes"] < 1 << 20, "holes are not copied"
    child = await client.create("child", image="work:1")
    assert await _sh(child, _LIST) == before
    assert (
        await _sh(child, "cat /data/d/twin; stat -c %Y /data/d/old; ls /etc/alternatives; cat /etc/hostname") == "one\n1000\nmine\nchild\n"
    )
    await _sh(child, "echo two > /data/f")
    assert await _sh(parent, "cat /data/f") == "one\n", "nothing of a child reaches its parent"


async def test_attributes_keep_their_meaning(client: NodeClient) -> None:
    """Rights of programs and of named users are stored with ids of the sandbox's range, which another sandbox does not have."""
    parent = await client.create("parent")
    script = (
        "import os, struct\n"
        "os.mkdir('/data'); open('/data/program', 'w').close()\n"
        "os.setxattr('/data/program', 'security.capability', struct.pack('<5I', 0x02000001, 1 << 10, 0, 0, 0))\n"
        "acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *e) for e in [(1, 6, 2**32-1), (2, 4, 1234), (4, 4, 2**32-1), "
        "(16, 4, 2**32-1), (32, 0, 2**32-1)])\n"
        "os.setxattr('/data/program', 'system.posix_acl_access', acl)\n"
        "os.setxattr('/data/program', 'user.note', b'kept')\n"
    )
    assert (await run(parent["endpoint"], "python3", "-c", script))["code"] == 0
    await _snapshot(client, "parent", "attributes")
    show = "import os; print([(n, os.getxattr('/data/program', n).hex()) for n in sorted(os.listxattr('/data/program'))])"
    before = await run(parent["endpoint"], "python3", "-c", show)
    await client.call("delete", sandbox_id="parent")
    other = await client.create("other")  # takes the parent's range of ids
    child = await client.create("child", image="attributes")
    assert await run(child["endpoint"], "python3", "-c", show) == before
    assert "d2040000" in before["out"], before
    assert other["endpoint"]


async def test_snapshots_of_snapshots_of_an_image(tmp_path: Path, client: NodeClient) -> None:
    layout = oci_layout(tmp_path / "layout", [BASE, TOP], CONFIG)
    await client.call("image_import", path=str(layout), name="base")
    box = await client.create("s0", image="base")
    parent = ""
    for number in range(1, 5):
        await ask(box["endpoint"], "write", path=f"/data/n{number}", text=str(number))
        image = await _snapshot(client, f"s{number - 1}", f"chain:{number}")
        assert number == 1 or image["parent"] == parent
        parent = image["digest"]
        box = await client.create(f"s{number}", image=f"chain:{number}")
    assert await ask(box["endpoint"], "list", path="/data") == ["kept", "n1", "n2", "n3", "n4", "new"]
    config = await ask(box["endpoint"], "config")
    assert (config["workdir"], config["user"], config["env"]["GREETING"]) == ("/data", "1000:1000", "hello=world")
    first = await client.create("first", image="chain:1")
    assert await ask(first["endpoint"], "list", path="/data") == ["kept", "n1", "new"]


async def test_an_exported_snapshot_is_the_same_elsewhere(tmp_path: Path, client: NodeClient) -> None:
    layout = oci_layout(tmp_path / "layout", [BASE, TOP], CONFIG)
    await client.call("image_import", path=str(layout), name="base")
    box = await client.create("parent", image="base", disk=256 << 20)
    script = (
        "import os, shutil, struct, socket\n"
        "os.unlink('/data/kept'); shutil.rmtree('/hidden'); os.mkdir('/hidden'); open('/hidden/c', 'w').write('c')\n"
        "open('/data/f', 'w').write('f' * 1000); os.link('/data/f', '/etc/f'); os.symlink('x', '/data/l'); os.mkfifo('/data/p')\n"
        "os.setxattr('/data/f', 'user.note', bytes(range(1, 256))); os.chown('/data/f', 1000, 70000); os.chmod('/data/f', 0o4755)\n"
        "socket.socket(socket.AF_UNIX).bind('/data/socket'); os.utime('/data/f', ns=(1, 1234567890123456789))\n"
        "open('/data/caf\\udce9', 'w').close()\n"
    )
    done = await ask(box["endpoint"], "python", script=script)
    assert done is None, done
    show = (
        "import os; out = []\n"
        "for top in ('/data', '/etc', '/hidden'):\n"
        "    for folder, names, files in os.walk(top):\n"
        "        for path in sorted(os.path.join(folder, n) for n in names + files if not n.startswith(('host', 'resolv'))):\n"
        "            s = os.lstat(path); times = s.st_mtime_ns if not os.path.islink(path) else 0\n"
        "            out.append((path, s.st_mode, s.st_uid, s.st_gid, s.st_nlink, times, [os.getxattr(path, n, follow_symlinks=False).hex()"
        " for n in os.listxattr(path, follow_symlinks=False)]))\n"
        "result = repr(sorted(out))\n"
    )
    await client.call("snapshot", sandbox_id="parent", name="work")
    await client.call("image_export", name="work", path=str(tmp_path / "work.tar"))
    await client.call("image_import", path=str(tmp_path / "work.tar"), name="again")
    seen = [await ask((await client.create(name, image=name))["endpoint"], "python", script=show) for name in ("work", "again")]
    assert "/data/socket" in seen[0]
    row = next(one for one in seen[0].split("), (") if "/data/socket" in one)
    assert seen[1].replace("/data/socket", "") == seen[0].replace(f"), ({row}", ""), "sockets are not exported"
    assert "'/data/kept'" not in seen[1]
    assert "'/hidden/b'" not in seen[1]
    with pytest.raises(RefusedError, match="unsupported"):
        await client.call("image_export", name="host", path=str(tmp_path / "host.tar"))
    with pytest.raises(RefusedError, match="image_not_found"):
        await client.call("image_export", name="nothing", path=str(tmp_path / "nothing.tar"))


async def test_files_larger_than_any_disk(tmp_path: Path, client: NodeClient) -> None:
    """Their holes are neither read nor stored; an export, which would write them out, is refused before it begins."""
    await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [BASE, TOP], CONFIG)), name="base")
    box = await client.create("parent", image="base", disk=256 << 20)
    script = (
        "import os\n"
        "with open('/data/huge', 'wb') as file:\n"
        "    file.write(b'begin'); os.truncate('/data/huge', 8 << 40); file.seek(5 << 40); file.write(b'end')\n"
    )
    await ask(box["endpoint"], "python", script=script)
    first, again = [await _snapshot(client, "parent", name) for name in ("huge", "huge:2")]
    assert first["digest"] == again["digest"]
    await ask(box["endpoint"], "python", script="with open('/data/huge', 'r+b') as file: file.seek(3 << 40); file.write(b'x')")
    assert (await _snapshot(client, "parent"))["digest"] != first["digest"]
    other = await client.create("other", image="huge", disk=256 << 20)
    show = "f = open('/data/huge', 'rb'); a = f.read(5); f.seek(5 << 40); result = [a.decode(), f.read(3).decode(), f.seek(0, 2)]"
    assert await ask(other["endpoint"], "python", script=show) == ["begin", "end", 8 << 40]
    with pytest.raises(RefusedError, match="no_space"):
        await client.call("image_export", name="huge", path=str(tmp_path / "huge.tar"))
    assert not (tmp_path / "huge.tar").exists()
    await ask(box["endpoint"], "python", script="import os; os.truncate('/data/huge', 4 << 20)")
    await _snapshot(client, "parent", "small")
    await client.call("image_export", name="small", path=str(tmp_path / "small.tar"))
    await client.call("image_import", path=str(tmp_path / "small.tar"), name="back")
    back = await client.create("back", image="back")
    assert await ask(back["endpoint"], "python", script="import os; result = os.path.getsize('/data/huge')") == 4 << 20


async def test_the_same_content_is_stored_once(client: NodeClient) -> None:
    parent = await client.create("parent")
    await _sh(parent, "mkdir /data && echo x > /data/f && rm /etc/services")
    first, second = await _snapshot(client, "parent"), await _snapshot(client, "parent")
    assert first["digest"] == second["digest"]
    assert first["name"] == first["digest"], "an image without a name is named by its digest"
    await _sh(parent, "echo y > /data/f")
    third = await _snapshot(client, "parent")
    assert third["digest"] != first["digest"]
    assert await _sh(await client.create("old", image=first["digest"]), "cat /data/f") == "x\n"
    tagged = (await client.call("image_tag", name=first["digest"], other="again"))["image"]
    assert (tagged["name"], tagged["digest"]) == ("again", first["digest"])


async def test_a_snapshot_has_the_configuration_of_its_image(tmp_path: Path, client: NodeClient) -> None:
    config = CONFIG | {"Cmd": ["serve"], "Labels": {"a": "b"}, "ExposedPorts": {"80/tcp": {}}}
    await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [BASE, TOP], config)), name="base")
    await client.create("parent", image="base")
    await _snapshot(client, "parent", "child")
    found = (await client.call("image_config", name="child"))["config"]
    assert found | {"Env": sorted(found["Env"])} == config | {"Env": sorted(config["Env"])}


async def test_a_snapshot_is_of_one_instant(client: NodeClient) -> None:
    """A command writes a number to one file and then to another: no snapshot has the second without the first."""
    parent = await client.create("parent")
    put = "echo $i > /data/$n.new; mv /data/$n.new /data/$n"
    busy = f"i=0; while :; do i=$((i+1)); n=a; {put}; n=b; {put}; done"
    await _sh(parent, f"mkdir /data; nohup sh -c '{busy}' > /dev/null 2>&1 & while ! [ -e /data/b ]; do :; done")
    for number in range(5):
        image = await _snapshot(client, "parent")
        child = await client.create(f"child{number}", image=image["digest"])
        a, b = (int(text) for text in (await _sh(child, "cat /data/a /data/b")).split())
        assert a - b in (0, 1)
    before = int(await _sh(parent, "cat /data/b"))
    assert int(await _sh(parent, f"while [ $(cat /data/b) = {before} ]; do :; done; cat /data/b")) > before, "the command continues"


async def test_a_snapshot_in_use_can_be_removed(client: NodeClient, shared: Node) -> None:
    parent = await client.create("parent")
    await _sh(parent, "mkdir /data && echo kept > /data/f")
    await _snapshot(client, "parent", "temporary")
    child = await client.create("child", image="temporary")
    await client.call("image_remove", name="temporary")
    with pytest.raises(RefusedError, match="image_not_found"):
        await client.create("late", image="temporary")
    assert await _sh(child, "cat /data/f") == "kept\n"
    grandchild = (await _snapshot(client, "child"))["digest"]
    await client.call("delete", sandbox_id="child")
    assert await _sh(await client.create("grandchild", image=grandchild), "cat /data/f") == "kept\n"


async def test_snapshots_survive_a_restart_and_sandboxes_that_end_meanwhile(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node:
        client = await node.client()
        parent = await client.create("parent")
        await _sh(parent, "mkdir /data && head -c 64M /dev/urandom > /data/f")
        kept = await _snapshot(client, "parent", "kept")
        half = await client.send("snapshot", sandbox_id="parent", name="half")
        assert half
        assert node.process
        node.process.kill()
        node.process.wait()
        node.start()
        client = await node.client()
        images = {image["name"] for image in (await client.call("images"))["images"]}
        assert images in ({"host", "kept"}, {"host", "kept", "half"})
        layers = list((tmp_path / "data/images/layers").iterdir())
        assert len(layers) == 1, "the same content"
        assert list((tmp_path / "data/images/tmp").iterdir()) == []
        child = await client.create("child", image=kept["digest"])
        assert await _sh(child, "stat -c %s /data/f") == f"{64 << 20}\n"


async def test_a_paused_sandbox_stands_still_until_it_is_resumed(client: NodeClient, shared: Node) -> None:
    box = await client.create("parent")
    await _sh(
        box, "mkdir /data; nohup sh -c 'while :; do date +%s%N > /data/now; done' > /dev/null 2>&1 & while ! [ -s /data/now ]; do :; done"
    )
    for _ in range(2):  # the second time changes nothing
        await client.call("pause", sandbox_id="parent")
    assert [one["paused"] for one in (await client.call("list"))["sandboxes"]] == ["memory"]
    for _ in range(20):  # a process that is not stopped yet writes between two snapshots in one of some dozen cases
        first, second = await _snapshot(client, "parent"), await _snapshot(client, "parent")
        assert first["digest"] == second["digest"], "something was written between them"
        await client.call("resume", sandbox_id="parent")
        await client.call("pause", sandbox_id="parent")
    other = await shared.client()
    waiting = asyncio.ensure_future(_sh(box, 'while :; do n=$(cat /data/now); [ -z "$n" ] || break; done; echo $n'))
    await other.create("other")
    assert not waiting.done()
    await other.call("resume", sandbox_id="parent")
    assert int(await waiting)
    await client.call("pause", sandbox_id="parent")
    assert (await client.call("delete", sandbox_id="parent"))["existed"], "a paused sandbox can be deleted"


async def test_a_sandbox_paused_to_disk_survives_the_node(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node:
        client = await node.client()
        box = await client.create("parent", env={"A": "1"}, labels={"k": "v"})
        await _sh(box, "mkdir /data && echo kept > /data/f")
        await client.create("running")
        for _ in range(2):
            await client.call("suspend", sandbox_id="parent")
        (row,) = [one for one in (await client.call("list"))["sandboxes"] if one["sandbox_id"] == "parent"]
        assert (row["paused"], row["state"], row["labels"]) == ("disk", "ready", {"k": "v"})
        assert (await client.call("stats"))["memory_requested"] == 256 << 20, "that of the other sandbox"
        with pytest.raises(RefusedError, match="sandbox_paused"):
            await _snapshot(client, "parent")
        assert [image["name"] for image in (await client.call("images"))["images"]] == ["host"]
        await node.stop()
        node.start()
        client = await node.client()
        assert [one["sandbox_id"] for one in (await client.call("list"))["sandboxes"]] == ["parent"]
        await client.call("resume", sandbox_id="parent")
        assert await _sh(box, "cat /data/f; cat /etc/hostname; echo $A") == "kept\nparent\n1\n"
        await _sh(box, "echo more >> /data/f")
        await client.call("suspend", sandbox_id="parent")
        assert node.process
        node.close_clients()
        node.process.kill()
        node.process.wait()
        node.start()
        client = await node.client()
        await client.call("resume", sandbox_id="parent")
        assert await _sh(box, "cat /data/f") == "kept\nmore\n"
        node.close_clients()
        node.process.kill()
        node.process.wait()
        node.start()
        client = await node.client()
        assert (await client.call("list"))["sandboxes"] == [], "a state that was continued does not come back"
        assert list((tmp_path / "data/images/layers").iterdir()) == []
        await client.create("again")
        await client.call("suspend", sandbox_id="again")
        assert (await client.call("delete", sandbox_id="again"))["existed"]
        assert list((tmp_path / "data/suspended").iterdir()) == []
        assert list((tmp_path / "data/images/layers").iterdir()) == []


async def test_what_cannot_be_copied_is_refused(client: NodeClient) -> None:
    with pytest.raises(RefusedError, match="sandbox_not_found"):
        await _snapshot(client, "nothing")
    await client.create("small", disk=8 << 20)
    with pytest.raises(RefusedError, match="unsupported"):
        await _snapshot(client, "small")
    await client.create("other")
    with pytest.raises(RefusedError, match="invalid_argument"):
        await _snapshot(client, "other", "host")
    with pytest.raises(RefusedError, match="invalid_argument"):
        await _snapshot(client, "other", "Not A Name")


async def test_a_delete_waits_for_the_snapshot(client: NodeClient, shared: Node) -> None:
    parent = await client.create("parent")
    await _sh(parent, "mkdir /data && head -c 32M /dev/urandom > /data/f")
    second = await shared.client()
    number = await client.send("snapshot", sandbox_id="parent")
    assert (await second.call("delete", sandbox_id="parent"))["existed"]
    answer = await client.receive()
    assert answer["id"] == number
    assert answer["ok"] or answer["error"]["code"] == "sandbox_not_found", answer
