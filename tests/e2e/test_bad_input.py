"""Bad input, through the SDK and over plain REST: each case gives one clear typed error (code, message, hint) and loses no state.

After every case the shell that was open before still has its variable.
"""

from __future__ import annotations

import json
import math
import socket
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from holdfast import (
    AuthenticationError,
    ConfigurationError,
    HoldfastError,
    ImageNotFoundError,
    InvalidArgumentError,
    Sandbox,
    SandboxClient,
    ServiceUnavailableError,
)

from tests.e2e.error_checks import assert_problem, is_clear
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack

pytestmark = [requires("namespaces", "redis", "bash"), pytest.mark.usefixtures("nothing_lost")]


# Keys and addresses --------------------------------------------------------------------------------------------------


def test_unknown_key(stack: Stack) -> None:
    for key in ("hf_" + "0" * 32, "nonsense", "x" * 5000):
        with SandboxClient(stack.url, key) as client, pytest.raises(AuthenticationError) as refused:
            client.list_sandboxes()
        is_clear(refused.value, "key_invalid")
        assert key not in str(refused.value)


def test_unknown_key_on_a_session(stack: Stack, sandbox: Sandbox) -> None:
    with SandboxClient(stack.url, "hf_" + "0" * 32) as client, pytest.raises(AuthenticationError) as refused:
        client.get_sandbox(sandbox.id).exec("true")
    is_clear(refused.value, "key_invalid")


def test_no_key(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_API_KEY", "SANDBOX_API_KEY", "HOLDFAST_URL", "SANDBOX_BASE_URL", "HOLDFAST_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)  # a `make up` leaves the address and key of its stack in the checkout
    with pytest.raises(ConfigurationError, match="HOLDFAST_API_KEY"):
        SandboxClient(stack.url)
    with pytest.raises(ConfigurationError, match="HOLDFAST_URL"):
        SandboxClient()
    answer = httpx.get(f"{stack.url}/sandboxes")
    assert (answer.status_code, answer.json()["code"]) == (401, "key_missing")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "nonsense", "http://", "http://[::1", "http://127.0.0.1:99999", 7, ""])
def test_bad_address(url: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # a `make up` leaves the address and key of its stack in the checkout
    for name in ("HOLDFAST_URL", "SANDBOX_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"the service URL is malformed|must be strings|no Holdfast service is configured"):
        SandboxClient(url, "hf_" + "0" * 32)


def test_no_service_at_the_address(stack: Stack) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with (
            SandboxClient(url, stack.key, connect_timeout_s=0.5, request_timeout_s=0.5) as client,
            pytest.raises(HoldfastError) as refused,
        ):
            client.list_sandboxes()
    assert refused.value.retryable
    assert type(refused.value) is ServiceUnavailableError, "a traceback shows the class that a program can catch"
    is_clear(refused.value)


# Creating sandboxes --------------------------------------------------------------------------------------------------


def test_unknown_image_without_the_fallback() -> None:
    with running_stack({"HOLDFAST_IMAGE_FALLBACK": ""}) as own, SandboxClient(own.url, own.key) as client:
        with pytest.raises(ImageNotFoundError) as refused:
            client.create_sandbox("no/such-image:1")
        is_clear(refused.value, "image_not_found")
        assert "no/such-image:1" in refused.value.message
        assert "image import" in refused.value.hint
        assert client.list_sandboxes() == [], "the failed create left no record"
        with pytest.raises(ImageNotFoundError):
            client.images.remove("no/such-image:1")
        assert client.create_sandbox("host").delete()


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": "many"},
        {"cpu": -1},
        {"cpu": 0},
        {"cpu": math.nan},
        {"cpu": "1e400"},
        {"memory": "lots"},
        {"memory": "4Gb"},
        {"memory": "-4Gi"},
        {"memory": 0},
        {"disk": "10 GB"},
        {"disk": True},
    ],
    ids=repr,
)
def test_bad_quantity(client: SandboxClient, rest: httpx.Client, wrong: dict[str, Any]) -> None:
    before = len(client.list_sandboxes())
    with pytest.raises(InvalidArgumentError) as refused:
        client.create_sandbox("host", **wrong)
    is_clear(refused.value, "invalid_quantity")
    assert next(iter(wrong)) in refused.value.message
    answer = rest.post("/sandboxes", content=json.dumps({"image": "host", **wrong}))
    is_json = not any(isinstance(value, float) and math.isnan(value) for value in wrong.values())
    assert (answer.status_code, answer.json()["code"]) == ((422, "invalid_quantity") if is_json else (400, "invalid_json"))
    assert len(client.list_sandboxes()) == before


def test_more_than_the_machine_has(client: SandboxClient) -> None:
    with pytest.raises(InvalidArgumentError, match="memory=1Ti is more than any machine here has") as refused:
        client.create_sandbox("host", cpu=1000, memory="1Ti")
    is_clear(refused.value, "invalid_quantity")


