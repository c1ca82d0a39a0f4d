"""The API's document: ``schemas/openapi.yaml``, read once.

Owns its path. Served as ``/openapi.json``; tests compare it with the route table in both directions.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

_PATH = Path(__file__).resolve().parents[2] / "schemas" / "openapi.yaml"


@functools.cache
def document() -> dict[str, Any]:
    """The document as a map."""
    import yaml  # rarely needed, and not small

    body: dict[str, Any] = yaml.safe_load(_PATH.read_text())
    return body
