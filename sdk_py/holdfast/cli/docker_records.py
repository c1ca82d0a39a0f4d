"""Records of sandboxes and images with docker's names, for ``--format`` and for ``holdfast-docker``.

Pure. Owns which of docker's fields there are and what they hold; a field that has no counterpart is left out. The own fields of a record
stay beside them, so that ``{{.status}}`` and ``{{.State.Status}}`` both work.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from holdfast.cli.output import age

if TYPE_CHECKING:
    from holdfast import ImageInfo, SandboxInfo

_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def sandbox_record(info: SandboxInfo) -> dict[str, Any]:
    """As ``docker inspect``."""
    state = _state(info)
    return info.to_map() | {
        "Id": info.sandbox_id,
        "Name": f"/{info.sandbox_id}",
        "Created": _moment(info.created_at),
        "Image": info.image,
        "State": {
            "Status": state,
            "Running": state in ("running", "paused"),
            "Paused": state == "paused",
            "Dead": state == "exited",
            "OOMKilled": info.reason == "oom",
            "Error": info.status_message or "",
            "StartedAt": _moment(info.created_at),
        },
        "Config": {"Image": info.image, "Labels": dict(info.labels)},
        "HostConfig": {"NanoCpus": _nano_cpus(info.cpu), "Memory": _bytes(info.memory)},
    }


def sandbox_row(info: SandboxInfo) -> dict[str, Any]:
    """As a row of ``docker ps --format``."""
    state, since = _state(info), age(info.created_at, time.time())
    return info.to_map() | {
        "ID": info.sandbox_id,
        "Names": info.sandbox_id,
        "Image": info.image,
        "CreatedAt": _moment(info.created_at),
        "RunningFor": f"{since} ago",
        "State": state,
        "Status": f"Up {since}" if state == "running" else state.capitalize(),
        "Labels": ",".join(f"{name}={value}" for name, value in sorted(info.labels.items())),
        "Ports": "",
    }


def image_record(image: ImageInfo) -> dict[str, Any]:
    """As ``docker image inspect``."""
    created = image.created
    return {
        "Id": image.digest,
        "RepoTags": [image.name],
        "RepoDigests": [f"{image.name.rpartition(':')[0] or image.name}@{image.digest}"],
        "Created": _moment(created) if isinstance(created, int | float) else created or "",
        "Size": image.size_bytes,
        "Parent": image.parent or "",
        "name": image.name,
        "digest": image.digest,
        "size_bytes": image.size_bytes,
    }


def image_row(image: ImageInfo) -> dict[str, Any]:
    """As a row of ``docker images --format``."""
    repository, _, tag = image.name.rpartition(":")
    return image_record(image) | {
        "ID": image.digest.removeprefix("sha256:")[:12],
        "Repository": repository or image.name,
        "Tag": tag if repository else "latest",
        "Digest": image.digest,
        "Size": f"{image.size_bytes / 1e6:.3g}MB",
    }


def _state(info: SandboxInfo) -> str:
    if info.status == "failed":
        return "exited"
    if info.status != "ready":
        return "created"
    return "paused" if info.paused else "running"


def _moment(epoch_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s))


def _nano_cpus(cpu: object) -> int:
    text = str(cpu or 0)
    return int(float(text.removesuffix("m")) * (10**6 if text.endswith("m") else 10**9))


def _bytes(size: object) -> int:
    text = str(size or 0)
    return int(float(text[:-2]) * _UNITS[text[-2:]]) if text[-2:] in _UNITS else int(float(text))
