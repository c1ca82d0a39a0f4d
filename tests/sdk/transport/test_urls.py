"""URLs are split and quoted as by ``urllib.parse``, also where that module is not used."""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import quote, urlencode, urlsplit

import pytest
from holdfast._urls import address_of, query_of, quoted
from hypothesis import given
from hypothesis import strategies as st

PLAIN = st.text("aZ0._-/", max_size=8)
TEXTS = st.one_of(PLAIN, st.text(max_size=8))


@given(TEXTS)
def test_parts_of_paths(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert quoted(text) == quote(text, safe="")
    assert quoted(text, "/:@") == quote(text, safe="/:@")


@given(st.lists(st.tuples(st.sampled_from(["label", "limit"]), TEXTS), max_size=3))
def test_queries(pairs: list[tuple[str, str]]) -> None:
    pairs = [(name, value.encode("utf-8", "ignore").decode()) for name, value in pairs]
    assert query_of(pairs) == urlencode(pairs)


def test_booleans_in_a_query_are_lower_case() -> None:
    assert query_of([("all", True), ("limit", 5)]) == "all=true&limit=5"


HOSTS = st.one_of(PLAIN, st.text("aé[]:@%1", max_size=6))


@given(st.sampled_from(["http", "https", "HTTP"]), HOSTS, st.sampled_from(["", ":1", ":65535"]), PLAIN)
def test_addresses(scheme: str, host: str, port: str, path: str) -> None:
    url = f"{scheme}://{host}{port}/{path}"
    try:
        parts = urlsplit(url)
        expected = parts.hostname and parts.port != 0 and not parts.username
    except ValueError:
        expected = None
    if not expected:
        with pytest.raises(ValueError, match=r"malformed|user"):
            address_of(url)
        return
    found = address_of(url)
    assert (found.tls, found.host, found.path) == (parts.scheme == "https", parts.hostname, parts.path)
    assert found.port == (parts.port or (443 if found.tls else 80))
    assert found.authority == parts.netloc.rpartition("@")[2]


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://x:0", "http://x:65536", "http://x:٣", "http://u@x", "http://x?a=1", "http://x/#a"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"malformed|must not contain"):
        address_of(url)


def test_a_plain_address_does_not_import_urllib_parse() -> None:
    use = "address_of('http://127.0.0.1:1/a'); quoted('sb-1'); query_of([('limit', 5)])"
    code = f"import sys; from holdfast._urls import *; {use}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"urllib.parse", "ipaddress"} & set(done.stdout.split())
