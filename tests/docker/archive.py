"""Writes an OCI archive of layers that are directories in overlay's own form.

Owns the tar of each layer: numeric owners, all permission bits, `security.capability` and `user.*` attributes, FIFOs, hard links,
and whiteouts in the OCI form (`.wh.NAME`, `.wh..wh..opq`). Layers are stored as they are, without compression.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def write_oci_archive(path: Path, layers: Sequence[Path], config: dict[str, Any]) -> None:
    """An OCI image layout in a tar at *path*."""
    files: list[Path] = []
    try:
        for number, layer in enumerate(layers):
            files.append(path.with_name(f"{path.name}.layer{number}"))
            _write_layer(files[-1], layer)
        digests = [_digest_of(file) for file in files]
        blobs: dict[str, bytes] = {}

        def put(body: dict[str, Any], kind: str) -> dict[str, Any]:
            data = json.dumps(body).encode()
            digest = hashlib.sha256(data).hexdigest()
            blobs[digest] = data
            return {"mediaType": f"application/vnd.oci.image.{kind}+json", "digest": f"sha256:{digest}", "size": len(data)}

        image = {
            "architecture": "amd64",
            "os": "linux",
            "created": "2024-01-01T00:00:00Z",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
        described = [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{digest}", "size": file.stat().st_size}
            for digest, file in zip(digests, files, strict=True)
        ]
        manifest = put({"schemaVersion": 2, "config": put(image, "config.v1"), "layers": described}, "manifest.v1")
        with tarfile.open(path, "w") as archive:
            _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())
            for digest, data in blobs.items():
                _add(archive, f"blobs/sha256/{digest}", data)
            for digest, file in zip(digests, files, strict=True):
                archive.add(file, f"blobs/sha256/{digest}")
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_layer(target: Path, root: Path) -> None:
    seen: dict[tuple[int, int], str] = {}
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for folder, names, files in os.walk(root):
            names.sort()
            inside = Path(folder).relative_to(root)
            _member(archive, root, inside, seen)
            if _is_opaque(folder):
                _add(archive, (inside / ".wh..wh..opq").as_posix(), b"")
            if inside.as_posix() == "dev":  # a container has its own
                names.clear()
                continue
            for name in sorted([*files, *(name for name in names if os.path.islink(os.path.join(folder, name)))]):
                _member(archive, root, inside / name, seen)


def _member(archive: tarfile.TarFile, root: Path, inside: Path, seen: dict[tuple[int, int], str]) -> None:
    path = root / inside
    state = path.lstat()
    if stat.S_ISCHR(state.st_mode) and state.st_rdev == 0:
        _add(archive, inside.with_name(f".wh.{inside.name}").as_posix(), b"")
        return
    if stat.S_ISSOCK(state.st_mode):
        return
    info = tarfile.TarInfo(inside.as_posix())
    info.mode, info.uid, info.gid, info.mtime = stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid, int(state.st_mtime)
    attributes = [] if path.is_symlink() else os.listxattr(path)
    info.pax_headers = {
        f"SCHILY.xattr.{name}": os.getxattr(path, name).decode("utf-8", "surrogateescape")
        for name in attributes
        if name == "security.capability" or (name.startswith("user.") and name not in _OPAQUE)
    }
    first = seen.setdefault((state.st_dev, state.st_ino), inside.as_posix()) if state.st_nlink > 1 and not path.is_dir() else info.name
    if first != info.name:
        info.type, info.linkname = tarfile.LNKTYPE, first
    elif path.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISDIR(state.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISFIFO(state.st_mode):
        info.type = tarfile.FIFOTYPE
    elif stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode):
        info.type = tarfile.CHRTYPE if stat.S_ISCHR(state.st_mode) else tarfile.BLKTYPE
        info.devmajor, info.devminor = os.major(state.st_rdev), os.minor(state.st_rdev)
    else:
        info.size = state.st_size
        with path.open("rb") as file:
            archive.addfile(info, file)
        return
    archive.addfile(info)


def _is_opaque(folder: str) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(folder, name) == b"y":
                return True
        except OSError:
            continue
    return False
