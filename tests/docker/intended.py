"""The differences that are meant: a case's name and the reason why a sandbox does not do what docker does there.

A case listed here must differ; one that no longer does fails, so that this list stays true. Keep it short.
"""

from __future__ import annotations

INTENDED: dict[str, str] = {}
