"""Isolation fails closed: no sandbox that must be isolated runs before a probe has shown that this works, or after one that
has shown that it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.model.options import AllowedRange, Egress
from gateway.runtimes.base import EndAnnounced, RuntimeUnavailableError, Synced, WentAway
from gateway.runtimes.kubernetes.api.client import ApiError
from gateway.runtimes.kubernetes.cluster import enforcement, network_probe
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.conformance.runtimes import CREATE_S, next_of, order
from tests.gateway.harness import serve
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.canaries import Canaries
from tests.support.kube.server import FakeApi
from tests.support.pace import Stopwatch
from tests.support.requires import requires
from tests.support.until import until_async

HEARD_S = 2.0
"""How soon after it was written every gateway judges by a verdict."""
INTERNET, LISTED = Egress("internet"), Egress("listed", (AllowedRange("1.1.1.0/24"),))


@pytest_asyncio.fixture
async def gateway(api: FakeApi, kubelet: object, tmp_path: Path) -> AsyncIterator[KubernetesRuntime]:
    """Of a deployment whose controller has not probed yet."""
    api.probed = False
    made = KubernetesRuntime(settings_for(api, tmp_path), "replica-2", QUICK)
    yield made
    await made.aclose()


@pytest.mark.parametrize("egress", [Egress(), LISTED])
async def test_creates_wait_for_the_first_verdict(gateway: KubernetesRuntime, api: FakeApi, egress: Egress) -> None:
    creates = [asyncio.create_task(gateway.create(order(f"sb-{n}", egress=egress), CREATE_S)) for n in range(3)]
    await until_async(lambda: api.requests["get networkpolicies"] >= 3, deadline_s=60, what="them to ask again and again")
    assert not any(task.done() for task in creates)
    assert api.pods.names() == []
    with Stopwatch() as watch:
        api.note_verdict(holds=True)
        await until_async(lambda: len(api.pods.names()) == 3, deadline_s=60, what="the pods")
        assert watch.elapsed_s <= HEARD_S
    await asyncio.gather(*creates)


async def test_creates_that_wait_are_refused_by_a_leak(gateway: KubernetesRuntime, api: FakeApi) -> None:
    creating = asyncio.create_task(gateway.create(order("sb-1"), CREATE_S))
    await until_async(lambda: api.requests["get networkpolicies"] >= 2, deadline_s=60, what="it to ask")
    api.note_verdict(holds=False, leaks=True)
    with Stopwatch() as watch:
        with pytest.raises(HoldfastError, match="cannot be isolated from the network") as caught:
            await creating
        assert watch.elapsed_s <= HEARD_S
    assert caught.value.code == "unsupported"
    assert api.pods.names() == []


@pytest.mark.parametrize("says_nothing", [False, True])
async def test_without_a_verdict_the_wait_is_bounded_and_typed(
    gateway: KubernetesRuntime, api: FakeApi, says_nothing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enforcement, "_WAIT_S", 0.3)
    if says_nothing:
        api.note_verdict(holds=False)
    with pytest.raises(RuntimeUnavailableError, match="not known yet") as caught:
        await gateway.create(order("sb-1"), CREATE_S)
    assert caught.value.retryable
    assert caught.value.made_nothing
    assert caught.value.detail["retry_after_s"] > 0
    assert api.pods.names() == []
    monkeypatch.undo()
    with pytest.raises(RuntimeUnavailableError):
        await gateway.create(order("sb-2"), 0.3)  # at most as long as the create may take


async def test_who_asks_for_the_open_network_does_not_wait(gateway: KubernetesRuntime, api: FakeApi) -> None:
    await gateway.create(order("sb-1", egress=INTERNET), CREATE_S)
    assert api.requests["get networkpolicies"] == 2, "the nodes' verdict for the profile and for the bundle, not the network's"


async def test_a_later_verdict_is_heard_within_seconds(gateway: KubernetesRuntime, api: FakeApi) -> None:
    api.note_verdict(holds=True)
    await gateway.create(order("sb-1"), CREATE_S)
    api.note_verdict(holds=False, leaks=True)
    refused: list[str] = []

    async def heard() -> bool:
        name = f"sb-late-{api.requests['create pods']}"
        try:
            await gateway.create(order(name), CREATE_S)
        except HoldfastError as error:
            refused.append(error.code)
        return bool(refused)

    with Stopwatch() as watch:
        await until_async(heard, deadline_s=60, what="a refusal")
        assert watch.elapsed_s <= HEARD_S
    assert refused == ["unsupported"]
    api.note_verdict(holds=True)  # its network was mended

    async def taken() -> bool:
        try:
            await gateway.create(order("sb-3"), CREATE_S)
        except HoldfastError:
            return False
        return True

    await until_async(taken, deadline_s=60, what="it to be taken again")


async def test_a_probe_that_says_nothing_takes_nothing_back(gateway: KubernetesRuntime, api: FakeApi) -> None:
    api.note_verdict(holds=True)
    found = await network_probe.found(gateway.api, gateway.settings)
    with Canaries(api).run():
        await network_probe.probe(gateway.api, gateway.settings)
    nobody = await network_probe.probe(gateway.api, gateway.settings, 0.1)
    assert not nobody.conclusive
    assert await network_probe.known(gateway.api, gateway.settings) == nobody
    kept = await network_probe.found(gateway.api, gateway.settings)
    assert kept is not None
    assert found is not None
    assert kept.holds
    await gateway.create(order("sb-1"), CREATE_S)


async def test_while_the_api_server_is_away_the_last_verdict_counts(gateway: KubernetesRuntime, api: FakeApi) -> None:
    guard = enforcement.EnforcementGuard(gateway.api, gateway.settings)
    api.note_verdict(holds=False, leaks=True)
    with pytest.raises(HoldfastError, match="cannot be isolated"):
        await guard.check(Egress())
    guard._asked_at = float("-inf")
    gateway.api.call = _away  # type: ignore[method-assign]
    with pytest.raises(HoldfastError, match="cannot be isolated"):
        await guard.check(Egress())


async def _away(*_: object, **__: object) -> dict[str, object]:
    raise ApiError(503, "Unreachable", "away")


@pytest.mark.parametrize("again", [True, False])
async def test_what_runs_is_told_and_ended_by_two_leaks(runtime: KubernetesRuntime, api: FakeApi, again: bool) -> None:
    """One probe that found a leak refuses creates; what runs is ended when a second finds it, too."""
    for name, egress in (("sb-none", Egress()), ("sb-listed", LISTED), ("sb-open", INTERNET)):
        await runtime.create(order(name, egress=egress), CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    api.probed = False
    with Canaries(api, enforced=False).run() as canaries:

        def turn(entry: object) -> None:
            canaries.enforced = canaries.played >= 2 and not again

        api.pods.on_write.insert(0, turn)
        await runtime.collect()
        api.pods.on_write.remove(turn)
        assert canaries.played == 2
    if not again:
        assert {present.sandbox_id for present in await runtime.list_all()} == {"sb-none", "sb-listed", "sb-open"}
        return
    told: set[tuple[str, str]] = set()
    async with asyncio.timeout(60):
        async for event in events:
            if isinstance(event, EndAnnounced | WentAway):
                assert (event.cause.reason, event.cause.fault) == ("isolation", "infrastructure")
                told.add((type(event).__name__, event.sandbox_id))
            if len(told) == 4:
                break
    assert {name for _, name in told} == {"sb-none", "sb-listed"}
    await until_async(lambda: api.pods.names() == ["hf-sb-open"], deadline_s=60, what="their pods to be gone")
    with pytest.raises(HoldfastError, match="cannot be isolated"):
        await runtime.create(order("sb-4"), CREATE_S)
    await events.aclose()  # type: ignore[attr-defined]


@requires("redis")
async def test_over_rest_it_is_a_503_that_leaves_nothing(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path) as served, served.client() as client:
        served.runtime.refuse = RuntimeUnavailableError("not known yet", made_nothing=True, retry_after_s=5)
        request = {"json": {"image": "host", "wait": True, "sandbox_id": "sb-1"}, "headers": {"Idempotency-Key": "k"}}
        answer = await client.post("/sandboxes", **request)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "runtime_unavailable", "5")
        assert await served.store.get("sb-1") is None
        assert served.runtime.deleted == []
        answer = await client.post("/sandboxes", **request)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
