"""Isolation fails closed: a sandbox that must be isolated does not start before a probe has shown that isolation works, and does not
continue after probes have shown that it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.model.options import AllowedRange, Egress
from gateway.runtimes.base import EndAnnounced, RuntimeUnavailableError, SandboxEnded, Synced
from gateway.runtimes.kubernetes.api.client import ApiError
from gateway.runtimes.kubernetes.cluster import network_probe
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings
from tests.conformance.runtimes import CREATE_S, next_of, order
from tests.gateway.harness import id_of_adas, serve
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.objects import RefusedError
from tests.support.kube.probe_pods import ProbePods
from tests.support.kube.server import FakeApi
from tests.support.pace import Stopwatch
from tests.support.requires import requires
from tests.support.until import until_async

VERDICT_SEEN_S = 2.0
"""Time after which every gateway uses a verdict that was written."""
INTERNET, LISTED = Egress("internet"), Egress("listed", (AllowedRange("1.1.1.0/24"),))


@pytest_asyncio.fixture
async def gateway(api: FakeApi, kubelet: object, tmp_path: Path) -> AsyncIterator[KubernetesRuntime]:
    """The runtime of a gateway in a deployment whose controller has not probed yet."""
    api.probed = False
    made = KubernetesRuntime(settings_for(api, tmp_path), "replica-2", QUICK)
    yield made
    await made.aclose()


@pytest.mark.alone
@pytest.mark.parametrize("egress", [Egress(), LISTED])
async def test_creates_wait_for_the_first_verdict(gateway: KubernetesRuntime, api: FakeApi, egress: Egress) -> None:
    creates = [asyncio.create_task(gateway.create(order(f"sb-{n}", egress=egress), CREATE_S)) for n in range(3)]
    await until_async(lambda: api.requests["get networkpolicies"] >= 3, deadline_s=60, what="repeated requests for the verdict")
    assert not any(task.done() for task in creates)
    assert api.pods.names() == []
    with Stopwatch() as watch:
        api.note_verdict(holds=True)
        await until_async(lambda: len(api.pods.names()) == 3, deadline_s=60, what="the pods")
        assert watch.elapsed_s <= VERDICT_SEEN_S
    await asyncio.gather(*creates)


@pytest.mark.alone
async def test_waiting_creates_are_refused_after_a_leak(gateway: KubernetesRuntime, api: FakeApi) -> None:
    creating = asyncio.create_task(gateway.create(order("sb-1"), CREATE_S))
    await until_async(lambda: api.requests["get networkpolicies"] >= 2, deadline_s=60, what="requests for the verdict")
    api.note_verdict(holds=False, leaks=True)
    with Stopwatch() as watch:
        with pytest.raises(HoldfastError, match="cannot be isolated from the network") as caught:
            await creating
        assert watch.elapsed_s <= VERDICT_SEEN_S
    assert caught.value.code == "unsupported"
    assert api.pods.names() == []


@pytest.mark.parametrize("inconclusive", [False, True])
async def test_without_a_verdict_the_wait_is_bounded_and_typed(
    gateway: KubernetesRuntime, api: FakeApi, inconclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_probe, "_CREATE_WAIT_S", 0.3)
    if inconclusive:
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


async def test_a_create_with_open_network_does_not_wait_for_a_verdict(gateway: KubernetesRuntime, api: FakeApi) -> None:
    await gateway.create(order("sb-1", egress=INTERNET), CREATE_S)
    assert api.requests["get networkpolicies"] == 2, "the nodes' verdict for the profile and for the bundle, not the network's"


async def test_creates_work_again_within_a_minute_of_the_repair_of_a_network(gateway: KubernetesRuntime, api: FakeApi) -> None:
    """The controller of a cluster whose last probe, half a minute ago, found a leak; the plugin was repaired since."""
    api.note_verdict(holds=False, leaks=True, age_s=30.0)
    with pytest.raises(HoldfastError, match="cannot be isolated"):
        await gateway.create(order("sb-1"), CREATE_S)
    assert ControllerSettings().collect_interval_s <= 30.0
    controllers = KubernetesRuntime(gateway.settings, "controller", QUICK)
    with ProbePods(api).run():
        await controllers.collect()

    async def works() -> bool:
        try:
            await gateway.create(order("sb-2"), CREATE_S)
        except HoldfastError:
            return False
        return True

    await until_async(works, deadline_s=60, what="a create")
    await controllers.aclose()


@pytest.mark.alone
async def test_a_later_verdict_takes_effect_within_seconds(gateway: KubernetesRuntime, api: FakeApi) -> None:
    api.note_verdict(holds=True)
    await gateway.create(order("sb-1"), CREATE_S)
    api.note_verdict(holds=False, leaks=True)
    refused: list[str] = []

    async def create_refused() -> bool:
        name = f"sb-late-{api.requests['create pods']}"
        try:
            await gateway.create(order(name), CREATE_S)
        except HoldfastError as error:
            refused.append(error.code)
        return bool(refused)

    with Stopwatch() as watch:
        await until_async(create_refused, deadline_s=60, what="a refusal")
        assert watch.elapsed_s <= VERDICT_SEEN_S
    assert refused == ["unsupported"]
    api.note_verdict(holds=True)  # its network was repaired

    async def create_accepted() -> bool:
        try:
            await gateway.create(order("sb-3"), CREATE_S)
        except HoldfastError:
            return False
        return True

    await until_async(create_accepted, deadline_s=60, what="a create to be accepted again")


async def test_an_inconclusive_probe_does_not_replace_an_earlier_verdict(gateway: KubernetesRuntime, api: FakeApi) -> None:
    api.note_verdict(holds=True)
    found = await network_probe.found(gateway.api, gateway.settings)
    with ProbePods(api).run():
        await network_probe.probe(gateway.api, gateway.settings)
    inconclusive = await network_probe.probe(gateway.api, gateway.settings, 0.1)
    assert not inconclusive.conclusive
    assert await network_probe.known(gateway.api, gateway.settings) == inconclusive
    kept = await network_probe.found(gateway.api, gateway.settings)
    assert kept is not None
    assert found is not None
    assert kept.holds
    await gateway.create(order("sb-1"), CREATE_S)


async def test_while_the_api_server_is_unavailable_the_last_verdict_holds(gateway: KubernetesRuntime, api: FakeApi) -> None:
    guard = network_probe.EnforcementGuard(gateway.api, gateway.settings)
    api.note_verdict(holds=False, leaks=True)
    with pytest.raises(HoldfastError, match="cannot be isolated"):
        await guard.check(Egress())
    guard._asked_at = float("-inf")
    gateway.api.call = _away  # type: ignore[method-assign]
    with pytest.raises(HoldfastError, match="cannot be isolated"):
        await guard.check(Egress())


async def _away(*_: object, **__: object) -> dict[str, object]:
    raise ApiError(503, "Unreachable", "away")


@pytest.mark.parametrize("leaks_again", [True, False])
async def test_running_isolated_sandboxes_end_after_two_leaks(runtime: KubernetesRuntime, api: FakeApi, leaks_again: bool) -> None:
    """After one probe that found a leak, creates are refused; running sandboxes are ended only when a second probe finds it too."""
    for name, egress in (("sb-none", Egress()), ("sb-listed", LISTED), ("sb-open", INTERNET)):
        await runtime.create(order(name, egress=egress), CREATE_S)
    events = runtime.watch()
    await next_of(events, Synced)
    api.probed = False
    with ProbePods(api, enforced=False).run() as probe_pods:

        def change_network(entry: object) -> None:
            probe_pods.enforced = probe_pods.played >= 2 and not leaks_again

        api.pods.on_write.insert(0, change_network)
        await runtime.collect()
        api.pods.on_write.remove(change_network)
        assert probe_pods.played == 2
    if not leaks_again:
        assert {present.sandbox_id for present in await runtime.list_all()} == {"sb-none", "sb-listed", "sb-open"}
        return
    reported: set[tuple[str, str]] = set()
    async with asyncio.timeout(60):
        async for event in events:
            if isinstance(event, EndAnnounced | SandboxEnded):
                assert (event.cause.reason, event.cause.fault) == ("isolation", "infrastructure")
                reported.add((type(event).__name__, event.sandbox_id))
            if len(reported) == 4:
                break
    assert {name for _, name in reported} == {"sb-none", "sb-listed"}
    await until_async(lambda: api.pods.names() == ["hf-sb-open"], deadline_s=60, what="the pods of isolated sandboxes to be gone")
    with pytest.raises(HoldfastError, match="cannot be isolated"):
        await runtime.create(order("sb-4"), CREATE_S)
    await events.aclose()  # type: ignore[attr-defined]


async def test_other_failures_do_not_keep_sandboxes_without_isolation(
    runtime: KubernetesRuntime, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither old policies that cannot be read, nor a failed probe of the nodes, nor one pod that cannot be changed."""
    for name in ("sb-1", "sb-2"):
        await runtime.create(order(name), CREATE_S)
    runtime.policies.collect = _away  # type: ignore[assignment,method-assign]
    runtime._nodes.probe_when_due = _away  # type: ignore[assignment,method-assign]
    api.refuse = [("patch pods", RefusedError(500, "InternalError", "a webhook failed"))]
    api.probed = False
    with ProbePods(api, enforced=False).run(), pytest.raises(ApiError):
        await runtime.collect()
    await until_async(lambda: len(api.pods.names()) == 1, deadline_s=60, what="the other pod to be gone")
    assert api.refuse == []


@requires("redis")
async def test_over_rest_an_unknown_verdict_is_a_503_that_leaves_nothing(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path) as served, served.client() as client:
        served.runtime.refuse = RuntimeUnavailableError("not known yet", made_nothing=True, retry_after_s=5)
        request = {"json": {"image": "host", "wait": True, "sandbox_id": "sb-1"}, "headers": {"Idempotency-Key": "k"}}
        answer = await client.post("/sandboxes", **request)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "runtime_unavailable", "5")
        assert await served.store.get(id_of_adas("sb-1")) is None
        assert served.runtime.deleted == []
        answer = await client.post("/sandboxes", **request)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
