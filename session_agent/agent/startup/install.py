"""Copies the bundle that this agent was started from into a folder, for clusters without image volumes.

An init container runs it with an empty volume as the target, before the agent's container starts. The manifest is copied last, so that a
folder with a manifest is complete. Called by ``__main__``.
"""

from __future__ import annotations

import os
import sys

_LAST = "manifest.json"
_CHUNK_BYTES = 8 * 1024 * 1024


def install(target: str, source: str = "") -> int:
    """Copy the bundle; returns the number of bytes. Raises ``OSError``."""
    source = source or sys.prefix
    copied = 0
    os.makedirs(target, exist_ok=True)
    for folder, _, names in os.walk(source):
        below = os.path.join(target, os.path.relpath(folder, source))
        os.makedirs(below, exist_ok=True)
        for name in names:
            if not (folder == source and name == _LAST):
                copied += _copy(os.path.join(folder, name), os.path.join(below, name))
    return copied + _copy(os.path.join(source, _LAST), os.path.join(target, _LAST))


def _copy(source: str, target: str) -> int:
    if os.path.lexists(target):
        os.unlink(target)  # left by an init container that was restarted; it may be read-only
    size = 0
    with open(source, "rb", buffering=0) as reading:
        mode = os.fstat(reading.fileno()).st_mode & 0o777
        with open(target, "xb", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600)) as writing:
            while sent := os.sendfile(writing.fileno(), reading.fileno(), None, _CHUNK_BYTES):
                size += sent
            os.fchmod(writing.fileno(), mode)
    return size
