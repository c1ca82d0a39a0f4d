"""Writes the bundle as an image of one layer, without Docker: an archive of an OCI layout.

Owns the image's format (OCI image specification 1.0: layout, index, manifest, config, layer), with the tree under the mount path, so
that it serves as an image volume and as an init container. The same bundle always gives the same image. Called by ``__main__``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from holdfast_wire.bundle import MOUNT, agent_command

from session_agent.node.images.names import normalise

from .build import TIME_S, Bundle

_TYPE = "application/vnd.oci.image"
_CREATED = "2020-01-01T00:00:00Z"


def write_archive(bundle: Bundle, target: Path, tag: str) -> str:
    """Write a tar file of an OCI layout, as ``ctr image import`` and registries' tools accept it. Returns the image's digest."""
    files, digest = _image(bundle, tag)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            _add(archive, name, data, 0o644)
    return digest


def _image(bundle: Bundle, tag: str) -> tuple[dict[str, bytes], str]:
    facts = bundle.manifest
    plain = _layer(bundle.folder)
    packed = gzip.compress(plain, compresslevel=6, mtime=0)
    config = {
        "architecture": facts["architecture"],
        "os": "linux",
        "created": _CREATED,
        "config": {
            "Entrypoint": agent_command(),
            "WorkingDir": "/",
            "User": "65532:65532",
            "Labels": {"org.opencontainers.image.title": "holdfast bundle", "holdfast.dev/bundle-digest": facts["digest"]},
        },
        "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
        "history": [{"created": _CREATED, "created_by": "session_agent.bundle"}],
    }
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        digest = _digest(data)
        files[f"blobs/sha256/{digest.removeprefix('sha256:')}"] = data
        return {"mediaType": f"{_TYPE}.{kind}", "digest": digest, "size": len(data)}

    described = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}.manifest.v1+json",
        "config": blob("config.v1+json", _json(config)),
        "layers": [blob("layer.v1.tar+gzip", packed)],
    }
    entry = blob("manifest.v1+json", _json(described))
    name = normalise(tag)
    entry["annotations"] = {"org.opencontainers.image.ref.name": name.rpartition(":")[2], "io.containerd.image.name": name}
    entry["platform"] = {"architecture": facts["architecture"], "os": "linux"}
    files["index.json"] = _json({"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [entry]})
    return dict(sorted(files.items())), str(entry["digest"])


def _layer(folder: Path) -> bytes:
    buffer = io.BytesIO()
    root = MOUNT.strip("/")
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        _add(archive, root, None, 0o755)
        for path in sorted(folder.rglob("*")):
            name = f"{root}/{path.relative_to(folder).as_posix()}"
            if path.is_dir():
                _add(archive, name, None, 0o755)
            else:
                _add(archive, name, path.read_bytes(), path.stat().st_mode & 0o777)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes | None, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.mode = mode
    info.mtime = TIME_S
    if data is None:
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    else:
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
