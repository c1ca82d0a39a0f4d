"""The settings of an agent, read when it starts.

Owns the settings and how they are read: from the environment when the agent is a container's command, from a map when the
node forks a warm agent into a sandbox. Read once, by ``server``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.records import dataclass, field

from .container import PREFIX
from .process.ulimits import read_ulimits
from .process.users import find_user

_KUBELET = ("KUBERNETES_SERVICE_", "KUBERNETES_PORT")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """``listen`` is ``tcp://host:port`` or ``unix:///path``; unused when a listening descriptor is passed.

    ``workdir`` is where commands start by default, ``env`` what they find in their environment, ``user`` whom they run
    as (name or uid, empty: as the agent). ``memory_bytes`` is what the sandbox may use, 0 where that is not known. ``pod_uid`` is
    what the agent proves to be, beside its token. ``given_home`` is the HOME in ``env`` that a container runtime put there for the
    container's own user, as opposed to one that the image or the sandbox's caller chose. ``entrypoint``
    is started at once, ``ulimits`` are of all that is started. ``grace_s`` is how long a stopping agent
    keeps telling what happened, ``stop_reason`` why it is being stopped. ``cgroup_join_fds`` and ``cgroup_events_fds`` are described
    in ``cgroups``, ``cgroup_thread_fds`` and ``cgroup_pids_fds`` in ``fork``. ``command_namespace_fd`` is the user namespace that
    commands run in, -1 where that is the agent's own, and ``command_ids`` how many user and group ids it has.
    """

    sandbox_id: str
    token: str
    incarnation: str = ""
    listen: str = ""
    workdir: str = ""
    user: str = ""
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    memory_bytes: int = 0
    pod_uid: str = ""
    grace_s: float = 2.0
    stop_reason: str = "evicted"
    given_home: str = ""
    entrypoint: tuple[str, ...] = ()
    ulimits: dict[str, tuple[int, int]] = field(default_factory=dict)
    cgroup_join_fds: tuple[int, ...] = ()
    cgroup_thread_fds: tuple[int, ...] = ()
    cgroup_pids_fds: tuple[int, ...] = ()
    cgroup_events_fds: tuple[int, ...] = ()
    command_namespace_fd: int = -1
    command_ids: int = 0

    @property
    def default_user(self) -> str | int:
        """Who commands run as and new files belong to where a request names no user: a name or a uid."""
        return self.user or (0 if self.command_namespace_fd >= 0 else os.geteuid())

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AgentSettings:
        """From the node's map; unknown keys are ignored so that node and agent may differ by a version."""
        known = {name: config[name] for name in cls.__dataclass_fields__ if config.get(name) is not None}
        known["ulimits"] = read_ulimits(config.get("ulimits"))
        known["entrypoint"] = tuple(config.get("entrypoint") or ())
        return cls(**known)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> AgentSettings:
        """From ``HOLDFAST_AGENT_*`` of the environment the container was given. Raises ``HoldfastError`` naming what is wrong."""
        token = environ.get("HOLDFAST_AGENT_TOKEN", "")
        token_file = environ.get("HOLDFAST_AGENT_TOKEN_FILE")
        if token_file:
            with open(token_file, encoding="ascii") as file:
                token = file.read().strip()
        listen = environ.get("HOLDFAST_AGENT_LISTEN", "")
        if not token or not listen:
            missing = "HOLDFAST_AGENT_TOKEN or HOLDFAST_AGENT_TOKEN_FILE" if not token else "HOLDFAST_AGENT_LISTEN"
            raise HoldfastError("invalid_argument", f"the agent cannot start: {missing} is not set")
        # A container's environment is for what runs in it, except the API server's address, which the kubelet adds.
        inherited = {name: value for name, value in environ.items() if not name.startswith((PREFIX, *_KUBELET))}
        try:
            grace_s = float(environ.get("HOLDFAST_AGENT_GRACE_S", "25"))
        except ValueError:
            grace_s = -1.0
        if not 0 <= grace_s <= 3600:
            raise HoldfastError("invalid_argument", "HOLDFAST_AGENT_GRACE_S is a number of seconds, at most 3600")
        return cls(
            sandbox_id=environ.get("HOLDFAST_AGENT_SANDBOX_ID", "sandbox"),
            token=token,
            incarnation=environ.get("HOLDFAST_AGENT_INCARNATION", ""),
            listen=listen,
            workdir=environ.get("HOLDFAST_AGENT_WORKDIR", "") or _given_directory(),
            user=environ.get("HOLDFAST_AGENT_USER", ""),
            env=inherited,
            memory_bytes=_memory_limit(),
            pod_uid=environ.get("HOLDFAST_AGENT_POD_UID", ""),
            given_home=_given_home(inherited),
            entrypoint=tuple(_decoded(environ.get("HOLDFAST_AGENT_ENTRYPOINT")) or ()),
            ulimits=read_ulimits(_decoded(environ.get("HOLDFAST_AGENT_ULIMITS"))),
            grace_s=grace_s,
            stop_reason=environ.get("HOLDFAST_AGENT_STOP_REASON", "evicted"),
        )


def _decoded(text: str | None) -> Any:
    return json.loads(text) if text else None  # most have none, and the bundle imports json at its first use


def _memory_limit() -> int:
    """What the container may use, bytes; 0 where its control group has no limit."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                limit = file.read().strip()
        except OSError:
            continue
        return int(limit) if limit.isdigit() and int(limit) < 1 << 50 else 0
    return 0


def _given_home(environ: Mapping[str, str]) -> str:
    """The runtime's HOME, which it takes from the image's accounts where the image does not set one; empty where it is the image's own."""
    home = environ.get("HOME", "")
    return home if home == find_user(None).home else ""


def _given_directory() -> str:
    """Where the container was started: its image's working directory; empty where it names none."""
    try:
        directory = os.getcwd()
    except OSError:
        return ""
    return "" if directory == "/" else directory
