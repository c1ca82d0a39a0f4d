"""The AsyncAPI document beside the golden vectors, and the page of both documents."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgpack
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from gateway.faces.rest.asyncapi import document
from gateway.use_cases import projects
from tests.gateway.faces.test_tenants import OLGA, with_operator
from tests.gateway.harness import Served
from tests.support.requires import requires

VECTORS = Path(__file__).parents[3] / "schemas" / "vectors" / "frames.json"
FRAMES = [(vector["frame"].partition("(")[0], bytes.fromhex(vector["hex"])) for vector in json.loads(VECTORS.read_text())]


def plain(value: Any) -> Any:
    """What msgpack decodes, with bytes and numeric names in a form that JSON has."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def payload(name: str) -> Draft202012Validator:
    return Draft202012Validator(document()["components"]["messages"][name]["payload"])


@pytest.mark.parametrize(("name", "data"), FRAMES)
def test_each_golden_vector_is_a_message_of_the_document(name: str, data: bytes) -> None:
    frame = plain(msgpack.unpackb(data, strict_map_key=False))
    payload(name).validate(frame)
    for at in range(len(frame)):
        wrong = [*frame[:at], None, *frame[at + 1 :]]
        assert not payload(name).is_valid(wrong), "a field of a wrong type is no message of it"
    assert not payload(name).is_valid(frame[:-1])
    assert not payload(name).is_valid([*frame, 0])
    others = {other for other, _ in FRAMES if other != name and payload(other).is_valid(frame)}
    assert not others


def test_the_document_has_the_frames_of_the_vectors_and_no_other() -> None:
    named = set(document()["channels"]["session"]["messages"])
    assert named == {name for name, _ in FRAMES}
    sent = document()["operations"]["sendFrame"]["messages"] + document()["operations"]["receiveFrame"]["messages"]
    assert {one["$ref"].rpartition("/")[2] for one in sent} == named


def test_every_reference_leads_somewhere() -> None:
    text = json.dumps(document())
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        found: Any = document()
        for part in reference.split("/"):
            found = found[part]
    assert document()["channels"]["session"]["x-close-codes"]["4404"] == "sandbox_not_found"


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        self.links.add(given.get("href") or given.get("src") or "")


@requires("redis")
async def test_the_page_needs_no_other_host_and_no_script(served: Served) -> None:
    async with served.client(None) as anyone:
        page = await anyone.get("/docs")
        assert (await anyone.get("/asyncapi.json")).json() == document()
    links = Links()
    links.feed(page.text)
    assert "script" not in links.tags
    assert {link for link in links.links if link.startswith("#")} <= {f"#{one}" for one in links.ids}
    assert {link for link in links.links if not link.startswith("#")} == {"", "openapi.json", "asyncapi.json"}
    for text in ("/sandboxes/{sandbox_id}/session", "update_sandbox", "GoAway", "command_started", "precondition_failed"):
        assert text in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


@requires("redis")
async def test_every_list_has_pages(served: Served) -> None:
    with_operator(served)
    async with served.client(OLGA) as olga:
        for number in range(5):
            await projects.create(served.gateway, f"p{number}", ["ada"], "none")
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            body = (await olga.get("/projects", params={"limit": 2, "cursor": cursor})).json()
            found += [one["project"] for one in body["projects"]]
            cursor = body["cursor"]
        assert found == [f"p{number}" for number in range(5)]
        for path in ("/projects", "/keys"):
            assert (await olga.get(path, params={"limit": 0})).status_code == 422
            assert (await olga.get(path)).json()["cursor"] is None
        keys = (await olga.get("/keys")).json()["keys"]
        pages = [(await olga.get("/keys", params={"limit": 1})).json()]
        while pages[-1]["cursor"]:
            pages.append((await olga.get("/keys", params={"limit": 1, "cursor": pages[-1]["cursor"]})).json())
        assert [page["keys"][0]["key_id"] for page in pages] == [key["key_id"] for key in keys]
