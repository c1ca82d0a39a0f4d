"""Previews of ports: HTTP, WebSocket and events to real programs in sandboxes, in both forms, and what they keep apart."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from holdfast import InvalidArgumentError, ListeningPort, Sandbox, SandboxClient, SandboxNotFoundError
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.support.preview_app import SOURCE
from tests.support.stack import Stack
from tests.support.until import until

PORT = 8080
DOMAIN = "preview.localhost"
PAGE = {"Accept": "text/html,*/*"}


@contextlib.contextmanager
def served(sandbox: Sandbox, port: int, *command: str) -> Iterator[None]:
    """A program that listens on ``port`` of the sandbox."""
    with sandbox.start(list(command), stdin=False):
        until(lambda: port in [one.port for one in sandbox.ports()], deadline_s=60, what=f"port {port} to be listened on")
        yield


@pytest.fixture(scope="module", params=["127.0.0.1", "127.0.0.2"], ids=["socket", "tunnel"])
def app(client: SandboxClient, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox with the program, on an address that the gateway reaches by a socket of the node's, and on one that it does not."""
    with client.create_sandbox("host") as sandbox, served(sandbox, PORT, "python3", "-c", SOURCE, str(PORT), request.param):
        yield sandbox


@pytest.fixture
def prefix(app: Sandbox) -> str:
    return f"/sandboxes/{app.id}/ports/{PORT}"


@pytest.fixture
def host(app: Sandbox) -> str:
    return urlsplit(app.preview_url(PORT)).netloc


