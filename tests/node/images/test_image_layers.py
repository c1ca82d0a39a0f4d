"""What a sandbox sees of an image's layers: merged directories, whiteouts, devices, hard links and its own writes."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest

from session_agent.node.images.store import ImageStore
from tests.node.harness import NodeClient, RefusedError, ask
from tests.node.harness import node as running_node
from tests.node.ociimages import (
    BASE,
    CONFIG,
    TOP,
    Member,
    directory,
    file,
    hard_link,
    image_layers,
    oci_layout,
    special,
    symlink,
    tar,
)
from tests.support.requires import requires


async def test_a_sandbox_sees_the_merged_layers(tmp_path: Path, client: NodeClient) -> None:
    layout = oci_layout(tmp_path / "layout", [BASE, TOP], CONFIG)
    image = (await client.call("image_import", path=str(layout), name="team/app:1"))["image"]
    assert image["name"] == "team/app:1"
    box = await client.create("app", image="team/app:1", env={"GREETING": "mine"})
    endpoint = box["endpoint"]
    assert await ask(endpoint, "list", path="/data") == ["kept", "new"]
    assert await ask(endpoint, "list", path="/hidden") == ["b"]
    assert await ask(endpoint, "read", path="/etc/os-release") == "ID=test\n"
    assert (await ask(endpoint, "read", path="/etc/hosts")).splitlines()[-1] == "127.0.0.1\tapp"
    assert await ask(endpoint, "read", path="/link") == "kept"
    assert (await ask(endpoint, "stat", path="/twin"))["nlink"] == 2
    assert stat.S_ISLNK((await ask(endpoint, "stat", path="/tmp"))["mode"]), "as the image has it"
    assert stat.S_ISDIR((await ask(endpoint, "stat", path="/dev"))["mode"])
    assert "null" in await ask(endpoint, "list", path="/dev")
    config = await ask(endpoint, "config")
    assert config["env"]["PATH"] == "/opt/bin:/bin"
    assert config["env"]["GREETING"] == "mine"
    assert (config["workdir"], config["user"]) == ("/data", "1000:1000")
    if os.geteuid() == 0:
        assert (await ask(endpoint, "stat", path="/data"))["uid"] == 1000
        assert (await ask(endpoint, "stat", path="/run.sh"))["uid"] == 0
    with pytest.raises(RefusedError, match="image_in_use"):
        await client.call("image_remove", name="team/app:1")
    await client.call("delete", sandbox_id="app")
    await client.call("image_remove", name="team/app:1")
    with pytest.raises(RefusedError, match="image_not_found"):
        await client.create("app", image="team/app:1")


@requires("namespaces")
async def test_a_layer_may_occur_twice(tmp_path: Path, client: NodeClient) -> None:
    """Empty layers do so in many images; an overlay refuses the same directory twice."""
    empty = tar([])
    layout = oci_layout(tmp_path / "layout", [BASE, empty, tar([file("data/kept", "between")]), empty, BASE, TOP, empty], CONFIG)
    await client.call("image_import", path=str(layout), name="twice")
    endpoint = (await client.create("twice", image="twice"))["endpoint"]
    assert await ask(endpoint, "list", path="/data") == ["kept", "new"]
    assert await ask(endpoint, "read", path="/data/kept") == "kept"


DEVICE = special("d", tarfile.CHRTYPE, devmajor=1, devminor=3)


WHITEOUTS = {
    "whiteout first": [file(".wh.d"), directory("d"), file("d/new")],
    "whiteout last": [directory("d"), file("d/new"), file(".wh.d")],
    "directory only in a path": [file(".wh.d"), file("d/new")],
    "directory through a link": [symlink("l", "d"), file(".wh.d"), file("l/new")],
    "whiteout before a device": [file(".wh.d"), DEVICE, directory("d"), file("d/new")],
    "whiteout behind a device": [DEVICE, file(".wh.d"), directory("d"), file("d/new")],
    "whiteout last, behind a device": [DEVICE, directory("d"), file("d/new"), file(".wh.d")],
}


@requires("namespaces")
@pytest.mark.parametrize("order", WHITEOUTS)
async def test_a_whiteout_beside_a_new_directory_hides_the_old_one(tmp_path: Path, client: NodeClient, order: str) -> None:
    """A whiteout applies only to lower layers, in any order of entries (the OCI image specification, "Whiteouts")."""
    layout = oci_layout(tmp_path / "layout", [tar([directory("d"), file("d/old"), directory("d/below")]), tar(WHITEOUTS[order])])
    await client.call("image_import", path=str(layout), name="replaced")
    endpoint = (await client.create("replaced", image="replaced"))["endpoint"]
    assert await ask(endpoint, "list", path="/d") == ["new"]


@requires("namespaces")
@pytest.mark.parametrize(
    "upper",
    [
        [DEVICE, directory("d"), file("d/new")],
        [DEVICE, file("d/new")],
        [directory("d"), DEVICE, directory("d"), file("d/new")],
        [special("other", tarfile.BLKTYPE, devmajor=8), hard_link("d", "other"), directory("d"), file("d/new")],
        [file("d"), directory("d"), file("d/new")],
    ],
    ids=["entry", "only in a path", "between two", "hard link", "file"],
)
async def test_a_directory_in_the_place_of_an_earlier_entry_is_merged(tmp_path: Path, client: NodeClient, upper: list[Member]) -> None:
    """As on overlay2 of docker and containerd, which unpack a layer by itself: only whiteouts and opaque marks affect lower layers."""
    layout = oci_layout(tmp_path / "layout", [tar([directory("d"), file("d/old")]), tar(upper)])
    await client.call("image_import", path=str(layout), name="merged")
    endpoint = (await client.create("merged", image="merged"))["endpoint"]
    assert sorted(await ask(endpoint, "list", path="/d")) == ["new", "old"]


@requires("namespaces")
async def test_devices_and_aufs_metadata_are_not_visible(tmp_path: Path, client: NodeClient) -> None:
    """Nor are hard links to them; a device hides an entry of the same name in a lower layer."""
    lower = tar([file("f", "lower"), file("kept", "lower"), file(".wh..wh.aufs"), directory(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", "x")])
    upper = tar([special("f", tarfile.BLKTYPE, devmajor=8), hard_link("g", "f"), hard_link("kept", "f")])
    await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [lower, upper, b""])), name="nodes")
    endpoint = (await client.create("nodes", image="nodes"))["endpoint"]
    assert await ask(endpoint, "list", path="/") == ["dev", "etc", "proc", "run", "sys", "tmp"]


async def test_hard_links_to_aufs_metadata_are_files(tmp_path: Path, store: ImageStore) -> None:
    kept = [directory(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", "both"), directory("d")]
    names = [hard_link("d/one", ".wh..wh.plnk/1.2"), hard_link("two", ".wh..wh.plnk/1.2")]
    await store.import_path(str(oci_layout(tmp_path / "layout", [tar([*kept, *names])])), "aufs")
    (layer,) = (Path(path) for path in image_layers(store.resolve("aufs")))
    assert sorted(os.listdir(layer)) == ["d", "two"]
    assert (layer / "d/one").read_text() == "both"
    assert os.path.samefile(layer / "d/one", layer / "two")
    assert os.stat(layer / "two").st_nlink == 2


@requires("namespaces")
async def test_whiteouts_are_not_listed_in_a_directory_of_one_layer(tmp_path: Path, client: NodeClient) -> None:
    """Overlay searches for whiteouts only in directories that it merges, or that are marked."""
    null = special("d/null", tarfile.CHRTYPE, devmajor=1, devminor=3)
    layer = tar(
        [directory("d"), file("d/f"), null, directory("links"), hard_link("links/null", "d/null"), directory("e"), file("e/.wh.gone")]
    )
    await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [layer])), name="alone")
    endpoint = (await client.create("alone", image="alone"))["endpoint"]
    assert [await ask(endpoint, "list", path=path) for path in ("/d", "/links", "/e")] == [["f"], [], []]
    await ask(endpoint, "write", path="/e/gone", text="new")
    assert await ask(endpoint, "list", path="/e") == ["gone"]


@requires("namespaces")
async def test_writes_of_one_sandbox_are_not_visible_to_another(tmp_path: Path, client: NodeClient) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/os-release").write_text("ID=dir\n")
    await client.call("image_import", path=str(tmp_path / "root"), name="from-dir")
    one = await client.create("one", image="from-dir")
    assert await ask(one["endpoint"], "read", path="/etc/os-release") == "ID=dir\n"
    await ask(one["endpoint"], "write", path="/etc/os-release", text="changed")
    two = await client.create("two", image="docker.io/library/from-dir:latest")
    assert await ask(two["endpoint"], "read", path="/etc/os-release") == "ID=dir\n"
    assert (tmp_path / "root/etc/os-release").read_text() == "ID=dir\n"


@requires("namespaces")
async def test_a_workspace_that_is_a_link_stays_a_link(tmp_path: Path, client: NodeClient) -> None:
    layer = tar([directory("etc"), directory("srv"), symlink("workspace", "/srv")])
    await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [layer])), name="linked")
    endpoint = (await client.create("linked", image="linked"))["endpoint"]
    assert stat.S_ISLNK((await ask(endpoint, "stat", path="/workspace"))["mode"])


@requires("namespaces", "root")
async def test_without_id_mapped_mounts_layers_are_stored_with_the_sandboxes_ids(tmp_path: Path) -> None:
    """Linux 5.12 to 5.18 have no overlay on id-mapped layers: everything still works, with one id range for all."""
    layout = oci_layout(tmp_path / "layout", [BASE, TOP], CONFIG)
    async with running_node(tmp_path / "data", HOLDFAST_NODE_ID_MAPPING="off") as node:
        client = await node.client()
        await client.call("image_import", path=str(layout), name="app")
        for image, path in (("app", "/etc/os-release"), ("host", "/etc/passwd")):
            endpoint = (await client.create(f"x-{image}", image=image))["endpoint"]
            assert (await ask(endpoint, "stat", path="/etc"))["uid"] == 0
            await ask(endpoint, "write", path=path, text="mine")
            assert await ask(endpoint, "read", path=path) == "mine"
        endpoint = (await client.create("again", image="app"))["endpoint"]
        assert (await ask(endpoint, "stat", path="/data"))["uid"] == 1000
        assert (await ask(endpoint, "stat", path="/twin"))["uid"] == 0


@requires("namespaces", "root")
async def test_owners_and_set_id_bits_where_the_kernel_maps_no_ids(tmp_path: Path) -> None:
    """The store then holds the files under the ids of sandboxes, and a change of owner clears set-id bits."""
    layer = tar([directory("etc"), file("su", "x", 0o4755), file("far", "x", uid=70_000, gid=70_001), symlink("link", "su")])
    async with running_node(tmp_path / "data", HOLDFAST_NODE_ID_MAPPING="off") as made:
        client = await made.client()
        await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [layer])), name="shifted")
        endpoint = (await client.create("shifted", image="shifted"))["endpoint"]
        seen = await ask(endpoint, "stat", path="/su")
        assert (stat.S_IMODE(seen["mode"]), seen["uid"]) == (0o4755, 0)
        far = await ask(endpoint, "stat", path="/far")
        assert (far["uid"], far["gid"]) == (70_000, 70_001)
