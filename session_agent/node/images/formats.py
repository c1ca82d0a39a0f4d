"""Reading an image: OCI layout or archive, docker archive, root tar, root directory.

Owns the recognition of the format and the reading of its metadata; returns an `ImageSource` with layers that unpack themselves and check
their digests. The content is untrusted: sizes of metadata are limited, and blobs are found by digest in one directory. Called by
store.py, off the event loop.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import platform
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.node.images import directories
from session_agent.node.images.configuration import read_config
from session_agent.node.images.layers import Budget, LayerLimits, invalid, members_of, parts_of, unpack
from session_agent.node.images.links import link_at, without_links
from session_agent.node.images.streams import decompressed

_MAX_METADATA = 8 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_ANY_PROCESSOR = ("", "v1", "v8")
"""Variants that run on every processor of their architecture (amd64/v3, for example, does not). They are preferred, in any order."""


@dataclass(frozen=True, slots=True)
class Layer:
    """`digest` is that of the unpacked content; `unpack` fills an empty directory or raises image_invalid."""

    digest: str
    unpack: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image in a recognised format. Layers are lowest first."""

    digest: str
    layers: list[Layer]
    created: str = ""
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    volumes: tuple[str, ...] = ()
    entrypoint: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    """What else the configuration has (``configuration.rest_of``)."""


@contextlib.contextmanager
def open_image(path: str, workspace: str, limits: LayerLimits) -> Iterator[ImageSource]:
    """Recognise the format of *path*; *workspace* is an empty directory for temporary files."""
    budget = Budget(limits)
    if os.path.isdir(path):
        if os.path.isfile(os.path.join(path, "oci-layout")):
            yield _oci(path, budget)
        else:
            yield _directory(path, budget)
        return
    if not os.path.isfile(path):
        raise HoldfastError("image_invalid", f"there is no file or directory {path}")
    unpacked = os.path.join(workspace, "archive")
    os.mkdir(unpacked)
    # Unpack in one pass without knowing the format: the members that distinguish an archive from a root tar may come last.
    digest = _read_archive(path, unpacked, Budget(limits))
    if os.path.isfile(os.path.join(unpacked, "oci-layout")):
        yield _oci(unpacked, budget)
    elif os.path.isfile(os.path.join(unpacked, "manifest.json")):
        yield _docker(unpacked, budget)
    else:
        yield ImageSource(digest, [Layer(digest, lambda target: os.rename(unpacked, target))])


def _read_archive(path: str, target: str, budget: Budget) -> str:
    with open(path, "rb") as file:
        digest = _unpack_tar(file, target, budget, whiteouts=False)
    if not budget.entries:
        raise invalid("an empty archive")
    return digest


def _unpack_layer(directory: str, name: str, budget: Budget, blob: str | None, diff: str, target: str) -> None:
    """Unpack the file *name* of an image into *target*. *blob* is its digest, if known, and *diff* that of its uncompressed content."""
    with _open_file(directory, name) as file:
        if blob is not None and f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != blob:
            raise invalid(f"a blob does not match its digest: {blob}")
        file.seek(0)
        found = _unpack_tar(file, target, budget, whiteouts=True)
    if found != diff:
        raise invalid(f"a layer's content is {found}, not {diff}")


def _unpack_tar(file: io.BufferedReader, target: str, budget: Budget, *, whiteouts: bool) -> str:
    """Unpack *file*, which may be compressed. Returns the digest of the uncompressed content."""
    with decompressed(file, budget) as content:
        unpack(members_of(io.BufferedReader(content, 1 << 18)), target, budget, whiteouts=whiteouts)
        return content.drain()


def _open_file(directory: str, name: str) -> io.BufferedReader:
    """Open a regular file of the image in *directory*; links on its path are resolved inside.

    A named pipe, which would block, is refused. Archives of older docker versions link a repeated layer to its first copy.
    """
    try:
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            parts = without_links(parts_of(name), functools.partial(link_at, root))
            fd = os.open("/".join(parts) or ".", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root)
        finally:
            os.close(root)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return open(fd, "rb")
        os.close(fd)
    except OSError as error:
        raise invalid(f"cannot read {name[:200]}: {error.strerror}") from error
    raise invalid(f"{name[:200]} is no file")


