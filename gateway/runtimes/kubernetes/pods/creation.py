"""Pod creation: from a request to a pod whose agent has answered and proved its identity, or to a typed error within seconds.

Owns the get-or-create by name, the waiting and the dialling, and the adoption of a spare's pod. One watch serves all creates
(``pod_watch``). The agent is dialled as soon as the pod has an address, before the kubelet reports that it runs. A failed pod is kept until
the caller has recorded the cause: to the controller it would otherwise have vanished.
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

from gateway.agents.dial import DialError, adopt_agent, dial_any
from gateway.model.records import SandboxSpec
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.api.client import JSON_PATCH, Api, ApiError, ApiUnreachableError, refused
from gateway.runtimes.kubernetes.names import EGRESS, NAME, OWNER, POOL, PROFILE, SANDBOX, label_value, pod_name
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from . import pod_events
from .failures import Failure
from .manifest import labels
from .pod_watch import PodChanges, PodWatch
from .profiles import no_user_namespaces
from .record import annotations_of
from .status import ASKED_GRACE_S, PodStatus, read_pod

log = logging.getLogger("gateway.kubernetes")

_DIAL_S = 2.0
"""Time limit of one attempt to reach an agent."""
_DIAL_LEAST_S, _DIAL_MOST_S = 0.02, 0.25
_EAGER_S = 0.6
"""An agent needs about 0.2 s from its pod's address to its first answer: until then the dialling interval is shortest, then it grows."""
_RETRY_S = 0.25
_AWAY_S = 20.0
"""An API server that returns server errors for this long is reported as unavailable, so that a caller with a long timeout learns of it."""
_DROPPED = "the cluster gives pods no user namespaces: its API server drops hostUsers (older than 1.33, or UserNamespacesSupport is off)"
_NO_ANSWER_S = 5.0
"""The same for an API server that does not answer at all."""
_LOOK_S = 2.0
"""How often a pod that another replica created, which this one's watch does not cover, is read. Also the fallback for a failed watch."""
_OWN_LOOK_S = 15.0
_SLOW_S, _SLOW_MOST_S = 15.0, 60.0
"""A pod that has had a node for this long and does not run has its events queried; then again with growing intervals. The watch of all
warnings shows the same sooner; this is for what it missed. The API server reads all events of the namespace for each query."""


_HAS_USERS_S = 600.0
"""How long the verdict that the API server accepts user namespaces is valid. Each pod's actual namespace is checked as well."""
_FAILURES = 1000
"""How many failed creates are remembered, for pods whose own status does not show the failure yet."""


class NoBundleError(HoldfastError):
    """The image volume of a pod does not hold the bundle: the same pod with the bundle copied in may start."""

    def __init__(self, facts: PodStatus, error: HoldfastError) -> None:
        super().__init__(error.code, error.message, hint=error.hint, fault=error.fault, reason=error.reason)
        self.facts = facts


