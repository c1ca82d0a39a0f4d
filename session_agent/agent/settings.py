"""The settings of an agent.

Owns the settings and the two ways to read them: from environment variables if the agent is the command of a container, from a map if the
node forks a warm agent into a sandbox. ``server`` reads them once, at start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.fast_dataclass import dataclass, field

from .container import PREFIX
from .process.ulimits import read_ulimits
from .process.users import find_user

_KUBELET = ("KUBERNETES_SERVICE_", "KUBERNETES_PORT")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """``listen`` is ``tcp://host:port`` or ``unix:///path``; unused if a listening descriptor is passed.

    ``workdir``, ``env`` and ``user`` (name or uid, empty: the agent's own user) are the defaults of commands. ``memory_bytes`` is the
    sandbox's memory limit, 0 if unknown. ``pod_uid`` is the identity that the agent proves to the gateway besides its token.
    ``given_home`` is the HOME in ``env`` if the container runtime set it, empty if the image or the sandbox's creator did.
    ``entrypoint`` is started with the agent. ``ulimits`` hold for every command. ``grace_s`` is how long a stopping agent goes on
    delivering results, ``stop_reason`` the reason that it reports. For ``cgroup_join_fds`` and ``cgroup_events_fds`` see ``cgroups``,
    for ``cgroup_thread_fds``, ``cgroup_pids_fds`` and ``cgroup_rescue_fds`` see ``crowding``. ``command_namespace_fd`` is the user
    namespace of commands, -1 if that is the agent's own; it has ``command_ids`` user and group ids.
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
    cgroup_rescue_fds: tuple[int, ...] = ()
    cgroup_events_fds: tuple[int, ...] = ()
    command_namespace_fd: int = -1
    command_ids: int = 0

    @property
    def default_user(self) -> str | int:
        """Name or uid of the user for commands and new files of requests that name no user."""
        return self.user or (0 if self.command_namespace_fd >= 0 else os.geteuid())

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AgentSettings:
        """Read the node's map. Unknown keys are ignored, so that node and agent may differ by a version."""
        known = {name: config[name] for name in cls.__dataclass_fields__ if config.get(name) is not None}
        known["ulimits"] = read_ulimits(config.get("ulimits"))
        known["entrypoint"] = tuple(config.get("entrypoint") or ())
        return cls(**known)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> AgentSettings:
        """Read the ``HOLDFAST_AGENT_*`` variables of a container. Raises ``HoldfastError`` naming the wrong variable."""
        token = environ.get("HOLDFAST_AGENT_TOKEN", "")
        token_file = environ.get("HOLDFAST_AGENT_TOKEN_FILE")
        if token_file:
            with open(token_file, encoding="ascii") as file:
                token = file.read().strip()
        listen = environ.get("HOLDFAST_AGENT_LISTEN", "")
        if not token or not listen:
            missing = "HOLDFAST_AGENT_TOKEN or HOLDFAST_AGENT_TOKEN_FILE" if not token else "HOLDFAST_AGENT_LISTEN"
            raise HoldfastError("invalid_argument", f"the agent cannot start: {missing} is not set")
        # Commands inherit the container's environment without the agent's settings and the API server's address, which the kubelet adds.
        inherited = {name: value for name, value in environ.items() if not name.startswith((PREFIX, *_KUBELET))}
        try:
            grace_s = float(environ.get("HOLDFAST_AGENT_GRACE_S", "25"))
        except ValueError:
            grace_s = -1.0
        if not 0 <= grace_s <= 3600:
            raise HoldfastError("invalid_argument", "HOLDFAST_AGENT_GRACE_S must be a number of seconds from 0 to 3600")
        return cls(
            sandbox_id=environ.get("HOLDFAST_AGENT_SANDBOX_ID", "sandbox"),
            token=token,
            incarnation=environ.get("HOLDFAST_AGENT_INCARNATION", ""),
            listen=listen,
            workdir=environ.get("HOLDFAST_AGENT_WORKDIR", "") or _image_workdir(),
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
    """The container's memory limit in bytes; 0 if its control group has none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                limit = file.read().strip()
        except OSError:
            continue
        return int(limit) if limit.isdigit() and int(limit) < 1 << 50 else 0
    return 0


def _given_home(environ: Mapping[str, str]) -> str:
    """HOME if it equals the home directory of the container's user in the image's accounts, as container runtimes set it; else empty."""
    home = environ.get("HOME", "")
    return home if home == find_user(None).home else ""


def _image_workdir() -> str:
    """The directory in which the container was started, which is the image's working directory; empty if that is ``/``."""
    try:
        directory = os.getcwd()
    except OSError:
        return ""
    return "" if directory == "/" else directory
