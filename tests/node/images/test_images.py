"""The image store: every accepted format, what of a file is kept, shared layers, and restarts."""

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

from session_agent.node.images.store import ImageStore
from tests.node.ociimages import (
    BASE,
    CONFIG,
    TOP,
    archive_of,
    directory,
    docker_archive,
    file,
    image_layers,
    oci_layout,
    special,
    tar,
)
from tests.support.requires import requires
from tests.support.until import until_async


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


async def test_times_are_exact(tmp_path: Path, store: ImageStore) -> None:
    """A float has too few digits for the nanoseconds that extended headers contain."""
    times = {"1700000000.123456789": 1700000000123456789, "1700000000.1": 1700000000100000000, "-5.5": 0, "9" * 30: 4 * 10**18}
    members = [file(f"f{number}", "x", pax_headers={"mtime": text}) for number, text in enumerate(times)]
    await store.import_path(str(oci_layout(tmp_path / "layout", [tar(members)])), "times")
    (layer,) = image_layers(store.resolve("times"))
    assert [os.stat(f"{layer}/f{number}").st_mtime_ns for number in range(len(times))] == list(times.values())


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


def slow_image(path: Path, name: str) -> Path:
    """An image that takes a while to unpack."""
    path.write_bytes(tar([file(f"{name}-{number}", "x") for number in range(6_000)]))
    return path


async def test_other_images_change_while_one_is_unpacked(tmp_path: Path, store: ImageStore) -> None:
    small = tmp_path / "small.tar"
    small.write_bytes(tar([file("small", "x")]))
    await store.import_path(str(small), "small")
    large = slow_image(tmp_path / "large.tar", "large")
    importing = asyncio.create_task(store.import_path(str(large), "large"))
    await until_async(lambda: os.listdir(tmp_path / "images" / "tmp"), deadline_s=60, what="the unpacking to begin")
    await store.tag("small", "other")
    await store.import_path(str(small), "third")
    await store.remove("other")
    assert not importing.done(), "they waited for the large image"
    assert [image["name"] for image in store.list()] == ["host", "small", "third"]
    await importing
    (layer,) = image_layers(store.resolve("large"))
    assert len(os.listdir(layer)) == 6_000


async def test_an_image_of_an_owner_is_tagged_for_everybody(tmp_path: Path, store: ImageStore) -> None:
    small = tmp_path / "small.tar"
    small.write_bytes(tar([file("small", "x")]))
    await store.import_path(str(small), "small", "ada")
    await store.tag("small", "for-all", "ada", {"Cmd": ["x"]}, shared=True)
    assert store.config("for-all", "bob")["config"] == {"Cmd": ["x"]}
    for owner in ("", "bob"):
        with pytest.raises(HoldfastError, match="no image"):
            await store.tag("small", "stolen", owner, shared=True)


async def test_configurations_are_not_nested_deeply(tmp_path: Path, store: ImageStore) -> None:
    deep: dict[str, object] = {}
    for _ in range(300):
        deep = {"x": deep}
    await store.import_path(str(oci_layout(tmp_path / "layout", [BASE], {"Healthcheck": deep, "Cmd": ["x"]})), "deep")
    assert store.config("deep")["config"] == {"Cmd": ["x"]}
    with pytest.raises(HoldfastError, match="Healthcheck has a wrong form"):
        await store.tag("deep", "deeper", config={"Healthcheck": deep})
    await store.tag("deep", "good", config={"Healthcheck": {"Test": ["CMD", "x"]}})


async def test_a_layer_of_an_image_that_is_being_imported_is_not_removed(tmp_path: Path, store: ImageStore) -> None:
    """The image that had the layer is removed while another one with the same layer is imported."""
    shared, slow = tar([file("shared", "x")]), tar([file(f"slow-{number}", "x") for number in range(6_000)])
    await store.import_path(str(oci_layout(tmp_path / "first", [shared], CONFIG)), "first")
    (layer,) = image_layers(store.resolve("first"))
    second = oci_layout(tmp_path / "second", [shared, slow], CONFIG)
    importing = asyncio.create_task(store.import_path(str(second), "second"))
    await until_async(
        lambda: any("slow-0" in names for _, _, names in os.walk(tmp_path / "images" / "tmp")), deadline_s=60, what="the second layer"
    )
    await store.remove("first")
    assert not importing.done()
    await importing
    assert image_layers(store.resolve("second"))[-1] == layer
    assert os.listdir(layer) == ["shared"]
    await store.remove("second")
    assert os.listdir(tmp_path / "images" / "layers") == []


async def test_an_import_that_fails_leaves_no_layer(tmp_path: Path, store: ImageStore) -> None:
    path = oci_layout(tmp_path / "layout", [BASE, b"not a tar, but so long that nothing takes it for an empty one" * 20], CONFIG)
    with pytest.raises(HoldfastError, match="image_invalid"):
        await store.import_path(str(path), "broken")
    assert os.listdir(tmp_path / "images" / "layers") == os.listdir(tmp_path / "images" / "tmp") == []
