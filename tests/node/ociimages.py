"""Makes images of every accepted format from a description of their files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from session_agent.node.images.spec import ImageSpec

Member = tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]


def file(name: str, data: str | bytes = b"", mode: int = 0o644, **fields: Any) -> Member:
    raw = data.encode() if isinstance(data, str) else data
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(raw), mode
    return _with(info, fields), raw


def special(name: str, kind: bytes, link: str = "", mode: int = 0o755, **fields: Any) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return _with(info, fields)


def directory(name: str, mode: int = 0o755, **fields: Any) -> Member:
    return special(name, tarfile.DIRTYPE, mode=mode, **fields)


def symlink(name: str, target: str) -> Member:
    return special(name, tarfile.SYMTYPE, target, 0o777)


def hard_link(name: str, target: str) -> Member:
    return special(name, tarfile.LNKTYPE, target)


def _with(info: tarfile.TarInfo, fields: dict[str, Any]) -> tarfile.TarInfo:
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar(members: Sequence[Member]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            info, data = member if isinstance(member, tuple) else (member, b"")
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def oci_layout(folder: Path, layers: Sequence[bytes], config: dict[str, Any] | None = None, *, packed: bool = True) -> Path:
    """An OCI layout of *layers*, which are uncompressed tars and are stored with gzip if *packed*."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str) -> dict[str, Any]:
        (blobs / digest(data)[7:]).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    body = {
        "architecture": "amd64",
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
    }
    described = put(json.dumps(body).encode(), "config.v1+json")
    stored = [put(gzip.compress(layer, mtime=0) if packed else layer, "layer.v1.tar") for layer in layers]
    manifest = {"schemaVersion": 2, "config": described, "layers": stored}
    entry = put(json.dumps(manifest).encode(), "manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def archive_of(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        for item in sorted(folder.rglob("*")):
            archive.add(item, item.relative_to(folder).as_posix(), recursive=False)
    return path


def docker_archive(path: Path, layers: Sequence[bytes], config: dict[str, Any] | None = None, **changes: Any) -> Path:
    body = {"config": config or {}, "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]}}
    entry: dict[str, Any] = {
        "Config": "config.json",
        "RepoTags": ["x:latest"],
        "Layers": [f"{number}/layer.tar" for number in range(len(layers))],
    }
    members = [file("config.json", json.dumps(body)), file("manifest.json", json.dumps([entry | changes]))]
    members += [file(f"{number}/layer.tar", layer) for number, layer in enumerate(layers)]
    path.write_bytes(tar(members))
    return path


def image_layers(spec: ImageSpec) -> list[str]:
    """The layers that came with the image, topmost first: without those that every sandbox has."""
    return [path for path in spec.layers if Path(path).parent.name == "layers"]


BASE = tar(
    [
        directory("./"), directory("etc"), file("etc/os-release", "ID=test\n"), file("etc/hosts", "not ours"),
        directory("data", uid=1000, gid=1000), file("data/old", "old", uid=1000, gid=1000), file("data/kept", "kept"),
        directory("hidden"), file("hidden/a"), file("run.sh", "#!/bin/sh\n", 0o4755),
        symlink("link", "data/kept"), hard_link("twin", "data/kept"), symlink("dev", "data"), symlink("tmp", "/data"),
    ]
)  # fmt: skip


TOP = tar(
    [
        directory("data", uid=1000, gid=1000), file("data/.wh.old"), file("data/new", "new"),
        directory("hidden"), file("hidden/.wh..wh..opq"), file("hidden/b", "b"),
    ]
)  # fmt: skip


CONFIG = {"Env": ["PATH=/opt/bin:/bin", "GREETING=hello=world"], "WorkingDir": "/data", "User": "1000:1000", "Entrypoint": ["/x"]}
"""Two layers and a configuration; with them the tests of images build most of theirs."""
