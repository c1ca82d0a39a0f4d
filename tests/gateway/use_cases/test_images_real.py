"""Images over REST on a complete real stack: an archive is uploaded, listed, used and removed; an invalid one is refused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from tests.gateway.checked import Checked
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack

pytestmark = requires("namespaces", "redis")


@pytest_asyncio.fixture
async def call(stack: Stack) -> AsyncIterator[Checked]:
    async with httpx.AsyncClient(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=60) as client:
        yield Checked(client)


def root_file_system() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name in ("bin", "etc", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        text = b"made of a tar\n"
        file = tarfile.TarInfo("etc/origin")
        file.size = len(text)
        archive.addfile(file, io.BytesIO(text))
    return target.getvalue()


async def test_an_archive_becomes_an_image(call: Checked, stack: Stack) -> None:
    made = await call("POST", "/images", params={"name": "team/tiny:1"}, content=root_file_system())
    assert made.status_code == 201, made.text
    assert "tiny" in made.json()["name"]
    names = [image["name"] for image in (await call("GET", "/images")).json()["images"]]
    assert made.json()["name"] in names
    assert list((stack.data / "uploads").iterdir()) == []
    body = {"image": "team/tiny:1", "wait": True, "cpu": 1, "memory": "256Mi"}
    sandbox = (await call("POST", "/sandboxes", json=body)).json()
    where = f"/sandboxes/{sandbox['sandbox_id']}"
    assert (await call("GET", f"{where}/files", params={"path": "/etc/origin"})).json()["size"] == 14
    in_use = await call("DELETE", f"/images/{made.json()['name']}")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "image_in_use")
    await call("DELETE", where)
    assert (await call("DELETE", f"/images/{made.json()['name']}")).status_code == 200
    names = [image["name"] for image in (await call("GET", "/images")).json()["images"]]
    assert made.json()["name"] not in names


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Its own key's owner is no operator; ``OPERATOR`` is."""
    with running_stack({"HOLDFAST_OPERATORS": "operator", "HOLDFAST_IMAGE_FALLBACK": ""}) as running:
        with (running.data / "keys").open("a") as keys:
            for owner in ("operator", "other"):
                keys.write(f"{owner} {hashlib.sha256(_key(owner).encode()).hexdigest()}\n")
        yield running


def _key(owner: str) -> str:
    return "hf_" + owner.ljust(32, "0")


@contextlib.asynccontextmanager
async def _as(stack: Stack, owner: str) -> AsyncIterator[Checked]:
    async with httpx.AsyncClient(base_url=stack.url, headers={"X-API-Key": _key(owner)}, timeout=60) as client:
        yield Checked(client)


async def test_images_of_other_owners_do_not_exist(call: Checked, stack: Stack) -> None:
    async with _as(stack, "other") as other, _as(stack, "operator") as operator:
        archive = root_file_system()
        assert (await call("POST", "/images", params={"name": "mine:1"}, content=archive)).json()["shared"] is False
        assert "mine:1" not in [image["name"] for image in (await other("GET", "/images")).json()["images"]]
        for name in ("mine:1", "none:1"):
            removed = await other("DELETE", f"/images/{name}")
            created = await other("POST", "/sandboxes", json={"image": name, "wait": True})
            assert (removed.status_code, removed.json()["code"]) == (404, "image_not_found")
            assert (created.status_code, created.json()["code"]) == (404, "image_not_found")
        assert (await other("POST", "/images", params={"name": "mine:1"}, content=archive)).status_code == 201
        assert (await other("DELETE", "/images/mine:1")).status_code == 200
        assert "mine:1" in [image["name"] for image in (await call("GET", "/images")).json()["images"]], "another's removal"
        refused = await call("POST", "/images", params={"name": "all:1", "shared": "true"}, content=archive)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
        made = await operator("POST", "/images", params={"name": "all:1", "shared": "true"}, content=archive)
        assert made.json()["shared"] is True
        body = {"image": "all:1", "wait": True, "cpu": 1, "memory": "256Mi"}
        sandbox = (await other("POST", "/sandboxes", json=body)).json()
        assert sandbox["ready"]
        await other("DELETE", f"/sandboxes/{sandbox['sandbox_id']}")
        assert (await other("DELETE", "/images/all:1")).status_code == 403
        assert (await operator("DELETE", "/images/all:1", params={"shared": "true"})).status_code == 200
        assert (await call("DELETE", "/images/mine:1")).status_code == 200


async def test_a_pull_from_this_machine_is_refused(call: Checked) -> None:
    for name in ("127.0.0.1:22/x", "localhost:8765/x", "169.254.169.254/x", "10.0.0.1:443/x"):
        refused = await call("POST", "/images/pull", json={"name": name})
        assert refused.status_code in (422, 502), refused.text
        assert refused.json()["fault"] == "caller"


async def test_an_invalid_archive_is_refused_and_leaves_nothing(call: Checked, stack: Stack) -> None:
    for content in (b"", b"not an archive" * 100):
        answer = await call("POST", "/images", params={"name": "bad:1"}, content=content)
        assert (answer.status_code, answer.json()["code"]) == (422, "image_invalid")
    assert list((stack.data / "uploads").iterdir()) == []
    for name in ("", "../x", "a b", "x" * 300):
        answer = await call("POST", "/images", params={"name": name}, content=b"x")
        assert answer.json()["code"] == "invalid_argument"
    assert (await call("DELETE", "/images/no/such:1")).json()["code"] == "image_not_found"


@requires("root")
async def test_an_archive_that_does_not_fit_on_the_disk_is_refused(call: Checked, stack: Stack) -> None:
    """The disk may be full where archives arrive or where images are stored."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        big = tarfile.TarInfo("big")
        big.size = 1 << 20
        archive.addfile(big, io.BytesIO(bytes(big.size)))
    for place in ("uploads", "images/tmp"):
        folder = stack.data / place
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
        try:
            answer = await call("POST", "/images", params={"name": "too-big:1"}, content=body.getvalue())
            assert (answer.status_code, answer.json()["code"]) == (507, "no_space"), answer.text
            assert "No space left" in answer.json()["detail"]
            assert answer.json()["hint"]
            assert list(folder.iterdir()) == []
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    assert (await call("POST", "/images", params={"name": "too-big:1"}, content=body.getvalue())).status_code == 201
    assert (await call("DELETE", "/images/too-big:1")).status_code == 200
