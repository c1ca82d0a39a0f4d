"""The image store: every accepted format, and what a sandbox sees of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import lzma
import os
import shutil
import stat
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node.images import names
from session_agent.node.images.store import ImageStore
from tests.node.harness import NodeClient, RefusedError, ask
from tests.node.harness import node as running_node
from tests.node.ociimages import (
    Member,
    archive_of,
    directory,
    docker_archive,
    file,
    hard_link,
    image_layers,
    oci_layout,
    special,
    symlink,
    tar,
)
from tests.support.requires import requires

BASE = tar(
    [
        directory("./"), directory("etc"), file("etc/os-release", "ID=test\n"), file("etc/hosts", "not ours"),
        directory("data", uid=1000, gid=1000), file("data/old", "old", uid=1000, gid=1000), file("data/kept", "kept"),
        directory("hidden"), file("hidden/a"), file("run.sh", "#!/bin/sh\n", 0o4755),
        symlink("link", "data/kept"), hard_link("twin", "data/kept"), symlink("dev", "data"), symlink("tmp", "/data"),
    ]
)  # fmt: skip
TOP = tar(
    [
        directory("data", uid=1000, gid=1000), file("data/.wh.old"), file("data/new", "new"),
        directory("hidden"), file("hidden/.wh..wh..opq"), file("hidden/b", "b"),
    ]
)  # fmt: skip
CONFIG = {"Env": ["PATH=/opt/bin:/bin", "GREETING=hello=world"], "WorkingDir": "/data", "User": "1000:1000", "Entrypoint": ["/x"]}


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    os.makedirs(tmp_path / "images")
    made = ImageStore(str(tmp_path / "images"), None)
    made.open()
    return made


@requires("namespaces")
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


@pytest.mark.parametrize("form", ["layout", "archive", "archive.gz", "docker", "docker.xz", "uncompressed"])
async def test_every_format_of_the_same_image(tmp_path: Path, store: ImageStore, form: str) -> None:
    if form.startswith("docker"):
        path = docker_archive(tmp_path / "image.tar", [BASE, TOP], CONFIG)
    else:
        path = oci_layout(tmp_path / "layout", [BASE, TOP], CONFIG, packed=form != "uncompressed")
        if form.startswith("archive"):
            path = archive_of(path, tmp_path / "image.tar")
    if form.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    if form.endswith(".xz"):
        path.write_bytes(lzma.compress(path.read_bytes()))
    await store.import_path(str(path), "app")
    spec = store.resolve("app")
    top, base = image_layers(spec)
    assert sorted(os.listdir(f"{base}/data")) == ["kept", "old"]
    assert stat.S_ISCHR(os.lstat(f"{top}/data/old").st_mode)
    assert os.getxattr(f"{top}/hidden", "user.overlay.opaque") == b"y"
    assert os.lstat(f"{base}/run.sh").st_mode & 0o6000 == (0o4000 if os.geteuid() == 0 else 0)
    assert (spec.workdir, spec.user, spec.env["GREETING"]) == ("/data", "1000:1000", "hello=world")


@pytest.mark.parametrize("packing", ["", "gz", "xz", "zst", "zst behind a frame of other data"])
async def test_root_tars(tmp_path: Path, store: ImageStore, packing: str) -> None:
    path = tmp_path / "root.tar"
    path.write_bytes(BASE)
    if packing == "gz":
        path.write_bytes(gzip.compress(BASE))
    if packing == "xz":
        path.write_bytes(lzma.compress(BASE))
    if packing.startswith("zst"):
        other = b"\x50\x2a\x4d\x18\x04\0\0\0data" if packing != "zst" else b""
        if shutil.which("zstd"):
            path.write_bytes(other + subprocess.run(["zstd", "-c"], input=BASE, capture_output=True, check=True).stdout)
        else:
            path.write_bytes(other + b"\x28\xb5\x2f\xfd" + bytes(20))
            with pytest.raises(HoldfastError, match="zstd"):
                await store.import_path(str(path), "root")
            return
    await store.import_path(str(path), "root")
    (layer,) = image_layers(store.resolve("root"))
    assert Path(layer, "data/kept").read_text() == "kept"


async def test_a_root_directory_is_copied_completely_and_safely(tmp_path: Path, store: ImageStore) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/tool").write_text("x")
    (root / "bin/tool").chmod(0o4711)
    os.link(root / "bin/tool", root / "bin/other")
    (root / "away").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    await store.import_path(str(root), "dir")
    (layer,) = image_layers(store.resolve("dir"))
    assert sorted(os.listdir(layer)) == ["away", "bin", "pipe"]
    assert os.readlink(f"{layer}/away") == "/etc/passwd"
    status = os.stat(f"{layer}/bin/tool")
    assert (status.st_nlink, stat.S_IMODE(status.st_mode)) == (2, 0o4711 if os.geteuid() == 0 else 0o711)
    assert os.stat(f"{layer}/bin").st_mtime_ns == os.stat(root / "bin").st_mtime_ns


@requires("root")
async def test_owners_bits_attributes_and_times_are_kept(tmp_path: Path, store: ImageStore) -> None:
    """As docker keeps them: ping and sudo need them, build tools compare them."""
    members = [
        directory("opt", uid=100_000, gid=70_000),
        file("opt/ping", "x", 0o755),
        special("opt/pipe", tarfile.FIFOTYPE),
        file("opt/su", "x", 0o4755),
    ]
    for member in members:
        info = member[0] if isinstance(member, tuple) else member
        info.mtime = 1_000_000_000
    capability = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
    info = members[1][0] if isinstance(members[1], tuple) else members[1]
    info.pax_headers = {
        "SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape"),
        "SCHILY.xattr.user.note": "kept",
        "SCHILY.xattr.user.overlay.opaque": "y",
        "SCHILY.xattr.trusted.overlay.opaque": "y",
    }
    await store.import_path(str(oci_layout(tmp_path / "layout", [tar(members)])), "kept")
    (layer,) = image_layers(store.resolve("kept"))
    made = os.stat(f"{layer}/opt")
    assert (made.st_uid, made.st_gid, made.st_mtime) == (100_000, 70_000, 1_000_000_000)
    assert os.getxattr(f"{layer}/opt/ping", "security.capability") == capability
    assert os.getxattr(f"{layer}/opt/ping", "user.note") == b"kept"
    assert not {"user.overlay.opaque", "trusted.overlay.opaque"} & set(os.listxattr(f"{layer}/opt/ping"))
    assert stat.S_ISFIFO(os.stat(f"{layer}/opt/pipe").st_mode)
    assert os.stat(f"{layer}/opt/su").st_mode & 0o4000


@requires("namespaces")
async def test_volumes_are_directories(tmp_path: Path, client: NodeClient) -> None:
    layer = tar([directory("etc"), directory("have"), file("have/x", "x")])
    layout = oci_layout(tmp_path / "layout", [layer], {"Volumes": {"/have": {}, "/lib/data": {}, "bad": {}}})
    await client.call("image_import", path=str(layout), name="volumes")
    endpoint = (await client.create("volumes", image="volumes"))["endpoint"]
    assert await ask(endpoint, "list", path="/") == ["dev", "etc", "have", "lib", "proc", "run", "sys", "tmp"]
    assert await ask(endpoint, "list", path="/have") == ["x"]
    assert stat.S_ISDIR((await ask(endpoint, "stat", path="/lib/data"))["mode"])


@requires("namespaces")
async def test_volumes_behind_links_are_created_at_their_targets(tmp_path: Path, client: NodeClient) -> None:
    """For example /var/run/app, where /var/run is a link to /run in most images."""
    lower = tar([directory("var"), symlink("var/run", "/run"), symlink("twice", "/run"), directory("opt"), symlink("gone", "/run")])
    upper = tar([symlink("more", "../opt/../var/run/more"), symlink("twice", "/opt"), file(".wh.gone")])
    volumes: dict[str, object] = {path: {} for path in ("/var/run/app/data", "/twice/v", "/more", "/gone/app")}
    await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [lower, upper], {"Volumes": volumes})), name="behind")
    endpoint = (await client.create("behind", image="behind"))["endpoint"]
    assert await ask(endpoint, "list", path="/var/run") == await ask(endpoint, "list", path="/run") == ["app", "more"]
    assert await ask(endpoint, "list", path="/run/app") == ["data"]
    assert await ask(endpoint, "list", path="/twice") == await ask(endpoint, "list", path="/opt") == ["v"]


async def test_volumes_are_not_behind_links_that_an_upper_layer_hides(tmp_path: Path, store: ImageStore) -> None:
    """It hides them with a directory of the same name or with an opaque directory."""
    lower = tar(
        [
            symlink("data", "/wrong"),
            directory("emptied"),
            symlink("emptied/link", "/wrong"),
            directory("merged"),
            symlink("merged/link", "/m"),
        ]
    )
    upper = tar([directory("data"), directory("emptied"), file("emptied/.wh..wh..opq"), directory("merged")])
    volumes: dict[str, object] = {path: {} for path in ("/data/v", "/emptied/link/v", "/merged/link/v")}
    await store.import_path(str(oci_layout(tmp_path / "layout", [lower, upper], {"Volumes": volumes})), "hidden")
    made = image_layers(store.resolve("hidden"))[-1]
    assert sorted(os.listdir(made)) == ["data", "emptied", "m"]
    assert [os.listdir(f"{made}/{path}") for path in ("data", "emptied/link", "m")] == [["v"]] * 3


async def test_a_volume_with_a_too_long_name_is_refused(tmp_path: Path, store: ImageStore) -> None:
    layout = oci_layout(tmp_path / "layout", [tar([directory("etc")])], {"Volumes": {"/" + "x" * 300: {}}})
    with pytest.raises(HoldfastError, match="too long"):
        await store.import_path(str(layout), "long")


async def test_volumes_behind_endless_links_are_refused(tmp_path: Path, store: ImageStore) -> None:
    layout = oci_layout(tmp_path / "layout", [tar([symlink("a", "b"), symlink("b", "/a")])], {"Volumes": {"/a/v": {}}})
    with pytest.raises(HoldfastError, match="too many links"):
        await store.import_path(str(layout), "endless")


@pytest.mark.parametrize(
    ("given", "kept"), [("app", "/app"), ("/a/./b/../c//d/", "/a/c/d"), ("//a", "/a"), ("../../x", "/x"), ("/", "/"), ("", "")]
)
async def test_paths_of_a_configuration_are_normalised(tmp_path: Path, store: ImageStore, given: str, kept: str) -> None:
    config = {"WorkingDir": given, "Volumes": {"/v/../w/": {}}}
    await store.import_path(str(oci_layout(tmp_path / "layout", [tar([directory("etc")])], config)), "paths")
    spec = store.resolve("paths")
    assert spec.workdir == kept
    assert os.listdir(image_layers(spec)[-1]) == ["w"]


async def test_times_are_exact(tmp_path: Path, store: ImageStore) -> None:
    """A float has too few digits for the nanoseconds that extended headers contain."""
    times = {"1700000000.123456789": 1700000000123456789, "1700000000.1": 1700000000100000000, "-5.5": 0, "9" * 30: 4 * 10**18}
    members = [file(f"f{number}", "x", pax_headers={"mtime": text}) for number, text in enumerate(times)]
    await store.import_path(str(oci_layout(tmp_path / "layout", [tar(members)])), "times")
    (layer,) = image_layers(store.resolve("times"))
    assert [os.stat(f"{layer}/f{number}").st_mtime_ns for number in range(len(times))] == list(times.values())


@requires("namespaces")
async def test_a_workspace_that_is_a_link_stays_a_link(tmp_path: Path, client: NodeClient) -> None:
    layer = tar([directory("etc"), directory("srv"), symlink("workspace", "/srv")])
    await client.call("image_import", path=str(oci_layout(tmp_path / "layout", [layer])), name="linked")
    endpoint = (await client.create("linked", image="linked"))["endpoint"]
    assert stat.S_ISLNK((await ask(endpoint, "stat", path="/workspace"))["mode"])


async def test_one_image_under_several_names_is_one_image(tmp_path: Path, store: ImageStore) -> None:
    """`docker save` writes such an archive; one with several images is refused with a remedy."""
    layout = oci_layout(tmp_path / "layout", [tar([file("f", "x")])])
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    named = [{**entry, "annotations": {"org.opencontainers.image.ref.name": name}} for name in ("one", "two")]
    (layout / "index.json").write_text(json.dumps({"manifests": named}))
    await store.import_path(str(layout), "several")
    (layout / "index.json").write_text(json.dumps({"manifests": [named[0], {**named[1], "digest": "sha256:" + "0" * 64}]}))
    with pytest.raises(HoldfastError, match="save one at a time"):
        await store.import_path(str(layout), "others")


@pytest.mark.parametrize("variants", [("v3", ""), ("v4", "v1"), ("", "v2"), ("v3", None)])
async def test_the_variant_that_every_processor_runs_is_chosen(tmp_path: Path, store: ImageStore, variants: tuple[str, str | None]) -> None:
    layout = oci_layout(tmp_path / "layout", [tar([file("f", "x")])])
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    entries = [
        {**entry, "platform": {"architecture": architecture, "os": "linux", **({"variant": variant} if variant is not None else {})}}
        for variant in variants
    ]
    entries[0 if variants[0] else 1]["digest"] = "sha256:" + "0" * 64
    (layout / "index.json").write_text(json.dumps({"manifests": entries}))
    await store.import_path(str(layout), "variants")


async def test_a_signature_does_not_count_as_a_second_image(tmp_path: Path, store: ImageStore) -> None:
    layout = oci_layout(tmp_path / "layout", [tar([file("f", "x")])])
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    signature = {"digest": "sha256:" + "0" * 64, "artifactType": "application/vnd.dev.cosign.artifact.sig.v1+json"}
    (layout / "index.json").write_text(json.dumps({"manifests": [signature, entry]}))
    await store.import_path(str(layout), "signed")


async def test_unpaired_surrogates_in_a_configuration_are_replaced(tmp_path: Path, store: ImageStore) -> None:
    config = {"Env": ["HALF=\ud800x", "WHOLE=\N{GRINNING FACE}"], "WorkingDir": "/\udc00"}
    await store.import_path(str(oci_layout(tmp_path / "layout", [tar([file("f", "x")])], config)), "halves")
    spec = store.resolve("halves")
    assert (spec.env, spec.workdir) == ({"HALF": "\ufffdx", "WHOLE": "\N{GRINNING FACE}"}, "/\ufffd")


async def test_images_share_their_layers(tmp_path: Path, store: ImageStore) -> None:
    await store.import_path(str(oci_layout(tmp_path / "one", [BASE])), "one")
    await store.import_path(str(oci_layout(tmp_path / "two", [BASE, TOP])), "two")
    assert store.resolve("one").layers[-1] == store.resolve("two").layers[-1]
    await store.remove("one")
    assert os.path.isdir(store.resolve("two").layers[-1])
    await store.remove("two")
    assert os.listdir(tmp_path / "images/layers") == []


async def test_the_store_survives_restarts_and_crashes(tmp_path: Path, store: ImageStore, caplog: pytest.LogCaptureFixture) -> None:
    await store.import_path(str(oci_layout(tmp_path / "one", [BASE])), "one")
    (tmp_path / "images/tmp/half/etc").mkdir(parents=True)
    (tmp_path / "images/layers" / ("0" * 64)).mkdir()
    (tmp_path / "images/index/truncated.json").write_text('{"name": "docker.io/lib')
    (tmp_path / "images/index/gone.json").write_text(
        '{"name": "docker.io/library/gone:latest", "digest": "d", "layers": ["sha256:1"], "size_bytes": 1, "created": ""}'
    )
    again = ImageStore(str(tmp_path / "images"), None)
    again.open()
    assert "its record truncated.json cannot be read" in caplog.text
    assert "the image docker.io/library/gone:latest has to be imported again" in caplog.text
    assert [image["name"] for image in again.list()] == ["host", "one"]
    assert again.resolve("one") == store.resolve("one")
    assert os.listdir(tmp_path / "images/tmp") == []
    assert len(os.listdir(tmp_path / "images/layers")) == 1


async def test_concurrent_imports_do_not_disturb_each_other(tmp_path: Path, store: ImageStore) -> None:
    layout = oci_layout(tmp_path / "layout", [BASE, TOP])
    await asyncio.gather(*(store.import_path(str(layout), f"copy-{number % 3}") for number in range(9)))
    assert [image["name"] for image in store.list()] == ["host", "copy-0", "copy-1", "copy-2"]


async def test_pulling_needs_skopeo(store: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HoldfastError) as refused:
        await store.pull("python:3.11-slim")
    assert refused.value.code == "unsupported"
    assert "skopeo" in refused.value.hint


async def test_a_pull_is_imported(store: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a fake skopeo that writes a layout, and with ones that fail."""
    layout = oci_layout(tmp_path / "layout", [BASE])
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "skopeo").write_text(f'#!/bin/sh\nfor a; do t=$a; done; t=${{t#oci:}}; cp -r {layout}/. "${{t%:image}}"\n')
    (tools / "skopeo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert (await store.pull("python:3.11-slim"))["name"] == "python:3.11-slim"
    (tools / "skopeo").write_text("#!/bin/sh\necho 'manifest unknown' >&2; exit 1\n")
    with pytest.raises(HoldfastError) as refused:
        await store.pull("no/such")
    assert refused.value.code == "image_not_found"
    (tools / "skopeo").write_text("#!/bin/sh\necho 'dial tcp 10.0.0.1:443: connect: connection refused' >&2; exit 1\n")
    with pytest.raises(HoldfastError) as down:
        await store.pull("no/such")
    assert (down.value.code, down.value.fault, down.value.retryable) == ("image_pull_failed", "infrastructure", True)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.11-slim", "docker.io/library/python:3.11-slim"),
        ("docker.io/library/python:3", "docker.io/library/python:3"),
        ("index.docker.io/a/b", "docker.io/a/b:latest"),
        ("docker://a/b:c", "docker.io/a/b:c"),
        ("localhost/x", "localhost/x:latest"),
        ("reg.example:5000/x/y:z", "reg.example:5000/x/y:z"),
        ("x@sha256:" + "0" * 64, "docker.io/library/x@sha256:" + "0" * 64),
        ("x:1@sha256:" + "0" * 64, "docker.io/library/x@sha256:" + "0" * 64),
    ],
)
def test_names_are_normalised(name: str, full: str) -> None:
    assert names.normalise(name) == full