def _oci(directory: str, budget: Budget) -> ImageSource:
    digest = _choose(_metadata(directory, "index.json").get("manifests"))
    manifest = _blob(directory, digest)
    for _ in range(3):
        if "manifests" not in manifest:
            break
        digest = _choose(manifest["manifests"])
        manifest = _blob(directory, digest)
    config = _blob(directory, _digest_of(manifest.get("config")))
    blobs = [_digest_of(layer) for layer in _list(manifest.get("layers"))]
    return _source(directory, digest, [(_blob_name(blob), blob) for blob in blobs], config, budget)


def _docker(directory: str, budget: Budget) -> ImageSource:
    manifest = _metadata(directory, "manifest.json", kind=list)
    if len(manifest) != 1 or not isinstance(manifest[0], dict):
        raise invalid(f"an archive of {len(manifest)} images: save one at a time")
    config = _metadata(directory, str(manifest[0].get("Config")))
    raw = json.dumps(config, sort_keys=True).encode()
    files = [(str(layer), None) for layer in _list(manifest[0].get("Layers"))]
    return _source(directory, f"sha256:{hashlib.sha256(raw).hexdigest()}", files, config, budget)


def _directory(path: str, budget: Budget) -> ImageSource:
    digest = directories.tree_digest(path)
    return ImageSource(digest, [Layer(digest, lambda target: unpack(directories.members_of(path), target, budget, whiteouts=False))])


def _metadata(directory: str, name: str, digest: str | None = None, kind: type = dict) -> Any:
    with _open_file(directory, name) as file:
        raw = file.read(_MAX_METADATA + 1)
    if len(raw) > _MAX_METADATA:
        raise invalid(f"{name[:200]} is larger than {_MAX_METADATA} bytes")
    if digest is not None and f"sha256:{hashlib.sha256(raw).hexdigest()}" != digest:
        raise invalid(f"a blob does not match its digest: {digest}")
    try:
        body = json.loads(raw)
        if b"\\u" in raw:  # an unpaired surrogate, which no path or environment can hold, becomes U+FFFD, as in docker
            text = json.dumps(body, ensure_ascii=False)
            body = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError) as error:
        raise invalid(f"{name[:200]} is not JSON") from error
    if not isinstance(body, kind):
        raise invalid(f"{name[:200]} is not a JSON {kind.__name__}")
    return body


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _blob(directory: str, digest: str) -> dict[str, Any]:
    body: dict[str, Any] = _metadata(directory, _blob_name(digest), digest)
    return body


def _choose(manifests: object) -> str:
    """The manifest for this machine, or the only one if no platforms are named."""
    entries = [entry for entry in _list(manifests) if isinstance(entry, dict)]
    wanted = ARCHITECTURES.get(platform.machine(), platform.machine())
    fitting: list[tuple[bool, dict[str, Any]]] = []
    for entry in entries:
        its = entry.get("platform")
        if isinstance(its, dict) and its.get("architecture") == wanted and its.get("os", "linux") == "linux":
            fitting.append((its.get("variant", "") in _ANY_PROCESSOR, entry))
    if fitting:
        return _digest_of(max(fitting, key=lambda found: found[0])[1])
    # An image with several names has an entry for each of them; signatures are not images.
    plain = {_digest_of(entry) for entry in entries if not isinstance(entry.get("platform"), dict) and not entry.get("artifactType")}
    if len(plain) == 1:
        return plain.pop()
    if len(plain) > 1:
        raise invalid(f"an archive of {len(plain)} images: save one at a time")
    raise invalid(f"{len(entries)} manifests, none for linux/{wanted}" if entries else "no manifest")


def _digest_of(descriptor: object) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise invalid("a descriptor without a sha256 digest")
    return digest


def _source(directory: str, digest: str, files: Sequence[tuple[str, str | None]], config: dict[str, Any], budget: Budget) -> ImageSource:
    """*files* are the files of the layers in *directory*, with their digests if known."""
    rootfs = config.get("rootfs")
    diffs = _list(rootfs.get("diff_ids") if isinstance(rootfs, dict) else None)
    if len(diffs) != len(files) or not all(isinstance(diff, str) and _DIGEST.fullmatch(diff) for diff in diffs):
        raise invalid("layers and their content digests do not match")
    layers = [
        Layer(diff, functools.partial(_unpack_layer, directory, name, budget, blob, diff))
        for (name, blob), diff in zip(files, diffs, strict=True)
    ]
    created = config.get("created")
    return ImageSource(digest, layers, created=created if isinstance(created, str) else "", **read_config(config.get("config")))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
