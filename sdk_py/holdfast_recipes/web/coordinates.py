"""From the coordinates that a policy writes to pixels of the viewport (P App. C and D, which contradict each other: Z12).

Owns the conversion. "permille" is the convention of Qwen3-VL and of the paper's trace: 0 … 1000 along each side, whatever its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

Convention: TypeAlias = Literal["permille", "pixel"]

VIEWPORT = (1280, 1000)


def to_pixels(point: Sequence[float], size: tuple[int, int] = VIEWPORT, coordinates: Convention = "permille") -> tuple[int, int]:
    """[x, y] → (x, y) in pixels from the upper left: round(x / 1000 · width), at most the last pixel. Raises ValueError for a point
    outside, or one that is not two finite numbers."""
    if len(point) != 2:
        raise ValueError(f"a point must have two coordinates, not {len(point)}")
    pixels = []
    for value, length in zip(point, size, strict=True):
        scale = 1000 if coordinates == "permille" else length
        if isinstance(value, bool) or not 0 <= value <= scale:
            raise ValueError(f"the coordinate {value} is not in 0 … {scale}")
        pixels.append(min(round(Fraction(value) * length / scale), length - 1))
    return pixels[0], pixels[1]
