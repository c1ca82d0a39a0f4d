"""Names of images: how they are normalised, several for one image, the reserved one, and pulling by name."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node.images import names
from session_agent.node.images.store import ImageStore
from tests.node.ociimages import (
    BASE,
    file,
    oci_layout,
    tar,
)


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


async def test_pulling_needs_skopeo(store: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HoldfastError) as refused:
        await store.pull("python:3.11-slim")
    assert refused.value.code == "unsupported"
    assert "skopeo" in refused.value.hint


async def test_a_pull_is_imported(store: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a fake skopeo that writes a layout, and with ones that fail."""
    layout = oci_layout(tmp_path / "layout", [BASE])
    with tempfile.TemporaryDirectory(prefix="holdfast-tools-", dir="/tmp") as folder:  # which a process without rights can read
        os.chmod(folder, 0o755)
        await _pull_with_fakes(store, monkeypatch, layout, Path(folder))


async def _pull_with_fakes(store: ImageStore, monkeypatch: pytest.MonkeyPatch, layout: Path, tools: Path) -> None:
    shutil.copytree(layout, tools / "layout")
    (tools / "skopeo").write_text(f'#!/bin/sh\nfor a; do t=$a; done; t=${{t#oci:}}; cp -r {tools}/layout/. "${{t%:image}}"\n')
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