@pytest.mark.parametrize("name", ["UPPER", "-dash", "a/b", "..", "a b", "ü", "a" * 64, "a\n"], ids=repr)
def test_bad_sandbox_id(client: SandboxClient, rest: httpx.Client, name: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        client.create_sandbox("host", sandbox_id=name)
    is_clear(refused.value)
    answer = rest.post("/sandboxes", json={"image": "host", "sandbox_id": name})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")


@pytest.mark.parametrize("name", ["../etc", "a/../../healthz", "%2e%2e", "x?y=z", "x#y", "\n"], ids=repr)
def test_an_id_is_not_interpreted_as_a_path(client: SandboxClient, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no sandbox has the id"):
        client.get_sandbox(name)


def test_labels_and_environment_have_limits(client: SandboxClient, rest: httpx.Client) -> None:
    wrong: list[dict[str, Any]] = [
        {"labels": {f"l{number}": "x" for number in range(1000)}},
        {"labels": {"holdfast/mine": "x"}},
        {"labels": {"a b": "x"}},
        {"labels": {"a": "x" * 100_000}},
        {"labels": {"a": "x\0"}},
        {"env": {"HUGE": "x" * 500_000}},
        {"env": {f"V{number}": "x" * 100 for number in range(5000)}},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\0"}},
        {"env": {"": "x"}},
    ]
    for more in wrong:
        with pytest.raises(HoldfastError) as refused:
            client.create_sandbox("host", **more)
        is_clear(refused.value, "invalid_argument")
        answer = rest.post("/sandboxes", json={"image": "host", **more})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")


def test_a_request_over_the_limit(rest: httpx.Client) -> None:
    answer = rest.post("/sandboxes", content=b" " * (9 << 20))
    assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")

    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 65536

    try:
        answer = rest.post("/sandboxes", content=endless())
    except httpx.WriteError:
        return  # the service may close the connection before the whole body was sent
    assert answer.status_code == 413


# REST bodies ---------------------------------------------------------------------------------------------------------

_BODIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "create": ("POST", "/sandboxes", {"image": "host"}),
    "exec": ("POST", "/sandboxes/{id}/exec", {"command": "true", "wait": True, "timeout": 5}),
    "write": ("POST", "/sandboxes/{id}/files", {"path": "/tmp/rest", "content": "x"}),
    "patch": ("POST", "/sandboxes/{id}/apply_patch", {"patch": "x", "diff": "x"}),
}


@pytest.mark.parametrize("route", _BODIES)
def test_rest_bodies_of_the_wrong_type(sandbox: Sandbox, rest: httpx.Client, route: str) -> None:
    method, path, body = _BODIES[route]
    url = path.format(id=sandbox.id)
    for raw in (b"{", b"[]", b"7", b'"x"', b"null", b"\xff\xfe", b'{"image": NaN}', b"[" * 100_000):
        answer = rest.request(method, url, content=raw)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json"), raw[:20]
        assert_problem(answer)
    names = {*body, "cpu", "memory", "env", "labels", "timeout", "cwd", "user", "wait", "lifetime_s", "block_network", "sandbox_id"}
    made = []
    for name in sorted(names):
        for value in ([], {}, 7.5, -1, True, "a\0b", "x" * 20_000, ["x", 1], {"a": 1}):
            answer = rest.request(method, url, json={**body, name: value})
            assert answer.status_code < 500, (name, str(value)[:30], answer.text)
            if answer.status_code >= 400:
                assert_problem(answer)
            elif route == "create":
                made.append(answer.json()["sandbox_id"])
    for one in made:
        assert rest.delete(f"/sandboxes/{one}").status_code == 200


def test_unknown_routes_and_methods(rest: httpx.Client, sandbox: Sandbox) -> None:
    for method, path, status, code in (
        ("GET", "/nowhere", 404, "not_found"),
        ("PUT", "/sandboxes", 405, "method_not_allowed"),
        ("GET", f"/sandboxes/{sandbox.id}/nowhere", 404, "not_found"),
        ("GET", "/jobs/none", 404, "command_not_found"),
    ):
        answer = rest.request(method, path)
        assert_problem(answer)
        assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_queries_of_the_wrong_type(rest: httpx.Client, sandbox: Sandbox) -> None:
    for path in (
        "/sandboxes?limit=many", "/sandboxes?limit=0", "/sandboxes?limit=1000000", "/sandboxes?label=two%20words", "/sandboxes?cursor=%00",
        f"/sandboxes/{sandbox.id}/wait?timeout=-1", f"/sandboxes/{sandbox.id}/wait?timeout=nan", f"/sandboxes/{sandbox.id}/files",
        f"/sandboxes/{sandbox.id}/files/list?path=" + urllib.parse.quote("a\0b"),
    ):  # fmt: skip
        answer = rest.get(path)
        code = "invalid_path" if "/files" in path else "invalid_argument"
        assert (answer.status_code, answer.json()["code"]) == (422, code), path
        assert_problem(answer)


def test_plain_http_on_the_session_route(rest: httpx.Client, sandbox: Sandbox) -> None:
    answer = rest.get(f"/sandboxes/{sandbox.id}/session")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "WebSocket" in answer.json()["hint"]
    assert_problem(answer)
