"""Images in the page: a pull with its progress, begun here or by another client, its failures, an import by upload, and removal."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdfast import HoldfastError, SandboxClient
from playwright.sync_api import Page, expect

from tests.node.images.registry import Registry, registry
from tests.node.ociimages import BASE, directory, docker_archive, file, oci_layout, tar
from tests.page.conftest import picture
from tests.page.test_views import check_accessible
from tests.support.requires import missing, unmet
from tests.support.stack import Stack, running_stack

OpenPage = Callable[..., Page]
CERTIFICATES = Path("/etc/containers/certs.d")
PAYLOAD_BYTES = 3_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with one image, whose layers come when the test permits it."""
    for need in ("namespaces", "redis", "chromium", "skopeo"):
        if (reason := missing(need)) is not None:
            unmet(need, reason)
    if os.geteuid() != 0:
        pytest.skip("skopeo reads certificates of registries in /etc/containers, which root may write")
    folder = tmp_path_factory.mktemp("registry")
    layer = tar([directory("etc"), file("etc/os-release", "ID=test\n"), directory("tmp"), file("payload", os.urandom(PAYLOAD_BYTES))])
    layout = oci_layout(folder / "layout", [layer])
    with registry(layout, folder / "certificates") as running:
        place = CERTIFICATES / f"localhost:{running.port}"
        place.mkdir(parents=True)
        shutil.copy(folder / "certificates" / "ca.crt", place)
        try:
            yield running
        finally:
            running.held.set()
            shutil.rmtree(place)


@pytest.fixture(scope="module")
def image_stack(served: Registry) -> Iterator[Stack]:
    with running_stack({"HOLDFAST_REGISTRIES": f"localhost:{served.port}"}) as stack:
        yield stack


@pytest.fixture
def open_images(browse: Callable[..., Page], image_stack: Stack) -> OpenPage:
    return lambda **options: browse(image_stack.url, image_stack.key, "images", **options)


def hold(served: Registry) -> None:
    served.held.clear()
    served.asked.clear()


def test_a_pull_with_its_progress(open_images: OpenPage, image_stack: Stack, served: Registry) -> None:
    name = f"localhost:{served.port}/team/tools:1"
    page = open_images()
    hold(served)
    page.get_by_label("Image to pull").fill(name)
    page.get_by_role("button", name="Pull").click()
    pull = page.locator(".pull", has_text=name)
    expect(pull).to_contain_text("fetching")
    picture(page, "images-pulling")
    check_accessible(page)
    page.goto(page.url.replace("images", "doctor"))
    expect(page.get_by_role("heading", name="Doctor")).to_be_visible()
    page.goto(page.url.replace("doctor", "images"))
    expect(pull).to_contain_text("fetching")
    served.held.set()
    expect(page.get_by_text(f"{name} is here")).to_be_visible()
    expect(pull).to_have_count(0)
    row = page.locator("tbody tr", has_text=name)
    expect(row).to_contain_text("MiB")
    with SandboxClient(image_stack.url, image_stack.key) as client:
        with client.create_sandbox(name, sandbox_id="user-of-it"):
            expect(row.get_by_role("link")).to_have_text("1")
            expect(row).to_contain_text("in use")
            picture(page, "images")
            row.get_by_role("link").click()
            expect(page.get_by_role("link", name="user-of-it")).to_be_visible()
            page.go_back()
        expect(row.get_by_role("button", name="Remove")).to_be_visible()
        row.get_by_role("button", name="Remove").click()
        page.get_by_role("button", name="Remove image").click()
        expect(page.get_by_text("The image is removed")).to_be_visible()
        expect(row).to_have_count(0)
        assert name not in [one.name for one in client.images.list()]


@pytest.mark.soak
def test_a_pull_that_another_client_began(open_images: OpenPage, image_stack: Stack, served: Registry) -> None:
    name = f"localhost:{served.port}/team/other:2"
    page = open_images()
    expect(page.get_by_role("heading", name="Images")).to_be_visible()
    hold(served)
    with SandboxClient(image_stack.url, image_stack.key) as client:
        pulling = threading.Thread(target=client.images.pull, args=(name,))
        pulling.start()
        try:
            expect(page.locator(".pull", has_text=name)).to_contain_text("begun elsewhere")
        finally:
            served.held.set()
            pulling.join(60)
    expect(page.locator(".pull")).to_have_count(0)
    expect(page.locator("tbody tr", has_text=name)).to_be_visible()


@pytest.mark.soak
def test_pulls_that_fail_say_whose_fault_it_is(open_images: OpenPage, image_stack: Stack, served: Registry) -> None:
    page = open_images()
    for name in ("registry.invalid/none:1", f"localhost:{served.port}/team/tools@sha256:{'0' * 64}"):
        page.get_by_label("Image to pull").fill(name)
        page.get_by_role("button", name="Pull").click()
    failed = page.locator(".pull.failed")
    expect(failed).to_have_count(2)
    expect(failed.first).to_contain_text("may not be pulled from registry.invalid")
    expect(failed.first).to_contain_text("caller")
    picture(page, "images-failed")
    check_accessible(page)
    failed.first.get_by_role("button", name="Dismiss").click()
    expect(failed).to_have_count(1)
    with SandboxClient(image_stack.url, image_stack.key) as client, pytest.raises(HoldfastError):
        client.images.pull(f"localhost:{served.port}/team/none@sha256:{'1' * 64}")
    expect(failed).to_have_count(2)  # of the other client


def test_an_import_by_upload(open_images: OpenPage, image_stack: Stack, tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "My Tools.tar", [BASE])
    page = open_images()
    page.get_by_label("Archive").set_input_files(archive)
    form = page.get_by_role("dialog")
    expect(form.get_by_role("textbox", name="Name of the image")).to_have_value("my-tools:1")
    form.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_text("my-tools:1 is here")).to_be_visible()
    row = page.locator("tbody tr", has_text="my-tools:1")
    expect(row).to_be_visible()
    (tmp_path / "broken.tar").write_bytes(b"no archive" * 1000)
    page.get_by_label("Archive").set_input_files(tmp_path / "broken.tar")
    page.get_by_role("button", name="Import", exact=True).click()
    failed = page.locator(".pull.failed")
    expect(failed).to_contain_text("caller")
    with SandboxClient(image_stack.url, image_stack.key) as client:
        assert "my-tools:1" in [one.name for one in client.images.list()]
        client.images.remove("my-tools:1")
    small = open_images(width=390, height=844)
    expect(small.get_by_role("heading", name="Images")).to_be_visible()
    assert small.evaluate("document.documentElement.scrollWidth") <= 390
    picture(small, "images-phone")
