"""The Kubernetes runtime: ``base.Runtime`` on pods.

Implements the interface with the modules beside it. No command goes through here: once a session is attached, the API server is not
called. Errors of the API server are ``RuntimeUnavailableError``s (``api.client``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from holdfast_wire.errors import HoldfastError

from gateway.model.options import Egress
from gateway.runtimes.base import CreateRequest, Event, RuntimeUnavailableError, SandboxStatus, Synced
from gateway.runtimes.kubernetes.api.client import Api, ApiError, ApiUnreachableError
from gateway.runtimes.kubernetes.api.watch import Changed, Listed, Vanished, Watch, WatchSettings
from gateway.runtimes.kubernetes.cluster.images import ClusterImages
from gateway.runtimes.kubernetes.cluster.injection import InjectionChoice
from gateway.runtimes.kubernetes.cluster.network_probe import EnforcementGuard
from gateway.runtimes.kubernetes.cluster.node_probes import NodeProbes
from gateway.runtimes.kubernetes.network import Policies, egress_key, needs
from gateway.runtimes.kubernetes.pods.creation import NoBundleError, PodCreation
from gateway.runtimes.kubernetes.pods.manifest import pod
from gateway.runtimes.kubernetes.pods.pod_watch import PodWatch
from gateway.runtimes.kubernetes.pods.record import network_annotation
from gateway.runtimes.kubernetes.pods.runtime_events import carried, on_change, on_vanish, status_of
from gateway.runtimes.kubernetes.pods.status import ASKED_GRACE_S, PodStatus, read_pod

from .cluster import capacity, doctor
from .names import EGRESS, ENDING, NETWORK, SANDBOX, SELECTOR, label_value, pod_name
from .settings import KubernetesSettings

log = logging.getLogger("gateway.kubernetes")

_UNISOLATED_GRACE_S = 10
"""Grace period of a sandbox that is ended because its network isolation failed: enough to notify its clients."""

_COLLECT_S = 300.0
"""How often unused policies are looked for."""
_BATCH = 1000
"""Pods that are interpreted before other tasks run."""


class KubernetesRuntime:
    """See ``base.Runtime``."""

    def __init__(self, settings: KubernetesSettings, replica: str, watch: WatchSettings | None = None) -> None:
        self.settings = settings
        self.api = Api(settings.kubeconfig, settings.request_timeout_s)
        self.pods = settings.pods_path
        self._replica = replica
        self._watch_settings = watch or WatchSettings(page=settings.page)
        self._watch: Watch[PodStatus] | None = None
        self._pod_watch = PodWatch(self.api, self.pods, replica, self._watch_settings)
        self._pod_creation = PodCreation(self.api, self._pod_watch, self.pods, settings)
        self.policies = Policies(self.api, settings)
        self._capacity = capacity.Capacity(self.api, settings)
        self._guard = EnforcementGuard(self.api, settings)
        self._nodes = NodeProbes(self.api, settings)
        self._injection_choice = InjectionChoice(self.api, settings, self._nodes)
        self.injection = self._injection_choice.way
        self._images = ClusterImages(self.api, settings, self.injection)
        self._collect_at = float("-inf")

    @property
    def images(self) -> ClusterImages:
        """Images pulled to every node in advance."""
        return self._images

    async def create(self, request: CreateRequest, timeout_s: float) -> str:
        clock = asyncio.get_running_loop().time
        deadline, tokens = clock() + timeout_s, (request.token, *request.other_tokens)
        try:
            async with asyncio.timeout(timeout_s):  # one budget with the pod's own time below
                way = await self.injection()
                manifest = pod(request, self.settings, way, self._replica)
                await self._nodes.check()
                await self._guard.check(request.spec.egress, timeout_s)
                await self.policies.ensure(request.spec.egress)
        except TimeoutError:
            message = f"the API server of the cluster did not answer within the {timeout_s:g} s of the create"
            raise RuntimeUnavailableError(message, made_nothing=True) from None
        try:
            return await self._pod_creation.create(manifest, request.spec.incarnation, tokens, max(deadline - clock(), 0.01))
        except NoBundleError as error:
            if not await self._injection_choice.reject(way, error.message):
                raise
            await self._pod_creation.tidy(error.facts, grace_s=0)
        manifest = pod(request, self.settings, "init", self._replica)
        return await self._pod_creation.create(manifest, request.spec.incarnation, tokens, max(deadline - clock(), 0.01))

    async def delete(self, sandbox_id: str, incarnation: str | None = None) -> bool:
        existed = False
        for facts in await self._find(sandbox_id, incarnation):
            existed |= await self._delete(facts)
        return existed

    async def adopt(self, spare_id: str, request: CreateRequest, timeout_s: float) -> str:
        await self._guard.check(request.spec.egress, timeout_s)
        await self.policies.ensure(request.spec.egress)
        return await self._pod_creation.adopt(spare_id, request, timeout_s)

    async def set_egress(self, sandbox_id: str, incarnation: str, egress: Egress) -> None:
        key = egress_key(egress, self.settings)
        await self._guard.check(egress)
        await self.policies.ensure(egress)
        found = [facts for facts in await self._find(sandbox_id, incarnation) if facts.deadline is None]
        if not found:
            raise HoldfastError("sandbox_not_found", "there is no such sandbox")
        for facts in found:
            metadata = {"uid": facts.uid, "labels": {EGRESS: key}, "annotations": {NETWORK: network_annotation(egress)}}
            try:
                await self.api.patch(f"{self.pods}/{facts.name}", {"metadata": metadata})
            except ApiError as error:
                if error.status not in (404, 409):  # otherwise it has ended, or its name belongs to another pod now
                    raise
                raise HoldfastError("sandbox_not_found", "there is no such sandbox") from None

    async def get(self, sandbox_id: str) -> list[SandboxStatus]:
        found = await self._statuses(f"{SELECTOR},{SANDBOX}={label_value(sandbox_id)}")
        return [status for status in found if status.sandbox_id == sandbox_id]

    async def list_all(self) -> list[SandboxStatus]:
        return await self._statuses(SELECTOR)

    async def list_watched(self) -> list[SandboxStatus]:
        if self._watch is None or not self._watch.current:
            return await self.list_all()
        found: list[SandboxStatus] = []
        pods = list(self._watch.known.values())
        for start in range(0, len(pods), _BATCH):
            found += self._statuses_of(pods[start : start + _BATCH])
            await asyncio.sleep(0)  # the lease is renewed on this loop
        return found

    async def _statuses(self, selector: str) -> list[SandboxStatus]:
        return self._statuses_of([facts async for facts in self._pods_of(selector)])

    def _statuses_of(self, pods: Iterable[PodStatus]) -> list[SandboxStatus]:
        now = time.time()
        statuses = (status_of(self._pod_creation.with_failure(facts), now, self.settings) for facts in pods)
        return [status for status in statuses if status is not None]

    async def watch(self) -> AsyncIterator[Event]:
        self._watch = watch = Watch(self.api, self.pods, SELECTOR, read_pod, self._watch_settings, carried)
        synced = False
        async with contextlib.aclosing(watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Listed():
                        synced = True
                        yield Synced()
                    case Changed(facts, before):
                        for event in on_change(facts, before, self.settings) if synced else ():
                            yield event
                    case Vanished(last, before):
                        for event in on_vanish(last, before):
                            yield event

    async def doctor(self) -> list[dict[str, Any]]:
        return await doctor.checks(self.api, self.settings)

    async def ping(self) -> None:
        # One pod, which need not be there, from the server's cache. Of a list from its cache a server sends everything, whatever the limit.
        try:
            await self.api.get(f"{self.pods}/hf", {"resourceVersion": "0"})
        except ApiError as error:
            if error.api_reason != "NotFound":
                raise

    async def stats(self) -> dict[str, Any]:
        return await self._capacity.stats()

    async def largest(self) -> tuple[float, int] | None:
        return None if self.settings.nodes_grow else await self._capacity.largest()

    async def collect(self) -> int:
        """Remove egress policies that no sandbox needs any more, if that is due, and return how many. Called periodically by the acting
        controller.

        Also probes the network and the nodes if that is due, and ends the sandboxes whose requested network isolation does not work. None
        of these waits for another to succeed; what failed is raised at the end.
        """
        removed, network, nodes = await asyncio.gather(
            self._collect_policies(), self._guard.probe_when_due(), self._nodes.probe_when_due(), return_exceptions=True
        )
        leaks = not isinstance(network, BaseException) and await self._guard.leaks(network)
        ended = await self._end_unisolated() if leaks else 0
        for outcome in (network, nodes):
            if isinstance(outcome, BaseException):
                raise outcome
        if isinstance(removed, BaseException):
            raise removed
        return removed + ended

    async def _collect_policies(self) -> int:
        clock = asyncio.get_running_loop().time
        if clock() < self._collect_at:
            return 0
        removed = await self.policies.collect(time.time())
        self._collect_at = clock() + _COLLECT_S
        return removed

    async def _end_unisolated(self) -> int:
        """End every sandbox that requested network isolation. The reason is annotated on its pod first, for every watcher to report."""
        ended = 0
        failed: ApiError | None = None
        async for facts in self._pods_of(SELECTOR):
            if facts.record is None or facts.deadline is not None or facts.ended() is not None or needs(facts.record.egress) == "none":
                continue
            log.error("sandbox %s is being deleted, because the network does not isolate it", facts.record.sandbox_id)
            try:
                metadata = {"uid": facts.uid, "annotations": {ENDING: "isolation"}}
                await self.api.patch(f"{self.pods}/{facts.name}", {"metadata": metadata})
                ended += await self.api.remove(f"{self.pods}/{facts.name}", _UNISOLATED_GRACE_S, uid=facts.uid)
            except ApiError as error:
                if error.status in (404, 409):
                    continue
                if isinstance(error, ApiUnreachableError):
                    raise
                log.warning("sandbox %s could not be deleted: %s", facts.record.sandbox_id, error.message)
                failed = error
        if failed is not None:
            raise failed
        return ended

    async def aclose(self) -> None:
        await self._pod_watch.aclose()
        await self.api.aclose()

    async def _find(self, sandbox_id: str, incarnation: str | None) -> list[PodStatus]:
        """The sandbox's pods, of that incarnation: the pod with its name, else the pods with its label (adopted spares)."""

        def is_meant(facts: PodStatus) -> bool:
            record = facts.record
            if record is None:  # the annotation was removed by another client of the cluster
                return incarnation is None and facts.name == pod_name(sandbox_id)
            return record.sandbox_id == sandbox_id and incarnation in (None, record.incarnation)

        named = await self.api.find(f"{self.pods}/{pod_name(sandbox_id)}")
        if named is not None and is_meant(facts := read_pod(named)):
            return [facts]
        selector = f"{SELECTOR},{SANDBOX}={label_value(sandbox_id)}"
        return [facts async for facts in self._pods_of(selector) if is_meant(facts)]

    async def _delete(self, facts: PodStatus) -> bool:
        """Whether there was a pod to end. A spare that was taken since it was read is left alone."""
        while not facts.deletion_requested:
            # Without a running process there is nothing that could use the grace period.
            grace_s = ASKED_GRACE_S if facts.started and facts.ended() is None else 0
            version = facts.version if facts.pool else ""
            if await self.api.remove(f"{self.pods}/{facts.name}", grace_s, uid=facts.uid, version=version):
                return True
            now = await self._same(facts) if facts.pool else None
            if now is None:
                return True  # the pod ended, or another pod has its name now
            if not now.pool:
                return False
            facts = now
        return False

    async def _same(self, facts: PodStatus) -> PodStatus | None:
        """The current state of the same pod."""
        now = read_pod(await self.api.find(f"{self.pods}/{facts.name}") or {})  # a pod that does not exist has no uid
        return now if now.uid == facts.uid else None

    async def _pods_of(self, selector: str) -> AsyncIterator[PodStatus]:
        async for one in self.api.each(self.pods, {"labelSelector": selector}, page=self.settings.page):
            yield read_pod(one)
