"""Image names in one form: ``registry/repository:tag`` or ``registry/repository@digest``.

Owns parsing and docker's defaults (docker.io, library/, :latest). Data in, data out.
"""

from __future__ import annotations

import re

from holdfast_wire.errors import HoldfastError

_STEP = "localhost/build-step:"
"""The beginning of the names of images that are the state after one step of a build."""
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_DOMAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?")
_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def normalise(name: str) -> str:
    """The full form of a name. Raises HoldfastError(invalid_argument) if it cannot be an image's name."""
    rest = name.removeprefix("docker://")
    rest, at, digest = rest.partition("@")
    first, slash, others = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        domain, path = first, others
    else:
        domain, path = "docker.io", rest
    if domain == "index.docker.io":
        domain = "docker.io"
    repository, colon, tag = path.partition(":")
    if domain == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    valid = (
        len(name) <= 512
        and _DOMAIN.fullmatch(domain)
        and all(_PART.fullmatch(part) for part in repository.split("/"))
        and (not colon or _TAG.fullmatch(tag))
        and (not at or _DIGEST.fullmatch(digest))
    )
    if not valid:
        raise HoldfastError("invalid_argument", f"{name!r} is not an image name", hint="write it as repository:tag, lower case")
    base = f"{domain}/{repository}"
    return f"{base}@{digest}" if at else f"{base}:{tag or 'latest'}"


def is_step(name: str) -> bool:
    """Whether an image, by its full name, is kept only for later builds."""
    return name.startswith(_STEP)


def short_name(name: str) -> str:
    """The short form that users type: without docker.io, library/ and :latest."""
    return name.removeprefix("docker.io/").removeprefix("library/").removesuffix(":latest")
