"""The watch recovers when the connection is dropped, stalled, expired or broken in a line, and when pages of a list go stale."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.runtimes.base import RuntimeUnavailableError
from gateway.runtimes.kubernetes.api.client import Api
from gateway.runtimes.kubernetes.api.watch import Changed, Listed, Vanished, Watch, WatchSettings
from gateway.runtimes.kubernetes.names import SELECTOR
from gateway.runtimes.kubernetes.pods.manifest import pod
from gateway.runtimes.kubernetes.pods.pod_events import WARNINGS, read_warning
from gateway.runtimes.kubernetes.pods.status import PodStatus, read_pod
from gateway.runtimes.kubernetes.settings import KubernetesSettings
from tests.conformance.runtimes import order
from tests.kubernetes.conftest import QUICK
from tests.support.background import in_background
from tests.support.kube.objects import RefusedError
from tests.support.kube.server import FakeApi
from tests.support.until import until_async

DEADLINE_S = 60.0


class Seen:
    """Runs a watch and collects what it has reported."""

    def __init__(self, watch: Watch[PodStatus]) -> None:
        self.lists = 0
        self.present: dict[str, str] = {}
        """Name → uid, from changes alone: the state that a level-triggered caller would have."""
        self.vanished: list[str] = []
        self._watch = watch

    async def run(self) -> None:
        async with contextlib.aclosing(self._watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Listed():
                        self.lists += 1
                        assert {name: one.uid for name, one in self._watch.known.items()} == self.present
                    case Changed(one, _):
                        self.present[one.name] = one.uid
                    case Vanished(last):
                        assert self.present.pop(last.name) == last.uid
                        self.vanished.append(last.name)

    async def until(self, condition: Callable[[], object]) -> None:
        await until_async(condition, deadline_s=DEADLINE_S, what="the watch")


@contextlib.asynccontextmanager
async def watching(api: FakeApi, folder: Path, settings: WatchSettings = QUICK) -> AsyncIterator[Seen]:
    client = Api(api.kubeconfig(folder), 5.0)
    seen = Seen(Watch(client, f"/api/v1/namespaces/{api.namespace}/pods", SELECTOR, read_pod, settings))
    try:
        async with in_background(seen.run(), "watch"):
            yield seen
    finally:
        await client.aclose()


def add(api: FakeApi, sandbox_id: str) -> str:
    body: dict[str, Any] = pod(order(sandbox_id), KubernetesSettings(namespace=api.namespace, bundle_image="b"), "image", "r")
    return str(api.pods.create({**body, "status": {"phase": "Pending"}})["metadata"]["uid"])


@pytest_asyncio.fixture
async def seen(api: FakeApi, tmp_path: Path) -> AsyncIterator[Seen]:
    for number in range(7):  # three pages
        add(api, f"sb-{number}")
    async with watching(api, tmp_path) as running:
        await running.until(lambda: running.lists == 1)
        assert len(running.present) == 7
        yield running


async def test_changes_are_reported_without_another_list(api: FakeApi, seen: Seen) -> None:
    uid = add(api, "sb-new")
    api.pods.remove("hf-sb-0")
    await seen.until(lambda: seen.present.get("hf-sb-new") == uid and "hf-sb-0" not in seen.present)
    assert seen.lists == 1


async def test_a_dropped_watch_continues_where_it_stopped(api: FakeApi, seen: Seen) -> None:
    for round_ in range(3):
        await seen.until(lambda: api.watches)
        assert api.drop_watches()
        add(api, f"sb-while-away-{round_}")
        api.pods.remove(f"hf-sb-{round_}")
        await seen.until(lambda r=round_: f"hf-sb-while-away-{r}" in seen.present and f"hf-sb-{r}" in seen.vanished)  # type: ignore[misc]
    assert seen.lists == 1


async def test_an_expired_watch_lists_again_and_reports_what_vanished(api: FakeApi, seen: Seen) -> None:
    api.stalled = True
    await seen.until(lambda: api.watches)
    api.pods.remove("hf-sb-3")
    same_name = api.pods.remove("hf-sb-4") and add(api, "sb-4")
    api.pods.forget_history()
    api.drop_watches()
    api.stalled = False
    await seen.until(lambda: seen.lists == 2)
    assert "hf-sb-3" in seen.vanished
    assert "hf-sb-4" in seen.vanished
    assert seen.present["hf-sb-4"] == same_name
    assert len(seen.present) == 6


async def test_an_error_event_in_the_stream_lists_again(api: FakeApi, seen: Seen) -> None:
    await seen.until(lambda: api.watches)
    api.pods.forget_history()  # the running watch receives 410 in its stream
    add(api, "sb-after")
    await seen.until(lambda: "hf-sb-after" in seen.present)
    assert seen.lists == 2


async def test_a_silent_watch_is_reconnected(api: FakeApi, tmp_path: Path) -> None:
    async with watching(api, tmp_path, replace(QUICK, silence_s=0.3)) as seen:
        await seen.until(lambda: seen.lists == 1 and api.watches)
        before = api.requests["watch pods"]
        api.stalled = True
        add(api, "sb-unheard")
        await seen.until(lambda: api.requests["watch pods"] > before)
        api.stalled = False
        await seen.until(lambda: "hf-sb-unheard" in seen.present)
        assert seen.lists == 1


async def test_bookmarks_keep_a_quiet_watch_alive_and_fresh(api: FakeApi, tmp_path: Path) -> None:
    api.bookmark_s = 0.05
    async with watching(api, tmp_path, replace(QUICK, silence_s=0.5, server_limit_s=2)) as seen:
        await seen.until(lambda: seen.lists == 1)
        other = api.stores["pods"]
        for number in range(50):  # objects outside of the selector: only bookmarks advance the version
            other.create({"metadata": {"name": f"x-{number}"}, "status": {}})
        before = api.requests["watch pods"]
        await seen.until(lambda: api.requests["watch pods"] >= before + 2)  # the server ends each after a second
        other.log.clear()
        other._oldest = other.version - 1
        add(api, "sb-late")
        await seen.until(lambda: "hf-sb-late" in seen.present)
        assert seen.lists == 1


async def test_a_truncated_event_causes_a_new_list(api: FakeApi, seen: Seen) -> None:
    await seen.until(lambda: api.watches)
    api.broken_lines = 1
    add(api, "sb-half")
    await seen.until(lambda: "hf-sb-half" in seen.present)
    assert seen.lists == 2


NOT_KUBERNETES: dict[str, tuple[int, bytes]] = {
    "page": (200, b"<html><body>Sign in</body></html>"),
    "bad gateway": (502, b"<html><body>502 Bad Gateway</body></html>"),
    "other JSON": (200, b'{"status": "ok"}'),
    "a list": (200, b"[]"),
    "truncated": (200, b'{"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"na'),
    "no version": (200, b'{"kind": "PodList", "metadata": {}, "items": []}'),
    "odd items": (200, b'{"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": ["x"]}'),
    "nothing": (200, b""),
}
"""Answers of what may stand in front of an API server, or in its place."""


@pytest.mark.parametrize("kind", NOT_KUBERNETES)
async def test_an_answer_that_is_not_the_api_servers_removes_nothing(api: FakeApi, seen: Seen, tmp_path: Path, kind: str) -> None:
    """Read as a list, the page of a proxy would report that every sandbox has vanished."""
    status, body = NOT_KUBERNETES[kind]
    client = Api(api.kubeconfig(tmp_path), 5.0)
    path = f"/api/v1/namespaces/{api.namespace}/pods"
    async with contextlib.aclosing(client):
        with api.replaced_by(status, body, only="list pods") as answered:
            api.pods.forget_history()
            api.drop_watches()
            await seen.until(lambda: answered["list pods"] >= 2)
            with pytest.raises(RuntimeUnavailableError):
                assert not [one async for one in client.each(path, page=3)]
    add(api, "sb-after")
    await seen.until(lambda: "hf-sb-after" in seen.present)
    assert seen.vanished == []


@pytest.mark.parametrize(
    "line",
    [
        b'["ADDED"]',
        b'{"type": "ADDED", "object": "x"}',
        b'{"type": "ADDED", "object": {"metadata": "x"}}',
        b'{"type": "ERROR", "object": {"code": "many"}}',
        b'{"type": "BOOKMARK", "object": {}}',
        b'{"type": "BOOKMARK"}',
        b'{"status": "ok"}',
        b"<html>",
        b"null",
    ],
)
async def test_a_watch_continues_after_events_that_no_api_server_sends(api: FakeApi, seen: Seen, line: bytes) -> None:
    await seen.until(lambda: api.watches)
    with api.replaced_by(200, line + b"\n", only="watch pods") as answered:
        api.drop_watches()
        await seen.until(lambda: answered["watch pods"] >= 2)
    add(api, "sb-after")
    await seen.until(lambda: "hf-sb-after" in seen.present)
    assert seen.vanished == []


async def test_a_watch_outlives_an_outage_of_any_length(api: FakeApi, tmp_path: Path) -> None:
    """After three hours without an answer there have been more than 1024 failures."""
    client = Api(api.kubeconfig(tmp_path), 5.0)
    watch = Watch(client, f"/api/v1/namespaces/{api.namespace}/pods", SELECTOR, read_pod, QUICK)
    watch._failures = 1100
    api.refuse = [("list pods", RefusedError(503, "ServiceUnavailable", "etcd is away"))]
    seen = Seen(watch)
    async with contextlib.aclosing(client), in_background(seen.run(), "watch"):
        await seen.until(lambda: seen.lists == 1)


async def test_pages_that_go_stale_start_the_list_over(api: FakeApi, tmp_path: Path) -> None:
    for number in range(7):
        add(api, f"sb-{number}")
    api.expire_pages = 1
    async with watching(api, tmp_path) as seen:
        await seen.until(lambda: seen.lists == 1)
        assert len(seen.present) == 7
        assert api.requests["list pods"] == 2 + 3


async def test_a_list_is_retried_after_errors_of_the_server(api: FakeApi, tmp_path: Path) -> None:
    errors = [RefusedError(500, "InternalError", "etcdserver: leader changed")] * 3 + [RefusedError(429, "TooManyRequests", "slow down")]
    api.refuse = [("list pods", error) for error in errors]
    add(api, "sb-1")
    async with watching(api, tmp_path) as seen:
        await seen.until(lambda: seen.lists == 1)
        assert list(seen.present) == ["hf-sb-1"]
        assert api.refuse == []


async def test_a_pod_that_leaves_the_selector_is_reported_as_vanished(api: FakeApi, seen: Seen) -> None:
    api.pods.merge("hf-sb-2", {"metadata": {"labels": {"app.kubernetes.io/component": "other"}}})
    await seen.until(lambda: "hf-sb-2" in seen.vanished)


async def test_a_watch_without_history_reports_and_keeps_no_earlier_objects(api: FakeApi, tmp_path: Path) -> None:
    def write(name: str, kind: str = "Warning") -> None:
        about = {"kind": "Pod", "name": "hf-sb-1", "uid": "u"}
        body = {"metadata": {"name": name}, "type": kind, "reason": "Failed", "message": name, "involvedObject": about}
        api.stores["events"].create(body)

    client = Api(api.kubeconfig(tmp_path), 5.0)
    watch = Watch(client, f"/api/v1/namespaces/{api.namespace}/events", "", read_warning, QUICK, fields=WARNINGS, history=False)
    found: list[str] = []

    async def follow() -> None:
        async with contextlib.aclosing(watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Changed(warned, _):
                        found.append(warned.message)

    for number in range(7):  # three pages
        write(f"before-{number}")
    async with contextlib.aclosing(client), in_background(follow(), "watch"):
        await until_async(lambda: api.watches, deadline_s=DEADLINE_S, what="the watch")
        write("nothing of a pod's", kind="Normal")
        write("after")
        await until_async(lambda: "after" in found, deadline_s=DEADLINE_S, what="the warning")
        api.stores["events"].forget_history()
        api.drop_watches()
        await until_async(lambda: api.requests["list events"] >= 2, deadline_s=DEADLINE_S, what="the version to continue from")
        write("later")
        await until_async(lambda: "later" in found, deadline_s=DEADLINE_S, what="the warning after a break")
    assert found == ["after", "later"]
    assert not watch.known


async def test_a_slow_listener_is_not_cancelled(api: FakeApi, tmp_path: Path) -> None:
    """The watch's time limit passes long before the listener has handled a change: this ends the watch, not the listener."""
    client, clock = Api(api.kubeconfig(tmp_path), 5.0), asyncio.get_running_loop().time
    settings = replace(QUICK, overdue_s=0.1 - QUICK.server_limit_s)
    watch = Watch(client, f"/api/v1/namespaces/{api.namespace}/pods", SELECTOR, read_pod, settings)
    add(api, "sb-0")
    handled: list[str] = []
    try:
        async with contextlib.aclosing(watch.changes()) as changes:
            async for change in changes:
                if isinstance(change, Listed):
                    add(api, "sb-1")
                elif isinstance(change, Changed):
                    handled.append(change.object.name)
                    handled_at = clock() + 0.3
                    await until_async(lambda end=handled_at: clock() > end, deadline_s=DEADLINE_S, what="the listener")
                    if len(handled) == 2:
                        add(api, "sb-2")
                    if len(handled) == 3:
                        break
    finally:
        await client.aclose()
    assert handled == ["hf-sb-0", "hf-sb-1", "hf-sb-2"]
