"""An image as the index of the store describes it. Data only; ``store`` writes and reads it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from session_agent.node.images import names


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image as stored in the index. `layers` are digests, lowest first."""

    name: str
    digest: str
    layers: list[str]
    size_bytes: int
    created: str
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    entrypoint: list[str] = field(default_factory=list)
    base: str = ""
    """``host`` where the layers lie above this machine's own image."""
    parent: str = ""
    """The digest of the image that the sandbox of this snapshot was created from; empty for an image that is no snapshot."""
    owner: str = ""
    """The owner of the key that imported, pulled or committed it; empty for an image that is shared by all owners."""
    config: dict[str, Any] = field(default_factory=dict)
    """Its configuration in OCI's form, as far as the fields above do not have it: Cmd, Labels, ExposedPorts and others (``oci_config``)."""

    @property
    def key(self) -> str:
        """Names the record in the store: names are unique for each owner."""
        return key_of(self.owner, self.name)

    def content_digest(self) -> str:
        """The digest of a snapshot: the same layers and configuration are the same image."""
        content: list[Any] = [self.base, self.layers, sorted(self.env.items()), self.workdir, self.user, self.entrypoint]
        if self.config:
            content.append(sorted(self.config.items()))
        return f"sha256:{hashlib.sha256(json.dumps(content).encode()).hexdigest()}"

    def oci_config(self) -> dict[str, Any]:
        """The whole configuration in OCI's form."""
        found = dict(self.config)
        if self.entrypoint and not found.get("Entrypoint") and not found.get("Cmd"):
            found["Entrypoint"] = self.entrypoint  # a record of an earlier version, which did not keep the two apart
        if self.env:
            found["Env"] = [f"{key}={value}" for key, value in self.env.items()]
        return found | {key: value for key, value in (("WorkingDir", self.workdir), ("User", self.user)) if value}

    def to_map(self) -> dict[str, Any]:
        return {
            "name": names.short_name(self.name),
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "created": self.created,
            "parent": self.parent,
            "shared": not self.owner,
        }


def key_of(owner: str, name: str) -> str:
    """The key of a name in normal form. No such name begins with ``@``, and no owner contains a slash."""
    return f"@{owner}/{name}" if owner else name
