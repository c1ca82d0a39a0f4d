"""From an order to a pod whose agent has answered and proved itself, or to a typed error within seconds.

Owns the get-or-create by name, the waiting and the dialling. One watch serves all creates (``pod_watch``); the agent is dialled as soon as
the pod has an address, which is before the kubelet has told anybody that it runs. A pod that failed stays until its caller has written down
why: to the controller it would else be one that vanished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast_wire.bundle import AGENT_PORT
from holdfast_wire.errors import HoldfastError

from gateway.agents.dial import DialError, dial_any
from gateway.runtimes.base import Made
from gateway.runtimes.kubernetes.api.client import Api, ApiError, ApiUnreachableError, refused
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from . import pod_events
from .pod_watch import Births, News
from .profiles import no_user_namespaces
from .status import ASKED_GRACE_S, Facts, Trouble, read_pod

log = logging.getLogger("gateway.kubernetes")

_DIAL_S = 2.0
"""Longest one attempt to reach an agent takes."""
_DIAL_LEAST_S, _DIAL_MOST_S = 0.02, 0.25
_EAGER_S = 0.6
"""An agent needs about 0.2 s from its pod's address to its first answer: so long it is dialled at the shortest interval, then ever less."""
_RETRY_S = 0.25
_AWAY_S = 20.0
"""An API server that answers with troubles of its own for so long is said to be away: whoever creates may wait long, and should know."""
_DROPPED = "the cluster gives pods no user namespaces: its API server drops hostUsers (older than 1.33, or UserNamespacesSupport is closed)"
_UNHEARD_S = 5.0
"""The same of one that does not answer at all."""
_LOOK_S = 2.0
"""A pod that another replica made is not in this one's watch: it is looked at this often. Also the net under a watch that fails."""
_OWN_LOOK_S = 15.0
_WARNED_S = 1.5
"""A pod that has a node for so long and does not run: the kubelets' warnings are listened to. Most run before."""
_SLOW_S, _SLOW_MOST_S = 4.0, 30.0
"""A pod that has a node for so long and does not run is asked after among the events; then again, ever less often."""


_HAS_USERS_S = 600.0
"""How long it is good that the API server takes a pod's own user namespace. What each pod was given is looked at as well."""
_TROUBLES = 1000
"""How many failed creates are remembered, for pods whose own status does not say so yet."""


class NoBundleError(HoldfastError):
    """The image volume of a pod does not hold the bundle: the same pod with the bundle copied in may start."""

    def __init__(self, facts: Facts, error: HoldfastError) -> None:
        super().__init__(error.code, error.message, fault=error.fault, reason=error.reason)
        self.facts = facts


