"""REST apart from the life of a sandbox: other owners, lists, refused requests, an outage of Redis, keys, metrics and the doctor."""

from __future__ import annotations

import base64
import contextlib
import logging
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.placement.errors import PlacementUnavailableError
from tests.gateway.checked import Checked, made, problem
from tests.gateway.harness import ADA, Served
from tests.support.pace import Stopwatch
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


# Ownership --- ----------------------------------------------------------------------------------------------------


async def test_another_owners_sandbox_looks_unknown_on_every_route(ada: Checked, bob: Checked) -> None:
    await made(ada, sandbox_id="adas")
    gone = await made(ada, sandbox_id="gone")
    await ada("DELETE", "/sandboxes/gone")
    assert gone["ready"]
    content = base64.b64encode(b"x").decode()
    routes: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/sandboxes/{}", {}),
        ("DELETE", "/sandboxes/{}", {}),
        ("GET", "/sandboxes/{}/wait", {}),
        ("POST", "/sandboxes/{}/heartbeat", {}),
        ("POST", "/sandboxes/{}/exec", {"json": {"command": "true"}}),
        ("POST", "/sandboxes/{}/apply_patch", {"json": {"patch": "x"}}),
        ("POST", "/sandboxes/{}/files", {"json": {"path": "/a", "content": content}}),
        ("GET", "/sandboxes/{}/files", {"params": {"path": "/a"}}),
        ("GET", "/sandboxes/{}/files/list", {}),
        ("GET", "/jobs/{}.j0", {}),
        ("GET", "/jobs/{}.j0/wait", {}),
    ]
    for method, path, more in routes:
        answers = [await bob(method, path.format(id_), **more) for id_ in ("adas", "none", "gone")]
        bodies = [str(a.json()).replace("adas", "*").replace("none", "*").replace("gone", "*") for a in answers]
        assert answers[0].status_code == 404, path
        assert bodies[0] == bodies[1] == bodies[2], path
    assert (await bob("GET", "/sandboxes")).json()["sandboxes"] == []
    assert (await ada("GET", "/sandboxes/adas")).json()["status"] == "ready"


async def test_lists_are_paged_and_filtered(ada: Checked) -> None:
    for number in range(7):
        await made(ada, labels={"n": str(number), "odd": str(number % 2)})
    found: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await ada("GET", "/sandboxes", params=params)).json()
        found += [one["labels"]["n"] for one in page["sandboxes"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert sorted(found) == [str(number) for number in range(7)]
    odd = (await ada("GET", "/sandboxes", params=[("label", "odd=1"), ("label", "n=3")])).json()["sandboxes"]
    assert [one["labels"]["n"] for one in odd] == ["3"]
    assert problem(await ada("GET", "/sandboxes", params={"label": "odd n"})) == (422, "invalid_argument")
    assert problem(await ada("GET", "/sandboxes", params={"cursor": "x"})) == (422, "invalid_argument")


# Refused requests --- ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_argument"),
        ({"image": ""}, "invalid_argument"),
        ({"image": "a b"}, "invalid_argument"),
        ({"image": 7}, "invalid_argument"),
        ({"image": "host", "cpu": "many"}, "invalid_quantity"),
        ({"image": "host", "cpu": 0}, "invalid_quantity"),
        ({"image": "host", "cpu": True}, "invalid_quantity"),
        ({"image": "host", "memory": "4Gb"}, "invalid_quantity"),
        ({"image": "host", "memory": -1}, "invalid_quantity"),
        ({"image": "host", "disk": "x"}, "invalid_quantity"),
        ({"image": "host", "sandbox_id": "../etc"}, "invalid_argument"),
        ({"image": "host", "sandbox_id": "A" * 100}, "invalid_argument"),
        ({"image": "host", "env": {"A": 1}}, "invalid_argument"),
        ({"image": "host", "env": {"A=B": "x"}}, "invalid_argument"),
        ({"image": "host", "env": {"A": "\0"}}, "invalid_argument"),
        ({"image": "host", "labels": {"holdfast/lifetime_s": "1"}}, "invalid_argument"),
        ({"image": "host", "labels": ["a"]}, "invalid_argument"),
        ({"image": "host", "lifetime_s": -1}, "invalid_argument"),
        ({"image": "host", "lifetime_s": "soon"}, "invalid_argument"),
        ({"image": "host", "timeout": 1e300}, "invalid_argument"),
        ({"image": "host", "wait": "yes"}, "invalid_argument"),
    ],
)
async def test_a_wrong_field_is_named(ada: Checked, served: Served, body: dict[str, Any], code: str) -> None:
    assert problem(await ada("POST", "/sandboxes", json=body)) == (422, code)
    assert served.runtime.orders == []


async def test_an_invalid_body_is_refused_with_a_hint(ada: Checked) -> None:
    for content in (b"{", b"[]", b"\xff", b'"x"', b"nul"):
        answer = await ada("POST", "/sandboxes", content=content)
        assert problem(answer) == (400, "invalid_json")
        assert answer.json()["hint"]


