"""The configuration of an image, as OCI and docker store it, and what each instruction changes in it."""

from __future__ import annotations

import copy
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast._build.errors import wrong

DEFAULT_SHELL = ["/bin/sh", "-c"]
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PORT = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(?:/([A-Za-z]+))?")
_PROTOCOLS = ("tcp", "udp", "sctp")


@dataclass(slots=True)
class Config:
    """``values`` has the keys of OCI's image configuration: Env, Cmd, Entrypoint, WorkingDir, User, Labels, ExposedPorts, ..."""

    values: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    cmd_set: bool = False
    """Whether this build has set CMD: ENTRYPOINT then keeps it."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Config:
        """From an image's configuration."""
        kept = copy.deepcopy(dict(values))
        env: dict[str, str] = {}
        for row in kept.pop("Env", None) or []:
            name, _, value = str(row).partition("=")
            env[name] = value
        return cls(kept, env)

    def copied(self) -> Config:
        """For a stage that begins with this one."""
        return Config(copy.deepcopy(self.values), dict(self.env))

    def to_map(self) -> dict[str, Any]:
        """The whole configuration, without what is empty."""
        found = {name: value for name, value in self.values.items() if value not in (None, "", [], {})}
        if self.env:
            found["Env"] = [f"{name}={value}" for name, value in self.env.items()]
        return found

    @property
    def workdir(self) -> str:
        """Where commands run."""
        return str(self.values.get("WorkingDir") or "/")

    @property
    def user(self) -> str:
        """As whom commands run."""
        return str(self.values.get("User") or "")

    @property
    def shell(self) -> list[str]:
        """What runs commands of the shell form."""
        return list(self.values.get("Shell") or DEFAULT_SHELL)

    def set_workdir(self, path: str, line: int) -> None:
        if not path:
            raise wrong(line, "WORKDIR has no path")
        self.values["WorkingDir"] = posixpath.normpath(posixpath.join(self.workdir, path)).replace("//", "/")

    def set_command(self, words: list[str]) -> None:
        self.values["Cmd"] = words
        self.cmd_set = True

    def set_entrypoint(self, words: list[str]) -> None:
        self.values["Entrypoint"] = words
        if not self.cmd_set:  # that of the base image was for the entrypoint of the base image
            self.values.pop("Cmd", None)

    def add_labels(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.values.setdefault("Labels", {}).update(pairs)

    def expose(self, words: list[str], line: int) -> None:
        ports = self.values.setdefault("ExposedPorts", {})
        for word in words:
            found = _PORT.fullmatch(word)
            protocol = (found[3] or "tcp").lower() if found else ""
            first = int(found[1]) if found else 0
            last = int(found[2]) if found and found[2] else first
            if not found or protocol not in _PROTOCOLS or not first <= last <= 65535:
                raise wrong(line, f"EXPOSE {word:.60} is not a port", "write EXPOSE 8080, 8080/udp or 8000-8010")
            ports.update({f"{port}/{protocol}": {} for port in range(first, last + 1)})

    def add_volumes(self, paths: list[str], line: int) -> None:
        if not paths or "" in paths:
            raise wrong(line, "VOLUME has no path")
        volumes = self.values.setdefault("Volumes", {})
        volumes.update({path: {} for path in paths})
