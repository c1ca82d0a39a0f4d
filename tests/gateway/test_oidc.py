"""Tokens of an identity provider: a small issuer in this process, with keys that it rotates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.identity import oidc
from gateway.identity.oidc import OidcSettings, Tokens
from gateway.settings import from_environment
from gateway.use_cases import projects
from tests.gateway.harness import ADA, Served
from tests.support.requires import requires

pytestmark = requires("redis")

AUDIENCE = "holdfast"
EVERYTHING = "openid holdfast:read holdfast:create holdfast:exec holdfast:files"


class Issuer:
    """Serves its configuration and public keys, and signs tokens."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.fetches = 0
        self.silent = False
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.claimed = ""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.set()
                issuer.answers.wait(30)
                if issuer.silent:
                    self.send_error(500)
                    return
                body = json.dumps(issuer.document(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.add("k1")

    def document(self, path: str) -> dict[str, Any]:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.claimed or self.url, "jwks_uri": f"{self.url}/keys"}
        self.fetches += 1
        documents = [self.public(name, key) for name, key in self.keys.items()]
        return {"keys": [*documents, {"kty": "unknown", "kid": "k9"}, "nonsense"]}

    def public(self, name: str, key: Any) -> dict[str, Any]:
        kind = ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else RSAAlgorithm
        return {**json.loads(kind.to_jwk(key.public_key())), "kid": name, "use": "sig"}

    def add(self, name: str) -> None:
        self.keys[name] = rsa.generate_private_key(65537, 2048)

    def token(self, key: str = "k1", algorithm: str = "RS256", secret: Any = None, **claims: Any) -> str:
        body = {"iss": self.url, "aud": AUDIENCE, "sub": "eve", "exp": time.time() + 600, "scope": EVERYTHING, **claims}
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, self.keys[key] if secret is None else secret, algorithm=algorithm, headers={"kid": key})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def with_tokens(served: Served, issuer: Issuer, **more: str) -> Served:
    tenants = served.gateway.tenants
    tenants.others = Tokens(replace(OidcSettings(issuer.url, AUDIENCE), **more), tenants.others)
    return served


async def answer(served: Served, token: str, method: str = "GET", path: str = "/sandboxes", **more: Any) -> tuple[int, Any]:
    async with served.client(None) as client:
        found = await client.request(method, path, headers={"Authorization": f"Bearer {token}"}, **more)
        return found.status_code, found.json()


async def test_claims_are_owner_project_and_scopes(served: Served, issuer: Issuer) -> None:
    with_tokens(served, issuer, project_claim="group")
    token = issuer.token(group="lab")
    status, made = await answer(served, token, "POST", json={"image": "host", "sandbox_id": "x1", "wait": True})
    assert (status, made["ready"]) == (200, True)
    assert (await served.gateway.record("eve+lab", "x1")).status == "ready"
    assert (await answer(served, issuer.token(group="other")))[1]["sandboxes"] == []
    assert (await answer(served, issuer.token(group="lab", sub="ada")))[1]["sandboxes"] == []
    status, refused = await answer(served, issuer.token(group="lab", scope="openid holdfast:create"))
    assert (status, refused["code"]) == (403, "scope_missing")
    assert (await answer(served, issuer.token(group="lab", scope=["holdfast:read", 7])))[0] == 200
    assert (await answer(served, issuer.token(group="lab"), path="/keys"))[0] == 403, "admin only where it is claimed"
    assert (await answer(served, issuer.token(group="lab", scope="holdfast:admin"), path="/keys"))[0] == 200
    assert issuer.fetches == 1, "the keys are kept"
    async with served.client(ADA) as ada:
        assert (await ada.get("/sandboxes")).status_code == 200, "keys of the file stay valid"