async def test_a_body_that_is_too_large_is_refused(ada: Checked, served: Served) -> None:
    answer = await ada("POST", "/sandboxes", content=b" " * (1024 * 1024 + 1))
    assert problem(answer) == (413, "request_too_large")


async def test_unknown_routes_and_methods(ada: Checked, served: Served) -> None:
    for method, path, status, code in (("GET", "/nope", 404, "not_found"), ("PUT", "/sandboxes", 405, "method_not_allowed")):
        answer = await ada.client.request(method, path)
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem(answer) == (status, code)


async def test_an_unexpected_error_reveals_no_details(ada: Checked, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(sandbox_id: str) -> None:
        raise ValueError("secret of the house")

    monkeypatch.setattr(served.store, "get", broken)
    answer = await ada("GET", "/sandboxes/sb-1")
    assert problem(answer) == (500, "internal")
    assert "secret" not in answer.text


# When Redis is away ------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_a_redis_outage_is_503_within_a_second_and_recovers(
    ada: Checked, redis_server: RedisServer, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    await made(ada, sandbox_id="sb-1")
    assert (await ada("GET", "/readyz")).status_code == 200
    redis_server.kill()
    try:
        for method, path in (("POST", "/sandboxes"), ("GET", "/sandboxes/sb-1"), ("GET", "/sandboxes"), ("DELETE", "/sandboxes/sb-1")):
            with Stopwatch() as watch:
                answer = await ada(method, path, **({"json": {"image": "host"}} if method == "POST" else {}))
                assert problem(answer) == (503, "placement_unavailable")
                assert watch.elapsed_s < 1.0
        assert (await ada("GET", "/healthz")).status_code == 200
        ready = await ada("GET", "/readyz")
        assert ready.status_code == 503
        assert "placement" in ready.json()["unavailable"]
        assert (await ada("GET", "/readyz")).status_code == 503
        logged = [
            one.getMessage() for one in caplog.records if one.name == "gateway" and one.getMessage().startswith("not ready: placement:")
        ]
        assert len(logged) == 1, "the reason is logged once"
    finally:
        redis_server.start()

    async def answers() -> bool:
        with contextlib.suppress(PlacementUnavailableError):
            await served.store.set_marker("g2", term=2)  # Redis is empty; a controller marks when the records are complete again
        return (await ada("GET", "/readyz")).status_code == 200

    await until_async(answers, deadline_s=60, what="readiness to come back")


async def test_a_part_that_is_missing_during_the_start_is_no_warning(
    ada: Checked, served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise HoldfastError("runtime_unavailable", "the node is not running")

    monkeypatch.setattr(served.gateway.runtime, "ping", away)
    caplog.set_level(logging.INFO, logger="gateway")
    expected = [(logging.INFO, "starting; still missing: runtime: the node is not running")]
    for _ in range(2):
        assert (await ada("GET", "/readyz")).status_code == 503
        assert [(one.levelno, one.getMessage()) for one in caplog.records if one.name == "gateway"] == expected
    served.gateway.started_at -= 60
    assert (await ada("GET", "/readyz")).status_code == 503
    expected.append((logging.WARNING, "not ready: runtime: the node is not running"))
    assert [(one.levelno, one.getMessage()) for one in caplog.records if one.name == "gateway"] == expected


async def test_bearer_keys_work_and_a_changed_keys_file_is_read_again(served: Served) -> None:
    async with served.client(None) as client:
        bearer = {"Authorization": f"Bearer {ADA}"}
        assert (await client.get("/sandboxes", headers=bearer)).status_code == 200
        served.gateway.settings.keys_file.write_text("# none\n")
        assert (await client.get("/sandboxes", headers=bearer)).status_code == 403


async def test_metrics_count_responses(ada: Checked) -> None:
    await made(ada)
    text = (await ada.client.get("/metrics")).text
    assert 'holdfast_requests_total{method="POST",route="/sandboxes",status="200"} 1' in text
    assert "holdfast_attached_sessions 0" in text


async def test_images_are_unsupported_on_a_runtime_without_them(ada: Checked) -> None:
    assert problem(await ada("GET", "/images")) == (501, "unsupported")


async def test_doctor_and_resources(ada: Checked) -> None:
    body = (await ada("GET", "/doctor")).json()
    assert body["ok"]
    assert {check["name"] for check in body["checks"]} >= {"placement", "runtime", "memory"}


async def test_resources_are_the_capacity_without_what_is_requested(ada: Checked) -> None:
    await made(ada, cpu="1.5", memory="1Gi")
    body = (await ada("GET", "/resources")).json()
    assert body["status"] == "ok"
    assert body["total_capacity"] == {"cpu": 4.0, "memory_bytes": 8 << 30}
    assert body["total_requested"] == {"cpu": 1.5, "memory_bytes": 1 << 30}
    assert body["available"] == {"cpu": 2.5, "memory_bytes": 7 << 30}
