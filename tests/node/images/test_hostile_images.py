"""Malicious archives are refused with a typed error or made harmless, and nothing outside the store changes."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node.images.layers import LayerLimits
from session_agent.node.images.store import ImageStore
from tests.node.ociimages import (
    Member,
    archive_of,
    digest,
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

SMALL = LayerLimits(entries=200, size_bytes=4 << 20, ratio=100, ratio_free_bytes=1 << 20)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    os.makedirs(tmp_path / "images")
    (tmp_path / "victim").write_text("untouched")
    made = ImageStore(str(tmp_path / "images"), None, SMALL)
    made.open()
    return made


async def refused(store: ImageStore, path: Path, tmp_path: Path) -> str:
    with pytest.raises(HoldfastError) as error:
        await store.import_path(str(path), "bad")
    assert error.value.code == "image_invalid"
    assert (tmp_path / "victim").read_text() == "untouched"
    assert sorted(os.listdir(tmp_path / "images/tmp")) == []
    assert [image["name"] for image in store.list()] == ["host"]
    return error.value.message


OUTSIDE = "../" * 12
HOSTILE: dict[str, Sequence[Member]] = {
    "climbs": [file("../../victim", "owned")],
    "climbs inside": [file("a/../../../victim", "owned")],
    "writes through a link to itself": [symlink("a", "a"), file("a/victim", "owned")],
    "writes through a link to a file": [file("b"), symlink("a", "b"), file("a/victim", "owned")],
    "writes through endless links": [symlink("a", "b/" * 512 + "a"), file("a/victim", "owned")],
    "hard link through a link": [symlink("a", "/etc"), hard_link("b", "a/passwd")],
    "hard link to outside": [hard_link("b", OUTSIDE + "etc/passwd")],
    "hard link to a missing file": [hard_link("b", "nothing")],
    "hard link to a directory": [directory("d"), hard_link("b", "d")],
    "hard link to the root": [hard_link("b", ".")],
    "goes through a file": [file("a", "x"), file("a/b", "x")],
    "whiteout of the parent": [file(".wh...", "")],
    "has a name with NUL": [file("a", pax_headers={"path": "x\0y"})],
    "has a name too long": [file("n" * 300)],
    "is too deep": [file("d/" * 600 + "f")],
    "has too many entries": [file(f"f{number}") for number in range(201)],
    "is too large": [file("big", bytes(5 << 20))],
    "has a header too large": [file("a", pax_headers={"comment": "x" * (2 << 20)})],
}


FORMS = [(case, form) for case in HOSTILE for form in ("layout", "root tar") if (case, form) != ("whiteout of the parent", "root tar")]


@pytest.mark.parametrize(("case", "form"), FORMS)
async def test_hostile_layers_are_refused(store: ImageStore, tmp_path: Path, case: str, form: str) -> None:
    layer = tar(HOSTILE[case])
    if form == "layout":
        path = oci_layout(tmp_path / "layout", [layer])
    else:
        path = tmp_path / "root.tar"
        path.write_bytes(layer)
    await refused(store, path, tmp_path)


async def test_strange_members_are_made_harmless(store: ImageStore, tmp_path: Path) -> None:
    members = [
        file("/etc/absolute", "inside"),
        special("disk", tarfile.BLKTYPE, devmajor=8),
        special("tty", tarfile.CHRTYPE, devmajor=5),
        special("pipe", tarfile.FIFOTYPE),
        file("setuid", "x", 0o6755),
        file("replaced", "old"), directory("replaced"), file("replaced/now", "new"),
        directory("dir"), file("dir/in"), symlink("dir", "/etc"),
        file("owner", uid=1 << 40), file("future", mtime=1e30),
        symlink("loop", "loop"), symlink("out", "/etc/shadow"),
        file("again", "1"), file("again", "2"), hard_link("again", "again"),
    ]  # fmt: skip
    await store.import_path(str(oci_layout(tmp_path / "layout", [tar(members)])), "odd")
    (layer,) = (Path(path) for path in image_layers(store.resolve("odd")))
    assert sorted(os.listdir(layer)) == [
        "again", "dir", "disk", "etc", "future", "loop", "out", "owner", "pipe", "replaced", "setuid", "tty",
    ]  # fmt: skip
    assert os.stat(layer / "disk").st_rdev == os.stat(layer / "tty").st_rdev == 0, "whiteouts, which a sandbox does not see"
    assert (layer / "etc/absolute").read_text() == "inside"
    assert (layer / "replaced/now").read_text() == "new"
    assert os.readlink(layer / "dir") == "/etc"
    assert (layer / "again").read_text() == "2"
    root = os.geteuid() == 0
    assert os.stat(layer / "setuid").st_mode & 0o6000 == (0o6000 if root else 0), "as root the store is closed to all others"
    assert os.stat(layer / "owner").st_uid == (65534 if root else os.geteuid())


async def test_links_of_a_layer_are_followed_inside_it(store: ImageStore, tmp_path: Path) -> None:
    """As in a chroot: archives that merge packages have files of lib/ behind a link from lib to usr/lib."""
    members = [
        directory("usr/lib", mtime=5), symlink("lib", "usr/lib"), file("lib/merged", "1"), directory("lib/below", mtime=7),
        symlink("up", OUTSIDE + "usr"), file("up/victim", "2"), symlink("far", "/tmp/made"), file("far/victim", "3"),
        symlink("chain", "lib/../../up/lib/."), hard_link("chain/again", "lib/merged"), directory("usr/lib", mtime=9),
    ]  # fmt: skip
    await store.import_path(str(oci_layout(tmp_path / "layout", [tar(members)])), "linked")
    assert (tmp_path / "victim").read_text() == "untouched"
    (layer,) = (Path(path) for path in image_layers(store.resolve("linked")))
    assert sorted(os.listdir(layer / "usr/lib")) == ["again", "below", "merged"]
    assert os.stat(layer / "usr/lib/again").st_nlink == 2
    assert (os.stat(layer / "usr/lib").st_mtime, os.stat(layer / "usr/lib/below").st_mtime) == (9, 7)
    assert (layer / "usr/victim").read_text() == "2"
    assert (layer / "tmp/made/victim").read_text() == "3"
    assert os.readlink(layer / "lib") == "usr/lib"


async def test_links_of_deep_paths_take_few_steps(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of some kilobytes has thousands of such members: each must not walk from the root for each of its parts."""
    deep, count = "d/" * 250, 10
    up = symlink(deep + "up", "../" * 100 + "d/" * 100)
    steps: list[object] = []
    real_open = os.open

    def counted(*arguments: Any, **options: Any) -> int:
        steps.append(arguments[0])
        return real_open(*arguments, **options)

    monkeypatch.setattr(os, "open", counted)
    for members in ([], [file(f"{deep}up/{number}") for number in range(count)]):
        steps.clear()
        await store.import_path(str(oci_layout(tmp_path / str(len(members)), [tar([directory(deep), up, *members])])), "deep")
    assert len(steps) < (count + 1) * 10 * 250
    (layer,) = (Path(path) for path in image_layers(store.resolve("deep")))
    assert len(os.listdir(layer / deep)) == count + 1


