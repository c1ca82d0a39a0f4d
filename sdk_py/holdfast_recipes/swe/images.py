"""Names of the images that task sets publish. Owns the rules; pulling is Holdfast's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMED = ("image", "image_name", "docker_image", "image_url")


def swebench_image(instance_id: str) -> str:
    """The image of an instance on Docker Hub: ``__`` cannot stand in a repository's name, so it is written ``_1776_``."""
    return f"docker.io/swebench/sweb.eval.x86_64.{instance_id.replace('__', '_1776_')}:latest".lower()


def image_of(row: Mapping[str, Any]) -> str | None:
    """The image a row names itself, whichever of the usual columns it uses."""
    return next((str(row[key]) for key in _NAMED if row.get(key)), None)
