"""Files of a sandbox in the page: upload and download of any size, by choosing and by dropping, folders, archives, and hostile names."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast import SandboxClient
from playwright.sync_api import Page, expect

from tests.page.conftest import picture
from tests.page.test_views import check_accessible

OpenPage = Callable[..., Page]
DROP = """
  ([names, text]) => {
    const data = new DataTransfer();
    for (const name of names) data.items.add(new File([text], name));
    const more = { dataTransfer: data, bubbles: true, cancelable: true };
    for (const type of ["dragover", "drop"]) document.querySelector(".files").dispatchEvent(new DragEvent(type, more));
  }
"""
LARGE_BYTES = 48 * 1024 * 1024
"""More than a request of JSON may have."""


def open_folder(page: Page, *names: str) -> None:
    page.get_by_role("link", name="/", exact=True).click()
    for name in names:
        page.get_by_role("link", name=name, exact=True).click()


def test_upload_and_download(open_page: OpenPage, client: SandboxClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * 300
    (tmp_path / "blob.bin").write_bytes(content)
    with client.create_sandbox("host", sandbox_id="files-1") as sandbox:
        sandbox.exec("mkdir -p /tmp/box && echo old > /tmp/box/kept.txt")
        page = open_page("sandboxes/files-1/files")
        page.get_by_role("link", name="/", exact=True).click()
        for name in ("tmp", "box"):
            page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("link", name="kept.txt")).to_be_visible()
        page.get_by_label("Files to upload").set_input_files(tmp_path / "blob.bin")
        expect(page.get_by_role("link", name="blob.bin")).to_be_visible()
        assert sandbox.files.read("/tmp/box/blob.bin") == content
        page.get_by_role("link", name="blob.bin").click()
        with page.expect_download() as download:
            page.locator(".preview").get_by_role("button", name="Download").click()
        assert Path(download.value.path()).read_bytes() == content
        (tmp_path / "kept.txt").write_text("new\n")
        page.get_by_label("Files to upload").set_input_files(tmp_path / "kept.txt")
        page.get_by_role("button", name="Replace file").click()
        expect(page.get_by_text("kept.txt is uploaded")).to_be_visible()
        assert sandbox.files.read("/tmp/box/kept.txt") == b"new\n"
        picture(page, "files")


def test_files_are_dropped_on_the_tab(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="drop-1") as sandbox:
        sandbox.exec("mkdir -p /tmp/box && echo old > /tmp/box/one.txt")
        page = open_page("sandboxes/drop-1/files")
        open_folder(page, "tmp", "box")
        expect(page.get_by_role("link", name="one.txt")).to_be_visible()
        page.evaluate(DROP, [["one.txt", "<b>two.txt"], "dropped"])
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("one.txt exists in /tmp/box. Its content is lost.")
        picture(page, "files-replace")
        page.get_by_role("button", name="Cancel").click()
        assert sandbox.files.read("/tmp/box/one.txt") == b"old\n"
        expect(page.get_by_role("link", name="<b>two.txt")).to_have_count(0)
        page.evaluate(DROP, [["one.txt", "<b>two.txt"], "dropped"])
        page.get_by_role("button", name="Replace file").click()
        expect(page.get_by_role("link", name="<b>two.txt")).to_be_visible()
        assert sandbox.files.read("/tmp/box/one.txt") == sandbox.files.read("/tmp/box/<b>two.txt") == b"dropped"
        page.get_by_role("link", name="one.txt").click()
        expect(page.locator(".preview")).to_contain_text("0644 user 0")


def test_a_folder_is_made_and_downloaded(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="tar-1") as sandbox:
        sandbox.exec("mkdir -p /tmp/box && echo here > /tmp/box/a.txt")
        page = open_page("sandboxes/tar-1/files")
        open_folder(page, "tmp", "box")
        page.get_by_role("button", name="New directory").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("textbox").fill("a/b")
        dialog.get_by_role("button", name="Create directory").click()
        expect(dialog.get_by_role("alert")).to_contain_text("without /")
        dialog.get_by_role("textbox").fill("a.txt")
        dialog.get_by_role("button", name="Create directory").click()
        expect(dialog.get_by_role("alert")).to_contain_text("exists")
        dialog.get_by_role("textbox").fill("made <here>")
        check_accessible(page)
        dialog.get_by_role("button", name="Create directory").click()
        page.get_by_role("link", name="made <here>").click()
        expect(page.get_by_text("This directory is empty")).to_be_visible()
        picture(page, "files-empty")
        page.get_by_role("navigation", name="Path").get_by_role("link", name="box").click()
        expect(page.get_by_role("link", name="a.txt")).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download as tar").click()
        assert download.value.suggested_filename == "box.tar"
        with tarfile.open(fileobj=io.BytesIO(Path(download.value.path()).read_bytes())) as archive:
            assert {Path(name).name for name in archive.getnames()} >= {"a.txt", "made <here>"}


@pytest.mark.soak
def test_a_large_file_goes_both_ways(open_page: OpenPage, client: SandboxClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * (LARGE_BYTES // 256)
    (tmp_path / "large.bin").write_bytes(content)
    with client.create_sandbox("host", sandbox_id="large-1") as sandbox:
        page = open_page("sandboxes/large-1/files")
        open_folder(page, "tmp")
        page.get_by_label("Files to upload").set_input_files(tmp_path / "large.bin")
        expect(page.get_by_text("large.bin is uploaded")).to_be_visible()
        assert sandbox.exec("sha256sum < /tmp/large.bin").stdout.split()[0] == hashlib.sha256(content).hexdigest()
        page.get_by_role("link", name="large.bin").click()
        expect(page.locator(".preview")).to_contain_text("too large to show here")
        with page.expect_download() as download:
            page.locator(".preview").get_by_role("button", name="Download").click()
        assert Path(download.value.path()).stat().st_size == LARGE_BYTES


@pytest.mark.parametrize("path", ["/tmp/page.html", "/tmp/page.svg"])
def test_a_file_opened_by_its_address_runs_nothing(open_page: OpenPage, client: SandboxClient, path: str) -> None:
    """Its address is of the page's own origin: a script there would be the page."""
    with client.create_sandbox("host", sandbox_id="open-1") as sandbox:
        sandbox.files.write(path, "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>")
        page = open_page("sandboxes")
        expect(page.get_by_role("link", name="open-1")).to_be_visible()
        answer = page.context.request.get(f"{page.url.split('/ui')[0]}/ui/api/sandboxes/open-1/files/content", params={"path": path})
        assert answer.status == 200
        assert answer.headers["content-disposition"].startswith("attachment")
        assert (answer.headers["content-security-policy"], answer.headers["x-content-type-options"]) == ("sandbox", "nosniff")
        assert answer.headers["content-type"] == "application/octet-stream"
