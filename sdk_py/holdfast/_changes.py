"""What a client sends to change a sandbox, and to select sandboxes by their labels: checked before it is sent.

Owns the body of ``PATCH /sandboxes/{id}`` and the parameters ``label``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast._arguments import LIFETIME_MOST_S, bad, given, labels_of, seconds_up_to, words_of


def update_body(
    labels: Mapping[str, str | None] | None,
    lifetime_s: float | None,
    idle_timeout_s: float | None,
    heartbeat_timeout_s: float | None,
) -> dict[str, Any]:
    """The body of a change. Raises ``InvalidArgumentError``, also if nothing is changed."""
    body: dict[str, Any] = {}
    if labels is not None:
        labels_of({name: "" if value is None else value for name, value in labels.items()} if isinstance(labels, Mapping) else labels)
        body["labels"] = dict(labels)
    if lifetime_s is not None:
        body["lifetime_s"] = seconds_up_to(LIFETIME_MOST_S, lifetime_s, "lifetime_s", "to end it now, call delete()")
    for name, value in given(idle_timeout_s=idle_timeout_s, heartbeat_timeout_s=heartbeat_timeout_s).items():
        removed = value == 0 and not isinstance(value, bool)
        body[name] = None if removed else seconds_up_to(LIFETIME_MOST_S, value, name, "0 removes the limit")
    if not body:
        raise bad("give labels, lifetime_s, idle_timeout_s or heartbeat_timeout_s")
    return body


def label_query(labels: Mapping[str, str] | None, selector: str | Sequence[str] = ()) -> list[tuple[str, str]]:
    """The parameters ``label`` of a list or of events: these labels, and the requirements of ``selector``."""
    texts = [f"{name}={'=' if value.startswith('=') else ''}{value}" for name, value in labels_of(labels).items()]
    texts += words_of([selector] if isinstance(selector, str) else selector, "selector")
    return [("label", text) for text in texts]
