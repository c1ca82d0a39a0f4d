"""Decides how many spares of each image to keep, by the number of recent creates.

Owns the policy and its numbers; creates no container. An image that was requested gets `least` spares; an image that is requested more
often gets as many as there were creates of it in the last WINDOW_S, where older creates count less. All images together have at most `most`
spares, which depends on the machine's memory, or at most TOTAL if no image needs more than the minimum. Used by spares.py.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from typing import Generic, TypeVar

TOTAL = 8
"""Most spares, in all, of images that are requested only occasionally."""
WINDOW_S = 30.0
SPARE_BYTES = 16 << 20
"""Memory of a waiting agent: about 6 MiB of its own, its mounts and namespaces, and what its first command adds."""
_SHARE = 32
"""Spares may take at most 1/32 of the machine's memory."""
_MOST = 128
Key = TypeVar("Key")


def most_spares(memory_bytes: int | None = None) -> int:
    """The largest number of spares on a machine with this much memory (default: this machine)."""
    if memory_bytes is None:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(TOTAL, min(_MOST, memory_bytes // _SHARE // SPARE_BYTES))


class Demand(Generic[Key]):
    """Creates by image. Time is an argument, in seconds of any clock that does not go back."""

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most
        self._weights: OrderedDict[Key, tuple[float, float]] = OrderedDict()

    def asked(self, key: Key, now: float) -> None:
        """Count a create of the image."""
        self._weights[key] = (self._weight(key, now) + 1.0, now)
        self._weights.move_to_end(key)

    def forget(self, key: Key) -> None:
        self._weights.pop(key, None)

    def wanted(self, now: float) -> dict[Key, int]:
        """How many spares of each image to keep, beginning with the image that was requested last.

        Images for which there is no room are left out.
        """
        if not self.least:
            return {}
        usual, left = TOTAL, self.most
        counts: dict[Key, int] = {}
        for key in reversed(self._weights):
            frequent = math.ceil(self._weight(key, now))
            counts[key] = min(left, frequent if frequent > self.least else min(self.least, usual))
            usual -= min(self.least, usual)
            left -= counts[key]
        for key in [key for key, count in counts.items() if not count]:
            del counts[key]
            self.forget(key)
        return counts

    def _weight(self, key: Key, now: float) -> float:
        weight, at = self._weights.get(key, (0.0, now))
        return weight * math.exp((at - now) / WINDOW_S)
