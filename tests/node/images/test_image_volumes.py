"""Volumes and paths that an image's configuration names."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node.images.store import ImageStore
from tests.node.harness import NodeClient, ask
from tests.node.ociimages import (
    directory,
    file,
    image_layers,
    oci_layout,
    symlink,
    tar,
)
from tests.support.requires import requires


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