@pytest.fixture
def anonymous(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as client:
        yield client


def seen(answer: httpx.Response) -> tuple[str, dict[str, str]]:
    """The target and the fields that the program got."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["target"], {name.lower(): value for name, value in body["fields"]}


def websocket(stack: Stack, host: str, path: str, **more: Any) -> ClientConnection:
    """A WebSocket to the host form: the name of the host leads to this machine only in browsers."""
    place = urlsplit(stack.url)
    made = socket.create_connection((place.hostname or "", place.port or 0), 60)
    connection: ClientConnection = connect(f"ws://{host}{path}", sock=made, proxy=None, **more)
    return connection


def token_of(sandbox: Sandbox, port: int = PORT, **more: Any) -> tuple[str, dict[str, str]]:
    """The token of a new link, and the header with it."""
    url = sandbox.preview_url(port, **more)
    return next(iter(url.headers.values())), url.headers


# Requests and answers ---------------------------------------------------------------------------------------------------


def test_a_request_reaches_the_program_as_it_was_sent(rest: httpx.Client, prefix: str, stack: Stack) -> None:
    answer = rest.post(
        f"{prefix}/a%2Fb/?q=1&r=%20", content=b"12345", headers={"X-Own": "yes", "Connection": "X-Hop", "X-Hop": "1", "Cookie": "s=1"}
    )
    target, fields = seen(answer)
    assert (answer.json()["method"], target, answer.json()["bytes"]) == ("POST", "/a%2Fb/?q=1&r=%20", 5)
    assert (fields["host"], fields["x-own"]) == (f"localhost:{PORT}", "yes")
    assert not fields.keys() & {"x-api-key", "x-hop", "connection", "cookie", "authorization", "transfer-encoding"}
    own = urlsplit(stack.url)
    assert {name: fields[f"x-forwarded-{name}"] for name in ("for", "proto", "host", "port", "prefix")} == {
        "for": "127.0.0.1",
        "proto": "http",
        "host": own.netloc,
        "port": str(own.port),
        "prefix": prefix,
    }


def test_a_client_cannot_choose_what_is_forwarded(rest: httpx.Client, prefix: str) -> None:
    forged = {
        "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Prefix": "/x",
        "Forwarded": "for=1.2.3.4",
        "X-Real-IP": "1.2.3.4",
    }
    _, fields = seen(rest.get(f"{prefix}/", headers=forged))
    assert (fields["x-forwarded-for"], fields["x-forwarded-proto"], fields["x-forwarded-prefix"]) == ("127.0.0.1", "http", prefix)
    assert not fields.keys() & {"forwarded", "x-real-ip"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_methods(rest: httpx.Client, prefix: str, method: str) -> None:
    answer = rest.request(method, f"{prefix}/x")
    assert answer.status_code == 200
    assert method == "HEAD" or answer.json()["method"] == method


def test_a_body_of_unknown_length(rest: httpx.Client, prefix: str) -> None:
    assert rest.put(f"{prefix}/x", content=(b"x" * 1000 for _ in range(300))).json()["bytes"] == 300_000


def test_both_directions_stream_at_once(stack: Stack, prefix: str) -> None:
    """The answer to the first part of a body comes before its second part is sent."""
    place = urlsplit(stack.url)
    with socket.create_connection((place.hostname, place.port), 60) as connection, connection.makefile("rb") as answer:
        connection.sendall(
            f"POST {prefix}/mirror HTTP/1.1\r\nHost: x\r\nX-API-Key: {stack.key}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        connection.sendall(b"5\r\nfirst\r\n")
        while answer.readline() != b"\r\n":
            pass
        assert answer.readline() + answer.readline() == b"5\r\nfirst\r\n"
        connection.sendall(b"6\r\nsecond\r\n0\r\n\r\n")
        assert answer.readline() + answer.readline() == b"6\r\nsecond\r\n"


def test_events_arrive_one_by_one(rest: httpx.Client, prefix: str) -> None:
    with rest.stream("GET", f"{prefix}/events") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(6)] == ["id: 0", "data: tick 0", "", "id: 1", "data: tick 1", ""]
    assert rest.get(f"{prefix}/x").status_code == 200, "a client that leaves disturbs no other"


def test_the_connection_of_a_client_that_left_is_closed(app: Sandbox, rest: httpx.Client, prefix: str) -> None:
    def connections() -> int:
        script = f"grep -ci ':{PORT:04X} [0-9A-F:]* 01 ' /proc/net/tcp || true"
        return int(app.exec(["bash", "-c", script]).stdout)

    streams: list[Iterator[bytes]] = []
    with contextlib.ExitStack() as held:
        for _ in range(5):
            streams.append(held.enter_context(rest.stream("GET", f"{prefix}/events")).iter_raw())
            next(streams[-1])
        assert connections() >= 5
    until(lambda: connections() == 0, deadline_s=60, what="the program to see that its clients have left")


def test_a_websocket(stack: Stack, prefix: str) -> None:
    with connect(
        f"ws{stack.url.removeprefix('http')}{prefix}/ws",
        additional_headers={"X-API-Key": stack.key},
        proxy=None,
        subprotocols=[Subprotocol("vite-hmr")],
    ) as socket:
        assert socket.subprotocol == "vite-hmr"
        for message in ("hello", b"\0" * 1000, "x" * 900_000):
            socket.send(message)
            assert socket.recv(60) == message


def test_a_websocket_that_the_program_refuses(stack: Stack, prefix: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws{stack.url.removeprefix('http')}{prefix}/x", additional_headers={"X-API-Key": stack.key}, proxy=None)
    assert (refused.value.response.status_code, json.loads(refused.value.response.body or b"")["target"]) == (200, "/x")


def test_pythons_own_server(sandbox: Sandbox, rest: httpx.Client) -> None:
    with served(sandbox, 8099, "python3", "-m", "http.server", "8099", "--bind", "127.0.0.1", "--directory", "/usr"):
        place = f"/sandboxes/{sandbox.id}/ports/8099"
        assert "lib" in rest.get(f"{place}/").text
        moved = rest.get(f"{place}/lib")
        assert (moved.status_code, moved.headers["location"]) == (301, f"{place}/lib/")


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::", "127.0.0.9"])
def test_whatever_address_the_program_listens_on(sandbox: Sandbox, rest: httpx.Client, address: str) -> None:
    with served(sandbox, 8098, "python3", "-c", SOURCE, "8098", address):
        assert [one.address for one in sandbox.ports() if one.port == 8098] == [address]
        assert rest.get(f"/sandboxes/{sandbox.id}/ports/8098/").status_code == 200


# What a program answers is hostile ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["injected", "lengths", "both", "nonsense", "status", "switch", "silent", "head", "hints", "fold", "many"])
def test_an_answer_that_is_not_http_is_not_passed_on(rest: httpx.Client, prefix: str, path: str) -> None:
    answer = rest.get(f"{prefix}/raw/{path}")
    assert (answer.status_code, answer.json()["code"], answer.json()["fault"]) == (502, "port_unreachable", "workload")
    assert rest.get(f"{prefix}/x").status_code == 200


@pytest.mark.parametrize("path", ["short", "trailer"])
def test_an_incomplete_answer_is_not_taken_for_a_complete_one(stack: Stack, prefix: str, path: str) -> None:
    with httpx.Client(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=60) as client, pytest.raises(httpx.TransportError):
        client.get(f"{prefix}/raw/{path}")


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Content-Length: 0\r\nContent-Length: 5",
        "Content-Length: +5",
    ],
)
def test_a_request_that_ends_in_two_ways_is_refused(app: Sandbox, stack: Stack, prefix: str, host: str, framing: str) -> None:
    """Gateway and program would else disagree where it ends, and the rest be a request that was not checked."""
    place = urlsplit(stack.url)
    for target, name, permission in (
        (f"{prefix}/x", "localhost", f"X-API-Key: {stack.key}"),
        ("/x", host, "X-Holdfast-Preview: " + token_of(app)[0]),
    ):
        head = f"POST {target} HTTP/1.1\r\nHost: {name}\r\n{permission}\r\n{framing}\r\n\r\n"
        with socket.create_connection((place.hostname or "", place.port or 0), 60) as connection:
            connection.sendall(f"{head}0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: localhost:{PORT}\r\n\r\n".encode())
            answer = b""
            while data := connection.recv(65536):
                answer += data
        assert answer.split(b" ", 2)[1] in (b"400", b"501"), answer
        assert b"content-length" in answer.partition(b"\r\n\r\n")[0]
        assert not re.search(rb"HTTP/1.1 [0-9]", answer[9:]), "one answer, to the one request"
        assert b"/smuggled" not in answer


def test_an_answer_to_no_request_reaches_no_later_request(rest: httpx.Client, prefix: str) -> None:
    for _ in range(5):
        assert rest.get(f"{prefix}/raw/twice").text == "ok"
        assert "forged" not in rest.get(f"{prefix}/x").text


def test_forms_of_answers(rest: httpx.Client, prefix: str) -> None:
    assert rest.get(f"{prefix}/raw/interim").text == "ok"
    assert rest.get(f"{prefix}/raw/until-end").text == "to the end"


def test_fields_with_effects_beyond_the_preview_are_dropped(
    rest: httpx.Client, anonymous: httpx.Client, app: Sandbox, prefix: str, host: str
) -> None:
    by_path = rest.get(f"{prefix}/raw/fields").headers
    by_host = anonymous.get("/raw/fields", headers={"Host": host, **token_of(app)[1]}).headers
    for fields in (by_path, by_host):
        assert fields["x-own"] == "yes"
        dropped = {"x-private", "keep-alive", "clear-site-data", "strict-transport-security", "alt-svc", "x-holdfast-ticket"}
        assert not {name.lower() for name in fields} & dropped
    assert by_path.get_list("set-cookie") == [], "a cookie would be one of the service's host"
    assert by_path["content-security-policy"] == "sandbox"
    assert by_host.get_list("set-cookie") == ["a=1; Path=/", "b=2"], "no other sandbox's host gets it, and none is the service's"
    assert "content-security-policy" not in by_host


def test_redirects_are_passed_on_as_the_client_can_use_them(
    rest: httpx.Client, anonymous: httpx.Client, app: Sandbox, prefix: str, host: str, stack: Stack
) -> None:
    assert rest.get(f"{prefix}/raw/redirect").headers["location"] == f"{stack.url}{prefix}/next?a=b"
    assert anonymous.get("/raw/redirect", headers={"Host": host, **token_of(app)[1]}).headers["location"] == f"http://{host}/next?a=b"
    assert rest.get(f"{prefix}/raw/away").headers["location"] == "https://example.org/"


# Links ----------------------------------------------------------------------------------------------------------------


def test_a_link_signs_a_browser_in(app: Sandbox, anonymous: httpx.Client, stack: Stack, host: str) -> None:
    url = app.preview_url(PORT)
    assert url == f"{url.address}?holdfast_preview={token_of(app)[0]}" or url.startswith(f"http://{host}/?holdfast_preview=")
    query = urlsplit(url).query
    first = anonymous.get(f"/a//b?x=1&{query}&y=2", headers={"Host": host, **PAGE})
    assert (first.status_code, first.headers["location"]) == (303, "/a//b?x=1&y=2")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert "Path=/" in cookie
    assert "domain" not in cookie.lower()
    cookies = {"Host": host, "Cookie": f"own=1; {cookie.partition(';')[0]}"}
    target, fields = seen(anonymous.get("/a", headers={**cookies, **PAGE}))
    assert (target, fields["cookie"], fields["x-forwarded-host"]) == ("/a", "own=1", host)
    assert "x-forwarded-prefix" not in fields
    elsewhere = anonymous.get(f"{stack.url}//evil.example/?{query}", headers={"Host": host, **PAGE})
    assert elsewhere.headers["location"] == "/evil.example/", "never another host"
    with websocket(stack, host, "/ws", additional_headers={"Cookie": cookies["Cookie"]}, origin=f"http://{host}") as connection:
        connection.send("hello")
        assert connection.recv(60) == "hello"


def test_a_program_uses_the_header_or_the_query(app: Sandbox, anonymous: httpx.Client, prefix: str, host: str) -> None:
    token, header = token_of(app)
    for answer in (
        anonymous.get(f"{prefix}/x?a=1", headers={**header, "Authorization": "Bearer of-the-application"}),
        anonymous.get(f"{prefix}/x?holdfast_preview={token}&a=1", headers={"Authorization": "Bearer of-the-application"}),
        anonymous.get("/x?a=1", headers={"Host": host, **header, "Authorization": "Bearer of-the-application"}),
        anonymous.get("/x?a=1", headers={"Host": host.upper(), **header, "Authorization": "Bearer of-the-application"}),
        anonymous.get("/x?a=1", headers={"Host": host.replace(":", ".:"), **header, "Authorization": "Bearer of-the-application"}),
    ):
        target, fields = seen(answer)
        assert (target, fields["authorization"]) == ("/x?a=1", "Bearer of-the-application")
        assert token not in answer.text


def test_the_services_own_key_never_reaches_a_program(stack: Stack, anonymous: httpx.Client, prefix: str, host: str) -> None:
    for place in ({}, {"Host": host}):
        for header in ({"X-API-Key": stack.key}, {"Authorization": f"Bearer {stack.key}"}):
            answer = anonymous.get("/x" if place else f"{prefix}/x", headers={**place, **header})
            assert answer.status_code == 200
            assert stack.key not in answer.text


def test_a_link_opens_one_port_of_one_sandbox_until_it_expires(
    app: Sandbox, client: SandboxClient, anonymous: httpx.Client, prefix: str, host: str
) -> None:
    header = token_of(app)[1]
    refused: list[tuple[str, dict[str, str]]] = [
        (f"/sandboxes/{app.id}/ports/{PORT + 1}/", header),
        ("/sandboxes/sb-unknown/ports/8080/", header),
        (f"{prefix}/", {"X-Holdfast-Preview": header["X-Holdfast-Preview"][:-1] + "x"}),
        (f"{prefix}/", {"X-Holdfast-Preview": "x"}),
        ("/", {"Host": f"{PORT + 1}-{host.partition('-')[2]}", **header}),
        ("/", {"Host": host, "Cookie": "holdfast-preview=x"}),
    ]
    with client.create_sandbox("host") as other:
        refused.append((f"/sandboxes/{other.id}/ports/{PORT}/", header))
        for path, headers in refused:
            answer = anonymous.get(path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "key_invalid"), path
    short = token_of(app, expires_s=1)[1]
    until(lambda: anonymous.get(f"{prefix}/", headers=short).status_code == 403, deadline_s=60, what="the link to expire")
    assert anonymous.get(f"/sandboxes/{app.id}", headers=header).status_code == 401, "it opens no other route"


@pytest.mark.parametrize("expires_s", [0, -1, 8 * 86400, float("nan")])
def test_how_long_a_link_may_live(app: Sandbox, expires_s: float) -> None:
    with pytest.raises(InvalidArgumentError, match="expires_s"):
        app.preview_url(PORT, expires_s=expires_s)


def test_a_page_of_another_sandbox_cannot_act_with_the_cookie(app: Sandbox, anonymous: httpx.Client, stack: Stack, host: str) -> None:
    port = urlsplit(stack.url).port
    cookie = {"Host": host, "Cookie": f"holdfast-preview={token_of(app)[0]}"}
    own, sibling = {"Origin": f"http://{host}"}, {"Origin": f"http://3000{host.removeprefix(str(PORT))}"}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for fine in ({}, own, sibling, link, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert anonymous.get("/x", headers={**cookie, **fine}).status_code == 200, fine
    assert anonymous.post("/x", headers={**cookie, **own}).status_code == 200
    for evil in (
        {"Origin": f"http://{PORT}-sb-evil.{DOMAIN}:{port}"},
        {"Origin": f"http://{PORT}-{app.id}.{DOMAIN}:{port}"},
        {"Origin": "null"},
        {"Origin": f"http://{app.id}.{DOMAIN}"},
        {"Origin": f"http://{PORT}-{app.id}.{DOMAIN}.evil.example"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ):
        answer = anonymous.get("/x", headers={**cookie, **evil})
        assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused"), evil
    assert anonymous.post("/x", headers={**cookie, **link}).status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        websocket(stack, host, "/ws", additional_headers={"Cookie": cookie["Cookie"]}, origin="http://evil.example")
    assert refused.value.response.status_code == 403


def test_another_owners_sandbox_looks_like_none(app: Sandbox, stack: Stack, stranger_key: str, host: str) -> None:
    with httpx.Client(base_url=stack.url, headers={"X-API-Key": stranger_key, **PAGE}, timeout=60) as stranger:

        def answers(sandbox_id: str) -> list[tuple[int, str]]:
            requests: list[Callable[[], httpx.Response]] = [
                lambda: stranger.get(f"/sandboxes/{sandbox_id}/ports/{PORT}/"),
                lambda: stranger.get(f"/sandboxes/{sandbox_id}/ports/{PORT}"),
                lambda: stranger.get("/", headers={"Host": f"{PORT}-{sandbox_id}.{DOMAIN}"}),
                lambda: stranger.get(f"/sandboxes/{sandbox_id}/ports"),
                lambda: stranger.post(f"/sandboxes/{sandbox_id}/previews", json={"port": PORT}),
            ]
            return [(one.status_code, one.text.replace(sandbox_id, "ID")) for one in (request() for request in requests)]

        assert answers(app.id) == answers("sb-none")
    with SandboxClient(stack.url, stranger_key) as client, pytest.raises(SandboxNotFoundError):
        client.get_sandbox(app.id).preview_url(PORT)


def test_below_the_preview_domain_is_nothing_of_the_service(stack: Stack, rest: httpx.Client, host: str) -> None:
    for name in (DOMAIN.upper(), f"x.{DOMAIN}", f"0-sb-1.{DOMAIN}", f"70000-sb-1.{DOMAIN}.", f"a.b.{DOMAIN}"):
        if "." not in name.removesuffix(f".{DOMAIN}").lower().removesuffix(DOMAIN):
            continue
        assert rest.get("/sandboxes", headers={"Host": name}).json()["code"] == "not_found", name
    assert rest.get("/healthz", headers={"Host": host}).json()["target"] == "/healthz", "every path is the program's"
    with pytest.raises(InvalidStatus) as refused:  # the path of another face's row, which serves WebSockets
        websocket(stack, host, "/sandboxes/x/exec/pty", additional_headers={"X-API-Key": stack.key})
    assert json.loads(refused.value.response.body or b"")["target"] == "/sandboxes/x/exec/pty"


# Pages ----------------------------------------------------------------------------------------------------------------


def test_a_port_that_nothing_listens_on(sandbox: Sandbox, rest: httpx.Client) -> None:
    place = f"/sandboxes/{sandbox.id}/ports/9/"
    problem = rest.get(place)
    assert (problem.status_code, problem.json()["code"]) == (502, "port_unreachable")
    page = rest.get(place, headers=PAGE)
    assert (page.status_code, page.headers["content-type"], page.headers["retry-after"]) == (502, "text/html; charset=utf-8", "2")
    assert "Nothing answers on port 9 yet" in page.text
    assert '<meta http-equiv="refresh" content="2">' in page.text
    assert "sandbox" not in page.headers["content-security-policy"], "a page in a CSP sandbox does not load itself again"


def test_a_sandbox_that_has_ended(client: SandboxClient, rest: httpx.Client, anonymous: httpx.Client) -> None:
    with client.create_sandbox("host") as ended:
        header = token_of(ended)[1]
    for asking, headers in ((rest, {}), (anonymous, header)):
        page = asking.get(f"/sandboxes/{ended.id}/ports/{PORT}/", headers={**headers, **PAGE})
        assert page.status_code == 410
        assert "The sandbox has ended" in page.text
        assert "cause: deleted" in page.text
        assert "http-equiv" not in page.text
    renewed = client.create_sandbox("host", sandbox_id=ended.id)
    with renewed:
        answer = anonymous.get(f"/sandboxes/{ended.id}/ports/{PORT}/", headers=header)
        assert answer.json()["code"] == "key_invalid", "a link is of one sandbox, not of its id"


def test_a_browser_without_a_link(anonymous: httpx.Client, host: str, prefix: str) -> None:
    for path, headers in (("/", {"Host": host}), (f"{prefix}/", {})):
        page = anonymous.get(path, headers={**headers, **PAGE})
        assert (page.status_code, "This preview needs its link" in page.text) == (401, True)


# Ports and the command line ----------------------------------------------------------------------------------------------


def test_ports_are_listed(app: Sandbox) -> None:
    (found,) = (one for one in app.ports() if one.port == PORT)
    assert found in (ListeningPort(PORT, "127.0.0.1", 0), ListeningPort(PORT, "127.0.0.2", 0))


def test_port_public_prints_a_link(app: Sandbox, stack: Stack, anonymous: httpx.Client) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "port", "--public", "--expires", "600", "--json", app.id, str(PORT)],
        env=stack.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    made = json.loads(done.stdout)
    place = urlsplit(made["url"])
    assert anonymous.get(f"/x?{place.query}", headers={"Host": place.netloc}).status_code == 200
    assert 0 < made["expires_at"] - time.time() <= 600
