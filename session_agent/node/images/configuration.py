"""The configuration of an image: reading OCI's and docker's form, which is untrusted, into what a record has.

Owns which keys are kept and their bounds. Called by formats.py for imported images, and by store.py for those that are built.
"""

from __future__ import annotations

import json
import posixpath
from typing import Any

from holdfast_wire.errors import HoldfastError

MOST_VOLUMES = 256
_MOST_BYTES = 1024 * 1024
_LEVELS = 8
"""Most levels of lists and maps in what a key has; OCI has two."""
_KEPT: dict[str, type] = {
    "Cmd": list,
    "Entrypoint": list,
    "Labels": dict,
    "ExposedPorts": dict,
    "Volumes": dict,
    "StopSignal": str,
    "Healthcheck": dict,
    "Shell": list,
    "OnBuild": list,
}
"""Keys that are stored as they are, and their kinds."""


def read_config(value: object) -> dict[str, Any]:
    """The fields of an image by a configuration: env, workdir, user, volumes, entrypoint, and the rest as ``config``."""
    settings = value if isinstance(value, dict) else {}
    env: dict[str, str] = {}
    for line in _list(settings.get("Env")):
        name, equals, text = str(line).partition("=")
        if name and equals and "\0" not in str(line):
            env[name] = text
    workdir, user = settings.get("WorkingDir"), settings.get("User")
    return {
        "env": env,
        "workdir": _absolute(workdir) if isinstance(workdir, str) and workdir and "\0" not in workdir else "",
        "user": user if isinstance(user, str) and len(user) < 256 else "",
        "volumes": _volumes(settings.get("Volumes")),
        "entrypoint": [*_words(settings.get("Entrypoint")), *_words(settings.get("Cmd"))],
        "config": {key: settings[key] for key, kind in _KEPT.items() if settings.get(key) and _has_form(settings[key], kind)},
    }


def checked_config(value: object) -> dict[str, Any]:
    """``read_config`` for a configuration that a client sends.

    Raises HoldfastError(invalid_argument) where reading would drop something.
    """
    if not isinstance(value, dict) or len(json.dumps(value)) > _MOST_BYTES:
        raise HoldfastError("invalid_argument", f"config must be an object of at most {_MOST_BYTES} bytes")
    found = read_config(value)
    known = {*_KEPT, "Env", "WorkingDir", "User"}
    for key, given in value.items():
        if key not in known:
            raise HoldfastError("invalid_argument", f"config has an unknown key {key[:60]!r}", hint=f"known are {', '.join(sorted(known))}")
        kind: type = _KEPT.get(key, list if key == "Env" else str)
        if given and (not _has_form(given, kind) or (isinstance(given, list) and _words(given) != given)):
            raise HoldfastError("invalid_argument", f"config: {key} has a wrong form")
    return found


def _has_form(value: object, kind: type) -> bool:
    return isinstance(value, kind) and _is_shallow(value, _LEVELS)


def _is_shallow(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is None or (levels > 0 and all(_is_shallow(one, levels - 1) for one in inner))


def _absolute(path: str) -> str:
    """The path in its shortest form, as in docker: ``..`` removes the component before it, even if that is a link."""
    return posixpath.normpath(f"/{path}").replace("//", "/")


def _volumes(value: object) -> tuple[str, ...]:
    """The directories a configuration declares as volumes: the keys of a map."""
    paths = value if isinstance(value, dict) else {}
    return tuple(sorted(_absolute(path) for path in paths if path.startswith("/") and "\0" not in path and len(path) < 4096))[:MOST_VOLUMES]


def _words(value: object) -> list[str]:
    words = _list(value)
    return words if all(isinstance(word, str) and "\0" not in word for word in words) else []


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
