"""The heads that pass through a preview: whatever a program answers, nothing of it reaches beyond its own host. Property tests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.faces.previews.heads import Asked, Fields, answer_fields, upgrade_head
from gateway.faces.previews.targets import COOKIES, Target

_NEVER = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer"),
    *(b"transfer-encoding", b"upgrade", b"clear-site-data", b"strict-transport-security", b"alt-svc", b"nel", b"report-to"),
}
_NAMES = st.one_of(
    st.sampled_from(sorted(_NEVER)),
    st.sampled_from([b"set-cookie", b"location", b"content-length", b"content-type", b"service-worker-allowed", b"x-holdfast-ticket"]),
    st.from_regex(rb"[a-z0-9!#$%&'*+.^_`|~-]{1,12}", fullmatch=True),
)
_WORDS = st.sampled_from(
    [
        *(b"a", b"=", b";", b" ", b",", b"\t", b"Domain", b"DOMAIN=x", b"domain =.localhost", b"/", b"//", b":", b"?", b"#", b"\xff", b""),
        *(b"http://", b"https://", b"localhost", b"127.0.0.1", b":8000", b":80001", b"evil.example", b"@", b"connection", b"x-own"),
        *(name.encode() for name in COOKIES),
    ]
)
_VALUES = st.lists(_WORDS, max_size=8).map(b"".join)
_FIELDS = st.lists(st.tuples(_NAMES, _VALUES), max_size=12)
_ASKED = Asked("http", "sandboxes.example:8443")


def _target(*, prefix: bool) -> Target:
    return Target("sb-1", 8000, "/sandboxes/sb-1/ports/8000" if prefix else "")


@given(_FIELDS, st.booleans(), st.sampled_from([101, 200, 204, 302, 304, 500]))
def test_no_answer_reaches_beyond_its_host(fields: Fields, prefix: bool, status: int) -> None:
    passed = answer_fields(fields, _target(prefix=prefix), _ASKED, status)
    nominated = {word.strip().lower() for name, value in fields if name == b"connection" for word in value.split(b",")}
    for name, value in passed:
        assert name not in _NEVER
        assert not name.startswith(b"x-holdfast-")
        assert (name, value) in fields or name in (b"set-cookie", b"location") or prefix
        if (name, value) in fields:
            assert name not in nominated
        if name == b"set-cookie":
            assert not prefix
            assert value.partition(b";")[0].partition(b"=")[0].strip().decode("latin-1") not in COOKIES
            assert not any(part.partition(b"=")[0].strip().lower() == b"domain" for part in value.split(b";")[1:])
    if prefix:
        assert passed.count((b"content-security-policy", b"sandbox")) == 1 + fields.count((b"content-security-policy", b"sandbox"))
    if status in (204, 304):
        assert b"content-length" not in dict(passed)


@given(_VALUES)
def test_an_address_of_another_host_is_passed_unchanged(value: bytes) -> None:
    (passed,) = answer_fields([(b"location", value)], _target(prefix=False), _ASKED, 302)
    own = (b"http://localhost:8000", b"http://127.0.0.1:8000", b"http://0.0.0.0:8000")
    ends = tuple(start + end for start in own for end in (b"/", b"?", b"#"))
    if value.startswith(ends) or value in own:
        assert passed[1].startswith(b"http://sandboxes.example:8443")
    else:
        assert passed[1] == value


@given(_FIELDS)
def test_the_head_of_an_upgrade_is_one_head(fields: Fields) -> None:
    head = upgrade_head(answer_fields(fields, _target(prefix=False), _ASKED, 101))
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert head.count(b"\r\n\r\n") == 1
    assert head.count(b"connection: ") == 1
