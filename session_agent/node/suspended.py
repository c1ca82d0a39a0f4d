"""Sandboxes that were paused to disk: their requests, which outlive the node.

Owns a file for each of them; what they have written is an image that the store holds for them. ``sandboxes`` decides when a sandbox is
written here, and when its file is set aside: right before it runs again, so that a state that has been continued never comes back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict

from session_agent.node.kernel.cgroups import Limits
from session_agent.node.request import CreateRequest

log = logging.getLogger(__name__)
_DRAFT = ".new"
"""The end of the names of files that a later node removes: those that are being written, and those of sandboxes that run again."""


class SuspendedFiles:
    """Below *directory*, readable by the node's user alone: a request contains the token of its agent."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def save(self, request: CreateRequest, created_at: float, shells: str) -> None:
        """Write the file of a sandbox; it is complete or absent after a crash. Raises OSError."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        draft = f"{self._path(request.sandbox_id)}{_DRAFT}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"request": asdict(request), "created_at": created_at, "shells": shells}, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, self._path(request.sandbox_id))

    def set_aside(self, sandbox_id: str) -> None:
        """The sandbox begins to run: a later node does not find it any more. ``put_back`` or ``remove`` follows. Raises OSError."""
        os.rename(self._path(sandbox_id), f"{self._path(sandbox_id)}{_DRAFT}")

    def put_back(self, sandbox_id: str) -> None:
        """It could not run. This needs no room. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):  # it had not been set aside yet
            os.rename(f"{self._path(sandbox_id)}{_DRAFT}", self._path(sandbox_id))

    def remove(self, sandbox_id: str) -> None:
        """Remove the file of a sandbox. Raises OSError."""
        for end in ("", _DRAFT):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path(sandbox_id)}{end}")

    def read_all(self) -> Iterator[tuple[CreateRequest, float, str]]:
        """Each sandbox's request, when it was created (seconds since the epoch), and its shells. Files that cannot be read are logged."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for name in names:
            path = os.path.join(self._directory, name)
            if name.endswith(_DRAFT):
                os.unlink(path)
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    body = json.load(file)
                fields = body["request"]
                fields["limits"] = Limits(**fields["limits"])
                fields["ulimits"] = {kind: (soft, hard) for kind, (soft, hard) in fields["ulimits"].items()}
                yield CreateRequest(**fields), float(body["created_at"]), str(body.get("shells", ""))
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                log.error("a paused sandbox is lost: its file %s cannot be read: %s", name, error)

    def _path(self, sandbox_id: str) -> str:
        return os.path.join(self._directory, f"{sandbox_id}.json")
