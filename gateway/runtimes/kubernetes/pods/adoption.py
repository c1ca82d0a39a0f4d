"""Adoption: a spare pod becomes the requested sandbox.

Owns the two steps. The claim is one JSON patch that tests for the spare's own identity, so of any number of callers exactly one wins;
callers that create the same sandbox share the claim. Then the agent is given its new identity, once. If anything fails after the claim,
the pod is discarded and the caller creates a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from holdfast_wire.errors import HoldfastError

from gateway.agents.dial import adopt_agent, dial_any
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.api.client import JSON_PATCH, Api, ApiError
from gateway.runtimes.kubernetes.names import EGRESS, POOL, PROFILE, SANDBOX, UNLABELLED, label_value, pod_name
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .creation import PodCreation, endpoint_of
from .manifest import labels
from .record import annotations_of
from .status import PodStatus, read_pod


async def adopt(
    api: Api, pod_creation: PodCreation, pods: str, settings: KubernetesSettings, spare_id: str, request: CreateRequest, timeout_s: float
) -> str:
    """Both steps. Raises ``sandbox_not_found`` when the spare is gone, taken, or could not be adopted; in the last case it is removed."""
    facts, token = await _claim(api, pods, settings, spare_id, request)
    identity = {"sandbox_id": request.sandbox_id, "incarnation": request.incarnation, "env": request.env, "labels": request.labels}
    endpoint = endpoint_of(facts)
    try:
        async with asyncio.timeout(timeout_s):
            try:
                await adopt_agent(endpoint, token, request.token, identity, timeout_s)
            except HoldfastError:  # another replica that creates the same sandbox may have adopted the agent already
                (await dial_any(endpoint, (request.token, *request.other_tokens), timeout_s)).transport.abort()
        return endpoint
    except (HoldfastError, TimeoutError, OSError) as error:
        await pod_creation.tidy(facts)
        raise HoldfastError("sandbox_not_found", f"the spare did not become the sandbox: {error}") from error
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await asyncio.shield(pod_creation.tidy(facts))
        raise


async def _claim(api: Api, pods: str, settings: KubernetesSettings, spare_id: str, request: CreateRequest) -> tuple[PodStatus, str]:
    """The spare's pod, now claimed, and the token that its agent still uses."""
    marks = labels(request, settings)
    # A spare of another profile does not match the request; the controller removes it (``runtime_events.status_of``).
    profile: dict[str, Any] = {"op": "test", "path": _label(PROFILE), "value": settings.sandbox_profile}
    if settings.sandbox_profile == UNLABELLED:
        profile = {"op": "test", "path": "/spec/securityContext/runAsNonRoot", "value": request.options.user != 0}
    changes: list[dict[str, Any]] = [
        {"op": "test", "path": _label(SANDBOX), "value": label_value(spare_id)},
        profile,
        {"op": "replace", "path": _label(SANDBOX), "value": marks[SANDBOX]},
        {"op": "replace", "path": _label(EGRESS), "value": marks[EGRESS]},
        {"op": "remove", "path": _label(POOL)},
        *(
            {"op": "add", "path": f"/metadata/annotations/{_escaped(name)}", "value": text}
            for name, text in annotations_of(request).items()
        ),
    ]
    try:
        body = await _patched(api, f"{pods}/{pod_name(spare_id)}", changes)
    except ApiError as error:
        if error.status in (404, 409):
            raise HoldfastError("sandbox_not_found", "that spare is gone") from None
        raise
    facts = read_pod(body)
    if facts.record is None or (facts.record.sandbox_id, facts.record.incarnation) != (request.sandbox_id, request.incarnation):
        raise HoldfastError("sandbox_not_found", "that spare is taken")
    if facts.deadline is not None or not facts.ip or facts.ended() is not None:
        raise HoldfastError("sandbox_not_found", "that spare is ending")
    return facts, _token(body)


async def _patched(api: Api, path: str, changes: list[dict[str, Any]]) -> dict[str, Any]:
    """The patched pod, or the pod as another replica patched it for the same sandbox. Raises ``sandbox_not_found``."""
    try:
        return await api.patch(path, changes, JSON_PATCH)
    except ApiError as error:
        if error.status != 422:
            raise
        return await api.get(path)


def _token(body: dict[str, Any]) -> str:
    """The token in the container's environment: the runtime does not know the deployment's secret."""
    environment = body["spec"]["containers"][0].get("env") or []
    return next(str(one.get("value")) for one in environment if one["name"] == "HOLDFAST_AGENT_TOKEN")


def _label(name: str) -> str:
    return f"/metadata/labels/{_escaped(name)}"


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