class Creating:
    """See the module."""

    def __init__(self, api: Api, births: Births, pods: str, settings: KubernetesSettings) -> None:
        self._has_users_until = float("-inf")
        self._troubles: dict[str, Trouble] = {}
        self._api = api
        self._births = births
        self._pods = pods
        self._settings = settings

    async def create(self, manifest: dict[str, Any], incarnation: str, tokens: Sequence[str], timeout_s: float) -> Made:
        """Make the pod, or find the one that was made before, and wait for its agent, which knows one of ``tokens``.

        A pod that is late stays: another replica may have reached its agent, and only the caller knows.
        """
        name = manifest["metadata"]["name"]
        facts: Facts | None = None
        async with self._births.follow(name) as news:
            try:
                async with asyncio.timeout(timeout_s):
                    facts, ours = await self._pod(manifest, incarnation)
                    return await self._until_ready(facts, ours, tokens, news)
            except TimeoutError:
                last = news.latest or facts
                await self._answers(last)
                stage = last.stage if last is not None else "the cluster did not take it"
                if last is not None and last.placed and not last.started:
                    stage = (await pod_events.ask(self._api, self._settings, last)).text or stage
                raise HoldfastError("create_timeout", f"it was not ready within {timeout_s:g} s: {stage}", reason="timeout") from None

    async def _answers(self, facts: Facts | None) -> None:
        """Raise ``RuntimeUnavailableError`` where the API server is away: then it is not the sandbox that is late."""
        try:
            async with asyncio.timeout(_DIAL_S):
                await self._api.get(self._pods if facts is None else f"{self._pods}/{facts.name}", {} if facts else {"limit": "1"})
        except ApiError as error:
            if error.status >= 500:
                raise error.unavailable() from error
        except TimeoutError:
            raise ApiUnreachableError("no answer").unavailable() from None

    async def reach(self, facts: Facts, tokens: Sequence[str]) -> Made:
        """Dial until the agent of this very pod answers."""
        endpoint = endpoint_of(facts)
        clock = asyncio.get_running_loop().time
        pause_s, began = _DIAL_LEAST_S, clock()
        while True:
            with contextlib.suppress(DialError):
                dialled = await dial_any(endpoint, tokens, _DIAL_S)
                dialled.transport.abort()
                return Made(endpoint, facts.uid)
            await asyncio.sleep(pause_s)
            if clock() - began > _EAGER_S:
                pause_s = min(pause_s * 1.3, _DIAL_MOST_S)

    async def tidy(self, facts: Facts, grace_s: int = ASKED_GRACE_S) -> None:
        """Remove what did not become a sandbox; its grace tells who asked for that. The controller finds what cannot be removed now."""
        body = {"gracePeriodSeconds": grace_s, "propagationPolicy": "Background", "preconditions": {"uid": facts.uid}}
        try:
            await self._api.delete(f"{self._pods}/{facts.name}", body)
        except (ApiError, HoldfastError) as error:
            if not (isinstance(error, ApiError) and error.status in (404, 409)):
                log.warning("a pod that failed could not be removed: %s", error)

    async def _pod(self, manifest: dict[str, Any], incarnation: str) -> tuple[Facts, bool]:
        """The pod, and whether this replica's watch shows it. Waits while a former one of its name goes."""
        name = manifest["metadata"]["name"]
        if manifest["spec"].get("hostUsers") is False:
            await self._has_user_namespaces(manifest)
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            try:
                made = await self._api.post(self._pods, manifest)
                self._births.hurry()
                if not _as_private(made, manifest):
                    await self.tidy(read_pod(made), grace_s=0)  # at once: its root would be the node's
                    raise no_user_namespaces(_DROPPED)
                return read_pod(made), True
            except ApiError as error:
                if error.status == 409:
                    found = await self._existing(name)
                    if found is not None and found.deadline is None:
                        if found.record is None or found.record.incarnation != incarnation:
                            raise HoldfastError("sandbox_exists", f"another sandbox is called {name}") from None
                        return found, False
                elif not error.passing:
                    raise refused(error) from error
                elif error.status >= 500 and clock() - began >= (_UNHEARD_S if isinstance(error, ApiUnreachableError) else _AWAY_S):
                    raise error.unavailable() from error
                # A passing trouble, or no answer at all: the name makes asking again safe.
                await asyncio.sleep(error.retry_after_s or _RETRY_S)

    async def _has_user_namespaces(self, manifest: dict[str, Any]) -> None:
        """A server that does not know them drops the wish silently, and the sandbox's root would be the node's: so it is asked first."""
        clock = asyncio.get_running_loop().time
        if clock() < self._has_users_until:
            return
        try:
            answer = await self._api.call("POST", self._pods, {"dryRun": "All"}, body=manifest)
        except ApiError as error:
            if error.status == 409 or error.passing:
                return  # there is one already, or making it will say what is wrong
            raise refused(error) from error
        if not _as_private(answer, manifest):
            raise no_user_namespaces(_DROPPED)
        self._has_users_until = clock() + _HAS_USERS_S

    async def _existing(self, name: str) -> Facts | None:
        try:
            return read_pod(await self._api.get(f"{self._pods}/{name}"))
        except ApiError as error:
            if error.status == 404 or error.passing:
                return None
            raise error.unavailable() from error

    async def _look(self, facts: Facts) -> Facts:
        """The same pod as it is now, or as it was where the API server is in trouble. Raises when it is gone."""
        try:
            again = read_pod(await self._api.get(f"{self._pods}/{facts.name}"))
        except ApiError as error:
            if error.passing:
                return facts
            raise (_deleted() if error.status == 404 else error.unavailable()) from error
        if again.uid != facts.uid:
            raise _deleted()
        return again

    async def _until_ready(self, facts: Facts, ours: bool, tokens: Sequence[str], news: News) -> Made:
        """Whichever comes first: the agent answers, or the pod says that it never will."""
        dialling: asyncio.Task[Made] | None = None
        changed = asyncio.ensure_future(news.changed())
        clock = asyncio.get_running_loop().time
        patience_s, ask_at, hear_at = _SLOW_S, clock() + _SLOW_S, clock() + _WARNED_S
        asked: Trouble | None = None
        try:
            while True:
                facts = _with_warnings(facts, news, asked)
                self._judge(facts)
                if dialling is None and facts.ip:
                    dialling = asyncio.ensure_future(self.reach(facts, tokens))
                waits: list[asyncio.Future[Any]] = [changed] if dialling is None else [changed, dialling]
                slow = facts.placed and not facts.started and facts.trouble is None
                if slow and clock() >= hear_at:
                    hear_at = float("inf")
                    self._births.hear(news, facts.uid)
                wait_s = min(self._patience(facts, ours), max(min(ask_at, hear_at) - clock(), 0.0) if slow else _OWN_LOOK_S)
                done, _ = await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if dialling is not None and dialling in done:
                    return dialling.result()
                if changed in done:
                    changed = asyncio.ensure_future(news.changed())
                    if news.latest is not None and news.latest.uid == facts.uid:
                        facts = news.latest
                        if news.gone:
                            self._judge(facts)
                            raise _deleted()
                    else:
                        facts = await self._look(facts)  # a former pod of this name, or a later one
                elif not done and not (slow and clock() >= hear_at):
                    if slow and clock() >= ask_at:
                        patience_s = min(2 * patience_s, _SLOW_MOST_S)
                        ask_at = clock() + patience_s
                        asked = (await pod_events.ask(self._api, self._settings, facts)).trouble or asked
                    facts = await self._look(facts)
                if facts.deadline is not None:
                    self._judge(facts)
                    raise _deleted()
        finally:
            changed.cancel()
            if dialling is not None:
                dialling.cancel()

    def _judge(self, facts: Facts) -> None:
        settings = self._settings
        if facts.trouble is not None and facts.trouble.kind == "bundle":
            raise NoBundleError(facts, facts.trouble.error())
        trouble = facts.failed(time.time(), pull_patience_s=settings.pull_patience_s, schedule_patience_s=settings.unschedulable_patience_s)
        if trouble is not None:
            self._troubles[facts.uid] = trouble
            if len(self._troubles) > _TROUBLES:
                del self._troubles[next(iter(self._troubles))]
            raise trouble.error()

    def judged(self, facts: Facts) -> Facts:
        """With the trouble that a create has failed for: a warning comes up to ten seconds before the pod's status says the same."""
        trouble = None if facts.started or facts.trouble is not None else self._troubles.get(facts.uid)
        return facts if trouble is None else replace(facts, trouble=trouble)

    def _patience(self, facts: Facts, ours: bool) -> float:
        """How long until somebody looks again though nothing was heard."""
        look_s = _OWN_LOOK_S if ours else _LOOK_S
        if facts.trouble is None or facts.trouble.lasting:
            return look_s
        patience_s = self._settings.pull_patience_s if facts.trouble.kind == "pull" else self._settings.unschedulable_patience_s
        return max(min(look_s, (facts.trouble.since or facts.created_at) + patience_s - time.time() + 0.05), 0.05)


def _with_warnings(facts: Facts, news: News, asked: Trouble | None) -> Facts:
    """A pod whose status says nothing of its trouble, with what its kubelet has warned of."""
    if facts.trouble is not None or facts.started or not facts.placed:
        return facts
    heard = (pod_events.trouble_of(facts, one.reason, one.message) for one in reversed(news.warned) if one.pod_uid == facts.uid)
    trouble = next((one for one in heard if one is not None), asked)
    return facts if trouble is None else replace(facts, trouble=trouble)


def _as_private(made: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether a pod that was to have users of its own has them."""
    return asked["spec"].get("hostUsers") is not False or (made.get("spec") or {}).get("hostUsers") is False


def _deleted() -> HoldfastError:
    return HoldfastError("sandbox_failed", "it was deleted while it was being made", reason="deleted")


def endpoint_of(facts: Facts) -> str:
    """Where the agent is dialled, and whose it must prove to be."""
    host = f"[{facts.ip}]" if ":" in facts.ip else facts.ip
    return f"tcp://{host}:{AGENT_PORT}#{facts.uid}"