def signed_with_the_public_key(issuer: Issuer) -> str:
    """A token whose algorithm takes a shared secret, for which the public key would do."""
    _, body, _ = issuer.token(group="").split(".")
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"k1"}').rstrip(b"=").decode()
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    secret = issuer.keys["k1"].public_key().public_bytes(*form)
    signature = hmac.digest(secret, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_what_is_no_valid_token_is_an_unknown_key(served: Served, issuer: Issuer) -> None:
    with_tokens(served, issuer, project_claim="group")
    other = rsa.generate_private_key(65537, 2048)
    assert (await answer(served, issuer.token(group="")))[0] == 200
    head, body, signature = issuer.token(group="").split(".")
    none = jwt.encode(
        {"iss": issuer.url, "aud": AUDIENCE, "sub": "eve", "exp": time.time() + 60},
        None,  # type: ignore[arg-type]
        algorithm="none",
        headers={"kid": "k1"},
    )
    issuer.keys["k7"] = other
    unknown = issuer.token("k7", group="")
    wrong = {
        "another issuer": issuer.token(iss="https://elsewhere.example"),
        "another audience": issuer.token(aud="other", group=""),
        "no audience": issuer.token(aud=None, group=""),
        "expired": issuer.token(exp=time.time() - 100, group=""),
        "never expires": issuer.token(exp=None, group=""),
        "not yet": issuer.token(nbf=time.time() + 100, group=""),
        "another key": issuer.token(secret=other, group=""),
        "a shared secret": signed_with_the_public_key(issuer),
        "no signature": none,
        "an unknown key": unknown,
        "a changed body": f"{head}.{body[:-2]}AA.{signature}",
        "an owner with a slash": issuer.token(sub="a/b", group=""),
        "no owner": issuer.token(sub=None, group=""),
        "an owner of a project": issuer.token(sub="ada+lab", group=""),
        "a project with a plus": issuer.token(group="a+b"),
        "no project": issuer.token(),
        "not a token": "eyJ.x.y",
        "too long": issuer.token(group="", more="x" * 20_000),
    }
    found = {name: (await answer(served, token)) for name, token in wrong.items()}
    assert {name: (status, body["code"]) for name, (status, body) in found.items()} == dict.fromkeys(wrong, (403, "key_invalid"))
    assert len({body["detail"] for _, body in found.values()}) == 1, "all look alike"


async def test_keys_are_rotated_and_removed(served: Served, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    with_tokens(served, issuer)
    old = issuer.token()
    assert (await answer(served, old))[0] == 200
    issuer.keys["k2"] = ec.generate_private_key(ec.SECP256R1())
    new = issuer.token("k2", "ES256")
    assert (await answer(served, new))[0] == 403, "not more than one fetch in ten seconds"
    monkeypatch.setattr(oidc, "UNKNOWN_KEY_S", 0.0)
    assert (await answer(served, new))[0] == 200
    del issuer.keys["k1"]
    assert (await answer(served, old))[0] == 200, "until the keys are fetched again"
    monkeypatch.setattr(oidc, "KEYS_S", 0.0)
    assert (await answer(served, old))[0] == 403
    assert (await answer(served, new))[0] == 200
    issuer.silent = True
    assert (await answer(served, new))[0] == 200, "a provider that is away changes nothing"


async def test_a_provider_that_hangs_delays_one_request(served: Served, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    with_tokens(served, issuer)
    token = issuer.token()
    assert (await answer(served, token))[0] == 200
    for name in ("KEYS_S", "UNKNOWN_KEY_S"):
        monkeypatch.setattr(oidc, name, 0.0)
    issuer.asked.clear()
    issuer.answers.clear()
    first = asyncio.create_task(answer(served, token))
    await asyncio.to_thread(issuer.asked.wait, 30)
    async with asyncio.timeout(3):
        assert (await answer(served, token))[0] == 200
    assert not first.done()
    issuer.answers.set()
    assert (await first)[0] == 200


async def test_a_provider_that_is_away_is_503(served: Served, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "UNKNOWN_KEY_S", 0.0)
    with_tokens(served, issuer)
    issuer.silent = True
    status, body = await answer(served, issuer.token())
    assert (status, body["code"]) == (503, "identity_unavailable")
    issuer.silent, issuer.claimed = False, "https://elsewhere.example"
    assert (await answer(served, issuer.token()))[0] == 503, "the configuration must be that of the issuer"
    issuer.claimed = ""
    assert (await answer(served, issuer.token()))[0] == 200


async def test_a_token_that_expires_ends_what_it_permitted(served: Served, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "_LEEWAY_S", 0.0)
    with_tokens(served, issuer)
    await projects.create(served.gateway, "lab", ["eve"], "none")
    token = issuer.token(exp=time.time() + 1.5)
    headers = {"Authorization": f"Bearer {token}"}
    async with served.client(None) as client, client.stream("GET", "/events", headers=headers, timeout=30.0) as stream:
        assert stream.status_code == 200
        with contextlib.suppress(httpx.HTTPError):  # the connection ends, as a revoked key's does
            async for _ in stream.aiter_bytes():
                pass
    assert (await answer(served, token))[0] == 403


async def test_a_token_signs_in_to_the_page(served: Served, issuer: Issuer) -> None:
    with_tokens(served, issuer)
    token = issuer.token(groups="x" * 2000)
    async with served.client(None) as client:
        origin = {"Origin": str(client.base_url).rstrip("/")}
        assert (await client.post("/ui/session", json={"key": token}, headers=origin)).status_code == 201
        assert (await client.get("/ui/session")).json()["owner"] == "eve"
        assert (await client.get("/ui/api/sandboxes")).status_code == 200
    async with served.client(None) as client:
        link = (await client.post("/ui/links", headers={"Authorization": f"Bearer {token}"})).json()["url"].rpartition("/")[2]
        assert (await client.post("/ui/session", json={"link": link}, headers=origin)).status_code == 201
        assert (await client.get("/ui/api/sandboxes")).status_code == 200


def test_settings_that_would_accept_too_much_are_refused() -> None:
    with pytest.raises(ValueError, match="HOLDFAST_OIDC_AUDIENCE"):
        from_environment({"HOLDFAST_OIDC_ISSUER": "https://id.example"})
    with pytest.raises(ValueError, match="https"):
        Tokens(OidcSettings("http://id.example", "x"), None)  # type: ignore[arg-type]
    read = from_environment(
        {"HOLDFAST_OIDC_ISSUER": "https://id.example", "HOLDFAST_OIDC_AUDIENCE": "a", "HOLDFAST_OIDC_OWNER_CLAIM": "email"}
    )
    assert read.oidc == OidcSettings("https://id.example", "a", owner_claim="email")
