"""The description of a bundle: ``manifest.json``, and the digest that two equal bundles share.

Owns the list of files with their hashes and modes, and the digest over it. The digest covers names,
modes and contents, and no times. Called by ``build``; the file is read by people and by tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

NAME = "manifest.json"


def entries_of(folder: Path) -> list[dict[str, Any]]:
    """Every file of the bundle except the manifest, by path: its size in bytes, its SHA-256 and whether it is executable."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != NAME:
            data = path.read_bytes()
            executable = bool(path.stat().st_mode & stat.S_IXUSR)
            found.append({"path": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "executable": executable})
    return found


def digest_of(entries: list[dict[str, Any]]) -> str:
    """The digest of the whole tree."""
    lines = "".join(f"{entry['sha256']} {int(entry['executable'])} {entry['path']}\n" for entry in entries)
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def write(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest and return it. ``facts`` describe the parts of the bundle."""
    files = entries_of(folder)
    manifest = {**facts, "digest": digest_of(files), "size_bytes": sum(file["size_bytes"] for file in files), "files": files}
    (folder / NAME).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def settle(folder: Path, time_s: int) -> None:
    """Set the final modes and times of all files: readable by every user of any image, writable by none."""
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            path.chmod(0o755)
        else:
            path.chmod(0o555 if path.stat().st_mode & stat.S_IXUSR else 0o444)
        os.utime(path, (time_s, time_s))