async def test_deep_volumes_in_many_layers_take_few_steps(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer may occur a hundred times and an image declare hundreds of volumes: none may walk its whole path for each part."""
    depth, count = 100, 20
    lower, upper = tar([directory("d/" * depth)]), tar([directory("d/" * (depth // 2))])
    calls, real_lstat = 0, os.lstat

    def counted(*arguments: Any, **options: Any) -> os.stat_result:
        nonlocal calls
        calls += 1
        return real_lstat(*arguments, **options)

    layout = oci_layout(tmp_path / "layout", [lower, *[upper] * count], {"Volumes": {"/d" * depth: {}}})
    monkeypatch.setattr(os, "lstat", counted)
    await store.import_path(str(layout), "deep")
    assert calls < 10 * depth * count


async def test_a_compression_bomb_is_refused_by_its_ratio(store: ImageStore, tmp_path: Path) -> None:
    bomb = gzip.compress(tar([file("zeros", bytes(3 << 20))]))
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(bomb)
    assert "times its size" in await refused(store, path, tmp_path)


def _break_blob(layout: Path) -> None:
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda item: item.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(bytes(data))


def _truncate_blob(layout: Path) -> None:
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda item: item.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-40])


def _recompress(layout: Path) -> None:
    """Compress the same content to other bytes: only the digest of the blob differs."""
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda item: item.stat().st_size)
    blob.write_bytes(gzip.compress(gzip.decompress(blob.read_bytes()), 1, mtime=1))


def _index(text: str) -> Callable[[Path], None]:
    def change(layout: Path) -> None:
        (layout / "index.json").write_text(text)

    return change


def _blob_is_a_link(layout: Path) -> None:
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda item: item.stat().st_size)
    blob.unlink()
    blob.symlink_to("/etc/passwd")


def _blob_is_a_pipe(layout: Path) -> None:
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda item: item.stat().st_size)
    blob.unlink()
    os.mkfifo(blob)


@pytest.mark.parametrize(
    "change",
    [
        _break_blob,
        _recompress,
        _blob_is_a_pipe,
        _truncate_blob,
        _blob_is_a_link,
        _index("not json"),
        _index("[]"),
        _index("{}"),
        _index(json.dumps({"manifests": [{"digest": "sha256:../../../../etc/passwd"}]})),
        _index(json.dumps({"manifests": [{"digest": digest(b"nothing")}]})),
        _index(json.dumps({"manifests": [{"digest": 5}]})),
        _index("[" * 100_000),
        _index(" " * (9 << 20)),
    ],
)
async def test_damaged_layouts_are_refused(store: ImageStore, tmp_path: Path, change: Callable[[Path], None]) -> None:
    layout = oci_layout(tmp_path / "layout", [tar([file("f", os.urandom(5000))])])
    change(layout)
    await refused(store, layout, tmp_path)


async def test_a_layer_that_does_not_match_its_config_is_refused(store: ImageStore, tmp_path: Path) -> None:
    layer = tar([file("f", "x")])
    path = docker_archive(tmp_path / "image.tar", [layer])
    other = docker_archive(tmp_path / "other.tar", [tar([file("f", "y")])])
    with tarfile.open(path) as one, tarfile.open(other) as two, tarfile.open(tmp_path / "mixed.tar", "w") as mixed:
        for name, source in (("config.json", one), ("manifest.json", one), ("0/layer.tar", two)):
            mixed.addfile(source.getmember(name), source.extractfile(name))
    await refused(store, tmp_path / "mixed.tar", tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"Config": "../../etc/passwd"},
        {"Config": "/etc/passwd"},
        {"Config": None},
        {"Layers": ["../victim"]},
        {"Layers": ["0/layer.tar", "0/layer.tar"]},
        {"Layers": "0/layer.tar"},
        {"Layers": [""]},
    ],
)
async def test_docker_archives_with_wrong_paths_are_refused(store: ImageStore, tmp_path: Path, changes: dict[str, Any]) -> None:
    path = docker_archive(tmp_path / "image.tar", [tar([file("f", "x")])], **changes)
    await refused(store, path, tmp_path)


async def test_a_docker_layer_that_is_a_link_to_outside_is_refused(store: ImageStore, tmp_path: Path) -> None:
    layer = tar([file("f", "x")])
    body = {"rootfs": {"diff_ids": [digest(layer)]}}
    entry = [{"Config": "config.json", "Layers": ["layer.tar"]}]
    members = [
        file("config.json", json.dumps(body)),
        file("manifest.json", json.dumps(entry)),
        symlink("layer.tar", "../../../victim"),
    ]
    (tmp_path / "image.tar").write_bytes(tar(members))
    await refused(store, tmp_path / "image.tar", tmp_path)


@pytest.mark.parametrize("data", [b"", b"not a tar at all", os.urandom(4096), b"\x1f\x8b" + b"x" * 100, b"\xfd7zXZ\x00bad"])
async def test_a_file_that_is_no_image_is_refused(store: ImageStore, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    await refused(store, tmp_path / "file", tmp_path)


async def test_a_missing_file_is_refused(store: ImageStore, tmp_path: Path) -> None:
    assert "no file" in await refused(store, tmp_path / "nothing", tmp_path)


async def test_an_archive_whose_index_is_a_link_is_refused(store: ImageStore, tmp_path: Path) -> None:
    layout = oci_layout(tmp_path / "layout", [tar([file("f", "x")])])
    (layout / "index.json").unlink()
    (layout / "index.json").symlink_to("/etc/passwd")
    await refused(store, archive_of(layout, tmp_path / "a.tar"), tmp_path)
