"""The file of projects and stored keys on one machine: ``tenants.json`` in the data folder.

Owns the file's form and its atomic replacement. ``holdfast up`` removes the data of Redis when it starts (decision 0003), so what cannot be
rebuilt from sandboxes is kept here; a cluster has no such file, and its Redis has to keep its data (decision 0120).
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

log = logging.getLogger("gateway.tenants")

_FORM: Final = 1


class TenantFile:
    """Entries by name, with their version. Its methods block for a moment, with a write to the disk at the most."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[int, dict[str, str], dict[str, float]]:
        """The version, the entries, and when each key was used last; 0 and nothing if there is no file.

        Raises ``ValueError`` for a file that cannot be read: a gateway that went on without it would forget which keys are revoked.
        """
        try:
            content = orjson.loads(self._path.read_bytes())
            if content["form"] != _FORM:
                raise ValueError(f"it has the form {content['form']!r}, and this version reads {_FORM}")
            return int(content["version"]), dict(content["entries"]), dict(content["uses"])
        except FileNotFoundError:
            return 0, {}, {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"the file of projects and keys {self._path} cannot be read: {error}") from None

    def write(self, version: int, entries: Mapping[str, str], uses: Mapping[str, float]) -> None:
        """Replace the file in one step, unless it has a later version. Raises ``OSError``."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_name(f".{self._path.name}.lock"), "w") as lock:
            os.fchmod(lock.fileno(), 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.read()[0] > version:
                return
            part = self._path.with_name(f".{self._path.name}.part")
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(orjson.dumps({"form": _FORM, "version": version, "entries": dict(entries), "uses": dict(uses)}))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
