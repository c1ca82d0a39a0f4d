"""The part of earlier turns that a policy sees: all texts, and only the last k screenshots (P §4.2, k = 1).

Owns the cut; the observations themselves are made in the browser layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_IMAGES = ("image", "image_url", "input_image")


def keep_last_images(messages: Sequence[Mapping[str, Any]], k: int = 1) -> list[dict[str, Any]]:
    """Messages of the chat form with image parts in the last ``k`` messages that have any; texts and thoughts all stay.

    The messages given are not changed. A message keeps all of its images or none.
    """
    if k < 0:
        raise ValueError("a number of images cannot be negative")
    with_images = [index for index, message in enumerate(messages) if any(map(_is_image, _parts(message)))]
    kept = set(with_images[len(with_images) - k :]) if k < len(with_images) else set(with_images)
    cut = []
    for index, message in enumerate(messages):
        changed = dict(message)
        if index in with_images and index not in kept:
            changed["content"] = [part for part in _parts(message) if not _is_image(part)]
        cut.append(changed)
    return cut


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _IMAGES