class PodCreation:
    """See the module."""

    def __init__(self, api: Api, pod_watch: PodWatch, pods: str, settings: KubernetesSettings) -> None:
        self._has_users_until = float("-inf")
        self._failures: dict[str, Failure] = {}
        self._api = api
        self._pod_watch = pod_watch
        self._pods = pods
        self._settings = settings

    async def create(self, manifest: dict[str, Any], incarnation: str, tokens: Sequence[str], timeout_s: float) -> str:
        """Create the pod, or find the existing one, and wait for its agent, which knows one of ``tokens``.

        A pod that is late is kept: another replica may have reached its agent, and only the caller knows.
        """
        name = manifest["metadata"]["name"]
        facts: PodStatus | None = None
        async with self._pod_watch.follow(name) as changes:
            try:
                async with asyncio.timeout(timeout_s):
                    facts, ours = await self._pod(manifest, incarnation)
                    return await self._until_ready(facts, ours, tokens, changes)
            except TimeoutError:
                last = changes.latest or facts
                await self._answers(last)
                stage = last.stage if last is not None else "the cluster did not accept the pod"
                if last is not None and last.placed and not last.started:
                    stage = (await pod_events.ask(self._api, self._settings, last)).text or stage
                message = f"the sandbox was not ready within {timeout_s:g} s: {stage}"
                raise HoldfastError("create_timeout", message, reason="timeout") from None

    async def adopt(self, spare_id: str, request: CreateRequest, timeout_s: float) -> str:
        """Turn a spare's pod into the requested sandbox: claim the pod, then give its agent the new identity, once.

        Raises ``sandbox_not_found`` when the spare is gone, taken, or could not be adopted; in the last case it is removed.
        """
        facts, token = await self._claim(spare_id, request.spec)
        spec = request.spec
        identity = {"sandbox_id": spec.name, "incarnation": spec.incarnation, "env": request.env, "labels": spec.labels}
        endpoint = endpoint_of(facts)
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await adopt_agent(endpoint, token, request.token, identity, timeout_s)
                except HoldfastError:  # another replica that creates the same sandbox may have adopted the agent already
                    (await dial_any(endpoint, (request.token, *request.other_tokens), timeout_s)).transport.abort()
            return endpoint
        except (HoldfastError, TimeoutError, OSError) as error:
            await self.tidy(facts)
            raise HoldfastError("sandbox_not_found", f"the spare did not become the sandbox: {error}") from error
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.shield(self.tidy(facts))
            raise

    async def _claim(self, spare_id: str, spec: SandboxSpec) -> tuple[PodStatus, str]:
        """The spare's pod, now claimed, and the token that its agent still uses.

        One JSON patch tests for the spare's own identity, so of any number of callers exactly one wins; callers that create the same
        sandbox share the claim. A spare of another profile does not match; the controller removes it (``runtime_events.status_of``).
        """
        marks = labels(spec, self._settings)
        changes: list[dict[str, Any]] = [
            {"op": "test", "path": _label(SANDBOX), "value": label_value(spare_id)},
            {"op": "test", "path": _label(PROFILE), "value": self._settings.sandbox_profile},
            {"op": "replace", "path": _label(SANDBOX), "value": marks[SANDBOX]},
            {"op": "replace", "path": _label(EGRESS), "value": marks[EGRESS]},
            *({"op": "add", "path": _label(name), "value": marks[name]} for name in (NAME, OWNER) if name in marks),
            {"op": "remove", "path": _label(POOL)},
            *(
                {"op": "add", "path": f"/metadata/annotations/{_escaped(name)}", "value": text}
                for name, text in annotations_of(spec).items()
            ),
        ]
        path = f"{self._pods}/{pod_name(spare_id)}"
        try:
            try:
                body = await self._api.patch(path, changes, JSON_PATCH)
            except ApiError as error:
                if error.status != 422:
                    raise
                body = await self._api.get(path)  # perhaps another replica patched it for the same sandbox
        except ApiError as error:
            if error.status in (404, 409):
                raise HoldfastError("sandbox_not_found", "the spare no longer exists") from None
            raise
        facts = read_pod(body)
        if facts.record is None or (facts.record.sandbox_id, facts.record.incarnation) != (spec.sandbox_id, spec.incarnation):
            raise HoldfastError("sandbox_not_found", "the spare was taken by another create")
        if facts.deadline is not None or not facts.ip or facts.ended() is not None:
            raise HoldfastError("sandbox_not_found", "the spare is being deleted")
        environment = body["spec"]["containers"][0].get("env") or []  # the runtime does not know the deployment's secret
        return facts, next(str(one.get("value")) for one in environment if one["name"] == "HOLDFAST_AGENT_TOKEN")

    async def _answers(self, facts: PodStatus | None) -> None:
        """Raise ``RuntimeUnavailableError`` where the API server is down: then the sandbox is not what is late."""
        try:
            async with asyncio.timeout(_DIAL_S):
                await self._api.get(self._pods if facts is None else f"{self._pods}/{facts.name}", {} if facts else {"limit": "1"})
        except ApiError as error:
            if error.status >= 500:
                raise
        except TimeoutError:
            raise ApiUnreachableError("no answer") from None

    async def reach(self, facts: PodStatus, tokens: Sequence[str]) -> str:
        """Dial until the agent of exactly this pod answers."""
        endpoint = endpoint_of(facts)
        clock = asyncio.get_running_loop().time
        pause_s, began = _DIAL_LEAST_S, clock()
        while True:
            with contextlib.suppress(DialError):
                dialled = await dial_any(endpoint, tokens, _DIAL_S)
                dialled.transport.abort()
                return endpoint
            await asyncio.sleep(pause_s)
            if clock() - began > _EAGER_S:
                pause_s = min(pause_s * 1.3, _DIAL_MOST_S)

    async def tidy(self, facts: PodStatus, grace_s: int = ASKED_GRACE_S) -> None:
        """Delete a pod that did not become a sandbox; the grace period shows who requested that. The controller retries what fails here."""
        try:
            await self._api.remove(f"{self._pods}/{facts.name}", grace_s, uid=facts.uid)
        except HoldfastError as error:
            log.warning("a failed pod could not be removed: %s", error.message)

    async def _pod(self, manifest: dict[str, Any], incarnation: str) -> tuple[PodStatus, bool]:
        """The pod, and whether this replica's watch covers it. Waits while a previous pod of that name terminates."""
        name = manifest["metadata"]["name"]
        if manifest["spec"].get("hostUsers") is False:
            await self._check_user_namespaces(manifest)
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            try:
                made = await self._api.post(self._pods, manifest)
                self._pod_watch.retry_now()
                if not _as_private(made, manifest):
                    await self.tidy(read_pod(made), grace_s=0)  # at once: its root user would be the node's
                    raise no_user_namespaces(_DROPPED)
                return read_pod(made), True
            except ApiError as error:
                if error.status == 409:
                    found = await self._existing(name)
                    if found is not None and found.deadline is None:
                        if found.record is None or found.record.incarnation != incarnation:
                            raise HoldfastError("sandbox_exists", f"another sandbox already has the name {name}") from None
                        return found, False
                elif not error.is_temporary:
                    raise refused(error) from None
                elif error.status >= 500 and clock() - began >= (_NO_ANSWER_S if isinstance(error, ApiUnreachableError) else _AWAY_S):
                    raise
                # A temporary error, or no answer at all: creating by name is safe to repeat.
                await asyncio.sleep(error.retry_after_s or _RETRY_S)

    async def _check_user_namespaces(self, manifest: dict[str, Any]) -> None:
        """Check whether the server knows user namespaces: one that does not drops the field silently, and root would be the node's root."""
        clock = asyncio.get_running_loop().time
        if clock() < self._has_users_until:
            return
        try:
            answer = await self._api.call("POST", self._pods, {"dryRun": "All"}, body=manifest)
        except ApiError as error:
            if error.status == 409 or error.is_temporary:
                return  # the pod exists already, or creating it will report the error
            raise refused(error) from None
        if not _as_private(answer, manifest):
            raise no_user_namespaces(_DROPPED)
        self._has_users_until = clock() + _HAS_USERS_S

    async def _existing(self, name: str) -> PodStatus | None:
        try:
            return read_pod(await self._api.get(f"{self._pods}/{name}"))
        except ApiError as error:
            if error.status == 404 or error.is_temporary:
                return None
            raise

    async def _look(self, facts: PodStatus) -> PodStatus:
        """The current state of the same pod, or the last known one where the API server fails. Raises when the pod is gone."""
        try:
            again = read_pod(await self._api.find(f"{self._pods}/{facts.name}") or {})  # a pod that does not exist has no uid
        except ApiError as error:
            if error.is_temporary:
                return facts
            raise
        if again.uid != facts.uid:
            raise _deleted()
        return again

    async def _until_ready(self, facts: PodStatus, ours: bool, tokens: Sequence[str], changes: PodChanges) -> str:
        """Wait until the agent answers, or the pod's status shows that it never will."""
        dialling: asyncio.Task[str] | None = None
        changed = asyncio.ensure_future(changes.changed())
        clock = asyncio.get_running_loop().time
        patience_s, ask_at = _SLOW_S, clock() + _SLOW_S
        asked: Failure | None = None
        try:
            while True:
                facts = _with_warnings(facts, changes, asked)
                self._judge(facts)
                if dialling is None and facts.ip:
                    dialling = asyncio.ensure_future(self.reach(facts, tokens))
                waits: list[asyncio.Future[Any]] = [changed] if dialling is None else [changed, dialling]
                slow = facts.placed and not facts.started and facts.failure is None
                wait_s = min(self._patience(facts, ours), max(ask_at - clock(), 0.0) if slow else _OWN_LOOK_S)
                done, _ = await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if dialling is not None and dialling in done:
                    return dialling.result()
                if changed in done:
                    changed = asyncio.ensure_future(changes.changed())
                    if changes.latest is not None and changes.latest.uid == facts.uid:
                        facts = changes.latest
                        if changes.gone:
                            self._judge(facts)
                            raise _deleted()
                    else:
                        facts = await self._look(facts)  # the event was of a previous or later pod of this name
                elif not done:
                    if slow and clock() >= ask_at:
                        patience_s = min(2 * patience_s, _SLOW_MOST_S)
                        ask_at = clock() + patience_s
                        asked = (await pod_events.ask(self._api, self._settings, facts)).failure or asked
                    facts = await self._look(facts)
                if facts.deadline is not None:
                    self._judge(facts)
                    raise _deleted()
        finally:
            changed.cancel()
            if dialling is not None:
                dialling.cancel()

    def _judge(self, facts: PodStatus) -> None:
        if facts.failure is not None and facts.failure.kind == "bundle":
            raise NoBundleError(facts, facts.failure.error())
        failure = facts.failed(time.time(), self._settings)
        if failure is not None:
            self._failures[facts.uid] = failure
            if len(self._failures) > _FAILURES:
                del self._failures[next(iter(self._failures))]
            raise failure.error()

    def with_failure(self, facts: PodStatus) -> PodStatus:
        """Completed with the failure of its create: a warning comes up to ten seconds before the pod's status shows the same."""
        failure = None if facts.started or facts.failure is not None else self._failures.get(facts.uid)
        return facts if failure is None else replace(facts, failure=failure)

    def _patience(self, facts: PodStatus, ours: bool) -> float:
        """How long to wait before the pod is read although no event came."""
        look_s = _OWN_LOOK_S if ours else _LOOK_S
        if facts.failure is None or facts.failure.lasting:
            return look_s
        return max(min(look_s, facts.given_up_at(facts.failure, self._settings) - time.time() + 0.05), 0.05)


def _with_warnings(facts: PodStatus, changes: PodChanges, asked: Failure | None) -> PodStatus:
    """A pod whose status does not show its failure, completed with its kubelet's warnings."""
    if facts.failure is not None or facts.started or not facts.placed:
        return facts
    failures = (pod_events.failure_of(facts, one.reason, one.message) for one in reversed(changes.warned) if one.pod_uid == facts.uid)
    failure = next((one for one in failures if one is not None), asked)
    return facts if failure is None else replace(facts, failure=failure)


def _as_private(made: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether a pod that requires a user namespace has one."""
    return asked["spec"].get("hostUsers") is not False or (made.get("spec") or {}).get("hostUsers") is False


def _deleted() -> HoldfastError:
    return HoldfastError("sandbox_failed", "the sandbox was deleted while it was being created", reason="deleted")


def endpoint_of(facts: PodStatus) -> str:
    """The endpoint to dial, with the identity that the agent must prove."""
    host = f"[{facts.ip}]" if ":" in facts.ip else facts.ip
    return f"tcp://{host}:{AGENT_PORT}#{facts.uid}"


def _label(name: str) -> str:
    return f"/metadata/labels/{_escaped(name)}"


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
