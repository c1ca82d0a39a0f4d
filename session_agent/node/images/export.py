"""Writing an image of the store as an OCI archive, which docker, podman and this store read.

Owns the way back from overlay's form of a layer to that of an archive: whiteouts and opaque directories become files with reserved names.
Layers are not compressed. The archive of an image depends on nothing but its content. Called by store.py, off the event loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from session_agent.node.images.formats import ARCHITECTURES
from session_agent.node.images.layers import NOBODY, OPAQUE, WHITEOUT, XATTR, Member, image_attribute
from session_agent.node.images.links import OPAQUE_XATTR
from session_agent.node.kernel.namespaces import IdMap
from session_agent.trees import DIRECTORY, Entry, walk

_MEDIA = "application/vnd.oci.image"


def write_archive(file: IO[bytes], layers: Sequence[str], config: Mapping[str, Any], name: str, created: str, ids: IdMap | None) -> None:
    """Write the image with these directories as layers, lowest first, and the OCI configuration *config* to *file*.

    *ids*: the map by which the owners of the files were changed when they were stored. Raises OSError.
    """
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        described, diffs = [], []
        for layer in layers:
            with _temporary(file) as content:
                digest = write_layer(layer, content, ids)
                size = content.tell()
                content.seek(0)
                _add(archive, f"blobs/sha256/{digest}", content, size)
            described.append({"mediaType": f"{_MEDIA}.layer.v1.tar", "digest": f"sha256:{digest}", "size": size})
            diffs.append(f"sha256:{digest}")
        body = {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": created,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": diffs},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _blob(archive, body, f"{_MEDIA}.config.v1+json"),
            "layers": described,
        }
        entry = _blob(archive, manifest, f"{_MEDIA}.manifest.v1+json")
        entry["annotations"] = {"org.opencontainers.image.ref.name": name}
        _put(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        _put(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def largest_bytes(layers: Sequence[str]) -> int:
    """How much room an archive takes while it is written: holes are written out, and a layer exists twice. Raises OSError."""
    sizes = [_archived_bytes(layer) for layer in layers]
    return sum(sizes) + max(sizes, default=0)


def _archived_bytes(layer: str) -> int:
    total, seen = 0, set[int]()
    with contextlib.closing(walk(os.open(layer, DIRECTORY))) as entries:
        for entry in entries:
            if stat.S_ISREG(entry.state.st_mode) and entry.state.st_ino not in seen:
                seen.add(entry.state.st_ino)
                total += entry.state.st_size
    return total


def write_layer(directory: str, content: IO[bytes], ids: IdMap | None) -> str:
    """Write a layer's directory as an archive; returns the SHA-256 of the archive. Raises OSError."""
    hashed = _Hashed(content)
    with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        linked: dict[int, str] = {}
        with contextlib.closing(walk(os.open(directory, DIRECTORY))) as entries:
            for entry in entries:
                for member, data in _members(entry, linked, ids):
                    archive.addfile(member, data)
    return hashed.digest.hexdigest()


class _Hashed:
    """A file that is only written to, and hashed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _members(entry: Entry, linked: dict[int, str], ids: IdMap | None) -> Iterator[Member]:
    """The members of an archive for one entry: none for a socket, two for an opaque directory."""
    path, state = "/".join(entry.path), entry.state
    name, mode = entry.path[-1] if entry.path else ".", state.st_mode
    member = tarfile.TarInfo(path or "./")
    member.mode, member.uid, member.gid = stat.S_IMODE(mode), _inside(state.st_uid, ids), _inside(state.st_gid, ids)
    seconds, rest = divmod(state.st_mtime_ns, 10**9)
    member.mtime, member.pax_headers = seconds, {"mtime": f"{seconds}.{rest:09}"} if rest else {}
    if entry.is_directory:
        member.type = tarfile.DIRTYPE
        member.pax_headers |= _attributes(entry.parent)
        yield member, None
        if _is_opaque(entry.parent):
            yield tarfile.TarInfo(f"{path}/{OPAQUE}" if path else OPAQUE), None
    elif stat.S_ISCHR(mode):
        yield tarfile.TarInfo("/".join((*entry.path[:-1], f"{WHITEOUT}{name}"))), None
    elif state.st_nlink > 1 and state.st_ino in linked:
        member.type, member.linkname = tarfile.LNKTYPE, linked[state.st_ino]
        yield member, None
    elif stat.S_ISLNK(mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=entry.parent)
        yield member, None
    elif stat.S_ISFIFO(mode):
        member.type = tarfile.FIFOTYPE
        yield member, None
    elif stat.S_ISREG(mode):
        if state.st_nlink > 1:
            linked[state.st_ino] = path
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.parent), "rb") as file:
            member.size = state.st_size
            member.pax_headers |= _attributes(file.fileno())
            yield member, file


def _attributes(opened: int) -> dict[str, str]:
    names = [name for name in sorted(os.listxattr(opened)) if image_attribute(name)]
    return {f"{XATTR}{name}": os.getxattr(opened, name).decode("utf-8", "surrogateescape") for name in names}


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, OPAQUE_XATTR) == b"y"
    except OSError:
        return False


def _inside(number: int, ids: IdMap | None) -> int:
    inside = number if ids is None else ids.inside(number)
    return NOBODY if inside is None else inside


@contextlib.contextmanager
def _temporary(beside: IO[bytes]) -> Iterator[IO[bytes]]:
    """An unnamed file on the file system of *beside*."""
    folder = os.path.dirname(os.path.realpath(f"/proc/self/fd/{beside.fileno()}"))
    with open(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), "w+b") as file:
        yield file


def _blob(archive: tarfile.TarFile, body: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    data = json.dumps(body, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    _put(archive, f"blobs/sha256/{digest}", data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _put(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    _add(archive, name, io.BytesIO(data), len(data))


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.addfile(member, content)