@pytest.mark.parametrize("name", ["", "A", "../x", "a//b", "a:b:c", "x@sha256:0", "a b", "-x", "a/", "x:" + "t" * 129])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(HoldfastError, match="not an image name"):
        names.normalise(name)


async def test_the_name_host_is_reserved(tmp_path: Path, store: ImageStore) -> None:
    layout = oci_layout(tmp_path / "layout", [BASE])
    for name in ("host", "host:latest", "docker.io/library/host"):
        for attempt in (store.import_path(str(layout), name), store.remove(name)):
            with pytest.raises(HoldfastError) as refused:
                await attempt
            assert refused.value.code == "invalid_argument"
        assert store.resolve(name).digest == "host"


def test_the_host_image_shows_only_public_files(tmp_path: Path, store: ImageStore) -> None:
    (layer,) = store.resolve("host").layers
    secrets = {"shadow", "gshadow", "sudoers", "ssh", "machine-id", "fstab", "environment", "crontab"}
    assert not secrets & set(os.listdir(f"{layer}/etc"))
    assert not os.path.exists(f"{layer}/etc/ssl/private")
    assert os.listdir(f"{layer}/root") == os.listdir(f"{layer}/var/log") == []
    for base, _, files in os.walk(layer):
        for name in files:
            status = os.lstat(os.path.join(base, name))
            assert stat.S_ISLNK(status.st_mode) or status.st_mode & 0o444 == 0o444
            assert not status.st_mode & 0o6000


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
