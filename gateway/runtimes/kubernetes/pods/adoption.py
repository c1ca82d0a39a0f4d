"""Turning a spare pod into an ordered sandbox: claim it, then tell its agent who it is now.

Owns the two steps. The claim is one patch that tests for the spare's own identity, so of any number of callers one wins without a look
before; who makes the same sandbox goes on from there. The agent changes its identity once; whatever goes wrong after the claim costs the
pod, and the caller makes one instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from holdfast_wire.errors import HoldfastError

from gateway.agents.adoption import adopt_agent
from gateway.agents.dial import dial_any
from gateway.runtimes.base import Made, Order
from gateway.runtimes.kubernetes.api.client import JSON_PATCH, Api, ApiError
from gateway.runtimes.kubernetes.names import EGRESS, POOL, PROFILE, SANDBOX, UNLABELLED, label_value, pod_name
from gateway.runtimes.kubernetes.settings import KubernetesSettings

from .creation import Creating, endpoint_of
from .manifest import labels
from .record import annotations_of
from .status import Facts, read_pod


async def adopt(
    api: Api, creating: Creating, pods: str, settings: KubernetesSettings, spare_id: str, order: Order, timeout_s: float
) -> Made:
    """The whole of it. Raises ``sandbox_not_found`` when the spare is gone, taken, or did not come along; then it is removed."""
    facts, token = await _claim(api, pods, settings, spare_id, order)
    identity = {"sandbox_id": order.sandbox_id, "incarnation": order.incarnation, "env": order.env, "labels": order.labels}
    endpoint = endpoint_of(facts)
    try:
        async with asyncio.timeout(timeout_s):
            try:
                await adopt_agent(endpoint, token, order.token, identity, timeout_s)
            except HoldfastError:  # another replica that makes the same sandbox may have told it
                (await dial_any(endpoint, (order.token, *order.other_tokens), timeout_s)).transport.abort()
        return Made(endpoint, facts.uid)
    except (HoldfastError, TimeoutError, OSError) as error:
        await creating.tidy(facts)
        raise HoldfastError("sandbox_not_found", f"the spare did not become the sandbox: {error}") from error
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await asyncio.shield(creating.tidy(facts))
        raise


async def _claim(api: Api, pods: str, settings: KubernetesSettings, spare_id: str, order: Order) -> tuple[Facts, str]:
    """The spare's pod, ours from now on, and the token that its agent still has."""
    marks = labels(order, settings)
    # A spare that was made under another profile is not what was ordered; the controller removes it (``runtime_events.present_of``).
    profile: dict[str, Any] = {"op": "test", "path": _label(PROFILE), "value": settings.sandbox_profile}
    if settings.sandbox_profile == UNLABELLED:
        profile = {"op": "test", "path": "/spec/securityContext/runAsNonRoot", "value": order.options.user != 0}
    changes: list[dict[str, Any]] = [
        {"op": "test", "path": _label(SANDBOX), "value": label_value(spare_id)},
        profile,
        {"op": "replace", "path": _label(SANDBOX), "value": marks[SANDBOX]},
        {"op": "replace", "path": _label(EGRESS), "value": marks[EGRESS]},
        {"op": "remove", "path": _label(POOL)},
        *({"op": "add", "path": f"/metadata/annotations/{_escaped(name)}", "value": text} for name, text in annotations_of(order).items()),
    ]
    try:
        body = await _patched(api, f"{pods}/{pod_name(spare_id)}", changes)
    except ApiError as error:
        if error.status in (404, 409):
            raise HoldfastError("sandbox_not_found", "that spare is gone") from None
        raise
    facts = read_pod(body)
    if facts.record is None or (facts.record.sandbox_id, facts.record.incarnation) != (order.sandbox_id, order.incarnation):
        raise HoldfastError("sandbox_not_found", "that spare is taken")
    if facts.deadline is not None or not facts.ip or facts.ended() is not None:
        raise HoldfastError("sandbox_not_found", "that spare is ending")
    return facts, _token(body)


async def _patched(api: Api, path: str, changes: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod with the changes, or as somebody else has changed it before: who makes the same sandbox, and may be gone, or another."""
    try:
        return await api.patch(path, changes, JSON_PATCH)
    except ApiError as error:
        if error.status != 422:
            raise
        return await api.get(path)


def _token(body: dict[str, Any]) -> str:
    """As it stands in the container's environment: the runtime does not know the deployment's secret."""
    environment = body["spec"]["containers"][0].get("env") or []
    return next(str(one.get("value")) for one in environment if one["name"] == "HOLDFAST_AGENT_TOKEN")


def _label(name: str) -> str:
    return f"/metadata/labels/{_escaped(name)}"


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
