"""Files over REST as they are: streams, ranges, entity tags, checksums, archives and links without a key, on a real stack."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from holdfast import SandboxClient

from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = [requires("namespaces", "redis", "bash")]


@pytest.fixture
def files(stack: Stack) -> Iterator[tuple[httpx.Client, str]]:
    """A client, and the path of the routes of a sandbox's files."""
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host") as sandbox:
        headers = {"X-API-Key": stack.key}
        with httpx.Client(base_url=stack.url, headers=headers, timeout=120, trust_env=False) as http:
            yield http, f"/sandboxes/{sandbox.id}/files"


def test_a_large_file_goes_both_ways_with_its_checksum(files: tuple[httpx.Client, str]) -> None:
    http, path = files
    content = os.urandom(3_000_000)
    digest = hashlib.sha256(content)
    stated = f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    put = http.put(f"{path}/content", params={"path": "/tmp/deep/a"}, content=content, headers={"Repr-Digest": stated})
    assert (put.status_code, put.json()) == (200, {"path": "/tmp/deep/a", "size": len(content), "sha256": digest.hexdigest()})
    chunked = http.put(f"{path}/content", params={"path": "/tmp/deep/b"}, content=iter([content[:10], content[10:]]))
    assert chunked.json()["sha256"] == digest.hexdigest()
    got = http.get(f"{path}/content", params={"path": "/tmp/deep/a"})
    assert (got.content == content, got.headers["content-length"]) == (True, str(len(content)))
    assert got.headers["content-disposition"] == "attachment", "no page of a sandbox is shown at the service's own address"
    wrong = http.put(f"{path}/content", params={"path": "/tmp/deep/a"}, content=b"other", headers={"Repr-Digest": stated})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "checksum_mismatch")
    assert http.get(f"{path}/content", params={"path": "/tmp/deep/a"}).content == content, "the file is unchanged"
    assert http.get(f"{path}/content", params={"path": "/tmp/none"}).json()["code"] == "file_not_found"


def test_ranges_and_entity_tags(files: tuple[httpx.Client, str]) -> None:
    http, path = files
    http.put(f"{path}/content", params={"path": "/tmp/a"}, content=b"0123456789")

    def get(**headers: str) -> httpx.Response:
        return http.get(
            f"{path}/content", params={"path": "/tmp/a"}, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )

    head = http.head(f"{path}/content", params={"path": "/tmp/a"})
    tag = head.headers["etag"]
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "10", b"")
    for wanted, content, shown in (
        ("bytes=2-4", b"234", "2-4/10"),
        ("bytes=7-", b"789", "7-9/10"),
        ("bytes=-2", b"89", "8-9/10"),
        ("bytes=8-99", b"89", "8-9/10"),
    ):
        part = get(range=wanted)
        assert (part.status_code, part.content, part.headers["content-range"]) == (206, content, f"bytes {shown}")
    beyond = get(range="bytes=10-")
    assert (beyond.status_code, beyond.headers["content-range"], beyond.json()["code"]) == (416, "bytes */10", "invalid_argument")
    for ignored in ("bytes=0-1,3-4", "lines=1-2", "bytes=-"):
        assert get(range=ignored).content == b"0123456789"
    assert get(if_none_match=tag).status_code == 304
    assert get(range="bytes=2-4", if_range=tag).status_code == 206
    assert get(range="bytes=2-4", if_range='"other"').content == b"0123456789"
    http.put(f"{path}/content", params={"path": "/tmp/a"}, content=b"changed")
    assert get(if_none_match=tag).content == b"changed"


def test_archives(files: tuple[httpx.Client, str]) -> None:
    http, path = files
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("one", "sub/two"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    put = http.put(f"{path}/archive", params={"path": "/tmp/tree"}, content=made.getvalue())
    assert (put.status_code, put.json()["path"]) == (200, "/tmp/tree"), put.text
    got = http.get(f"{path}/archive", params={"path": "/tmp/tree"})
    with tarfile.open(fileobj=io.BytesIO(got.content)) as archive:
        assert {member.name.rpartition("/")[2] for member in archive if member.isfile()} == {"one", "two"}


def test_a_link_opens_one_file_in_one_direction(files: tuple[httpx.Client, str], stack: Stack) -> None:
    http, path = files
    http.put(f"{path}/content", params={"path": "/tmp/a"}, content=b"for everybody")
    link = http.post(f"{path}/links", json={"path": "/tmp/a", "expires_s": 60}).json()["url"]
    into = http.post(f"{path}/links", json={"path": "/tmp/b", "method": "PUT"}).json()["url"]
    assert stack.key not in link
    with httpx.Client(timeout=60, trust_env=False) as nobody:
        assert nobody.get(link).content == b"for everybody"
        assert nobody.get(link, headers={"Range": "bytes=4-"}).content == b"everybody"
        assert nobody.put(into, content=b"sent").status_code == 200
        assert nobody.put(link, content=b"x").json()["code"] == "key_invalid"
        assert nobody.get(into).json()["code"] == "key_invalid"
        assert nobody.get(f"{link}x").json()["code"] == "key_invalid"
        other = urlsplit(link)
        listed = nobody.get(f"{stack.url}{path}/list?{other.query}")
        assert (listed.status_code, listed.json()["code"]) == (401, "key_missing"), "it opens no other route"
    assert http.get(f"{path}/content", params={"path": "/tmp/b"}).content == b"sent"
