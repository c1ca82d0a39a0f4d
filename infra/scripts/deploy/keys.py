"""API keys and Secrets of a deployment: created here, stored in the cluster, never written to the repository.

Owns their format (the gateway's ``auth`` reads it) and the adding and removing of keys; ``rotation`` changes the signing secret. A key is
shown once, when it is created; the cluster stores its hash. Called by ``__main__``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from typing import Any

from infra.scripts.deploy.kubectl import SYSTEM, DeployError, Kubectl

KEYS = "holdfast-keys"
REDIS = "holdfast-redis"
_OWNER = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_LABELS = {"app.kubernetes.io/name": "holdfast"}


def new_key(owner: str) -> tuple[str, str]:
    """A key and its line in the keys file."""
    if not _OWNER.fullmatch(owner):
        raise DeployError(f"{owner!r} cannot be an owner: up to 64 of A-Z a-z 0-9 . _ @ -")
    key = f"hf_{secrets.token_urlsafe(32)}"
    return key, f"{owner} {hashlib.sha256(key.encode()).hexdigest()}"


def ensure(cluster: Kubectl, owner: str, redis_url: str | None) -> str | None:
    """Create the missing Secrets. Returns the first API key if it was created now."""
    key = None
    if cluster.get("secret", KEYS, "--namespace", SYSTEM) is None:
        key, line = new_key(owner)
        _create(cluster, KEYS, {"keys": line + "\n", "secret": secrets.token_urlsafe(48)})
    present = cluster.get("secret", REDIS, "--namespace", SYSTEM)
    if present is None:
        _create(cluster, REDIS, {"url": redis_url} if redis_url else {"password": secrets.token_hex(24)})
    elif redis_url is not None and _read(present, "url") != redis_url:
        write_secret(cluster, REDIS, {"url": redis_url})
    return key


def redis_version(cluster: Kubectl) -> str:
    """Changes with Redis' address or password, which pods read when they start."""
    present = cluster.get("secret", REDIS, "--namespace", SYSTEM) or {"metadata": {}}
    return str(present["metadata"].get("resourceVersion", ""))


def lines(cluster: Kubectl) -> list[str]:
    """The keys file."""
    present = cluster.get("secret", KEYS, "--namespace", SYSTEM)
    if present is None:
        raise DeployError(f"there is no Secret {KEYS} in namespace {SYSTEM}: deploy first")
    return [line for line in _read(present, "keys").splitlines() if line.strip()]


def add(cluster: Kubectl, owner: str) -> str:
    """Add a key of ``owner``; existing keys stay valid. Gateways read it within about a minute, without a restart."""
    key, line = new_key(owner)
    write_secret(cluster, KEYS, {"keys": "\n".join([*lines(cluster), line]) + "\n"})
    return key


def remove(cluster: Kubectl, prefix: str) -> list[str]:
    """Remove all keys of an owner, or the one whose hash begins with ``prefix`` (8 digits at least). Returns the removed lines."""
    present = lines(cluster)
    gone = [line for line in present if line.split()[0] == prefix or (len(prefix) >= 8 and line.split()[1].startswith(prefix))]
    if not gone:
        raise DeployError(f"no key of an owner {prefix!r}, and none whose hash begins so")
    write_secret(cluster, KEYS, {"keys": "".join(f"{line}\n" for line in present if line not in gone)})
    return gone


def read_secret(cluster: Kubectl, name: str, key: str) -> str:
    """A value of a Secret; empty if it does not exist."""
    return _read(cluster.get("secret", name, "--namespace", SYSTEM) or {}, key)


def _create(cluster: Kubectl, name: str, values: dict[str, str]) -> None:
    metadata = {"name": name, "namespace": SYSTEM, "labels": _LABELS}
    cluster.run(
        "create", "--filename", "-", text=json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values})
    )


def write_secret(cluster: Kubectl, name: str, values: dict[str, str]) -> None:
    """Change these values of a Secret."""
    # through a file, not the command line: other users of this machine can read that
    cluster.run("patch", "secret", name, "--namespace", SYSTEM, "--patch-file", "/dev/stdin", text=json.dumps({"stringData": values}))


def _read(secret: dict[str, Any], name: str) -> str:
    return base64.b64decode(secret.get("data", {}).get(name, "")).decode()
