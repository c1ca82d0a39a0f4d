"""Tasks in Harbor's format: a folder with ``task.toml``, ``instruction.md``, ``environment``, ``tests/test.sh`` and ``solution/solve.sh``.

Owns the meaning of the fields and which tasks can be run here. A task that cannot (several steps, a compose file, no image) has a
``problem``: it is listed and never counted. The commands in its sandbox are ``job``'s. The format is that of Harbor 0.26.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?)", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "": 1.0}
DEFAULT_MEMORY_MIB = 2048
DEFAULT_AGENT_S = 900.0
DEFAULT_VERIFIER_S = 600.0


class HarborTaskError(ValueError):
    """A folder is no task in this format; the message says what is wrong with which file."""


@dataclass(frozen=True, slots=True)
class Health:
    """A command that must succeed before the agent begins: up to ``retries`` failures after ``start_period_s``, ``interval_s`` apart."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class HarborTask:
    """One task. ``image`` is what its sandbox is created from; ``network`` is that of ``create_sandbox``; ``workdir`` None: the image's.
    ``digest`` is of all files of the folder. ``problem``: why it cannot be run here, "" if it can."""

    task_id: str
    folder: Path
    instruction: str
    image: str
    digest: str
    cpu: float = 1.0
    memory_gib: float = DEFAULT_MEMORY_MIB / 1024
    disk_mib: int | None = None
    network: Mapping[str, Any] = field(default_factory=lambda: {"mode": "none"})
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    agent_s: float = DEFAULT_AGENT_S
    agent_user: str | int | None = None
    verifier_s: float = DEFAULT_VERIFIER_S
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    verifier_user: str | int | None = None
    solution_env: Mapping[str, str] = field(default_factory=dict)
    health: Health | None = None
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """What identifies the task: a run goes on only with the same ones."""
        return {"format": "harbor", "task_id": self.task_id, "image": self.image, "digest": self.digest}


def read(place: Path, *, image: str | None = None, variables: Mapping[str, str] | None = None) -> list[HarborTask]:
    """The tasks of a folder of tasks, or the one task of its own folder, by name. ``image`` replaces the image of every task.
    ``variables`` are the only ones that ``${NAME}`` in a task's variables stands for. Raises HarborTaskError."""
    if (place / "task.toml").is_file():
        folders = [place]
    else:
        folders = sorted(path.parent for path in place.glob("*/task.toml")) or sorted(path.parent for path in place.glob("*/*/task.toml"))
    if not folders:
        raise HarborTaskError(f"{place}: no folder in it has a task.toml")
    tasks = [task(folder, image=image, variables=variables or {}) for folder in folders]
    names = [each.task_id for each in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise HarborTaskError(f"{place}: two tasks are called {twice[0]}")
    return tasks


def task(folder: Path, *, image: str | None = None, variables: Mapping[str, str]) -> HarborTask:
    """One task of its folder. Raises HarborTaskError where a file is missing or cannot be read."""
    try:
        settings = tomllib.loads((folder / "task.toml").read_text())
        instruction = (folder / "instruction.md").read_text() if not settings.get("steps") else ""
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HarborTaskError(f"{folder}: {error}") from error
    environment, agent, verifier, solution = (_table(folder, settings, name) for name in ("environment", "agent", "verifier", "solution"))
    name = str(_table(folder, settings, "task").get("name") or folder.name).rpartition("/")[2]
    problems = list(_problems(folder, settings, environment, verifier))
    own = image or str(environment.get("docker_image") or "")
    if not own:
        problems.append("it has no docker_image: `holdfast build -t NAME environment`, and name the image with --image")
    envs = []
    for table in (environment, verifier, solution):
        filled, missing = _filled(table.get("env") or {}, variables)
        problems += [f"it needs the variable {each}: give it with --pass-env" for each in missing]
        envs.append(filled)
    try:
        return HarborTask(
            task_id=name,
            folder=folder,
            instruction=instruction,
            image=own,
            digest=digest(folder),
            cpu=float(environment.get("cpus") or 1),
            memory_gib=_mib(environment, "memory", DEFAULT_MEMORY_MIB) / 1024,
            disk_mib=round(size) if (size := _mib(environment, "storage", 0)) else None,
            network=_network(environment),
            workdir=environment.get("workdir"),
            env=envs[0],
            agent_s=float(agent.get("timeout_sec") or DEFAULT_AGENT_S),
            agent_user=agent.get("user"),
            verifier_s=float(verifier.get("timeout_sec") or DEFAULT_VERIFIER_S),
            verifier_env=envs[1],
            verifier_user=verifier.get("user"),
            solution_env=envs[2],
            health=_health(environment.get("healthcheck")),
            problem="; ".join(problems),
        )
    except (TypeError, ValueError) as error:
        raise HarborTaskError(f"{folder}/task.toml: {error}") from error


def digest(folder: Path) -> str:
    """SHA-256 over the paths and contents of all files of a task."""
    found = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        data = path.read_bytes()
        found.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode() + data)
    return f"sha256:{found.hexdigest()}"


def _problems(folder: Path, settings: Mapping[str, Any], environment: Mapping[str, Any], verifier: Mapping[str, Any]) -> Iterator[str]:
    """What of the format is not run here."""
    if settings.get("steps"):
        yield "it has several steps"
    if any((folder / "environment").glob("*compose*.y*ml")):
        yield "its environment is a compose file"
    if str(environment.get("os") or "linux").lower() != "linux":
        yield f"it is for {environment['os']}"
    if environment.get("gpus") or environment.get("tpu"):
        yield "it needs an accelerator"
    if environment.get("mcp_servers"):
        yield "it needs MCP servers"
    if verifier.get("environment") or verifier.get("environment_mode") == "separate":
        yield "its tests run in an environment of their own"
    if not (folder / "tests" / "test.sh").is_file():
        yield "it has no tests/test.sh"


def _table(folder: Path, settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name, {})
    if not isinstance(value, dict):
        raise HarborTaskError(f"{folder}/task.toml: [{name}] is not a table")
    return value


def _filled(env: Mapping[str, Any], variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables with every ``${NAME}`` and ``${NAME:-default}`` filled, and the names that nothing gives."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[1] not in variables and match[2] is None:
            missing.append(match[1])
        return variables.get(match[1], match[2] or "")

    return {str(name): _VARIABLE.sub(value, str(text)) for name, text in env.items()}, missing


def _network(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The default is the internet, as in Harbor; ``allow_internet`` is the older name of the field."""
    mode = environment.get("network_mode") or ("no-network" if environment.get("allow_internet") is False else "public")
    match mode:
        case "no-network":
            return {"mode": "none"}
        case "allowlist":
            return {"mode": "listed", "domains": list(environment.get("allowed_hosts") or [])}
        case "public":
            return {"mode": "internet"}
    raise ValueError(f"network_mode {mode!r} is not one of no-network, public and allowlist")


def _mib(environment: Mapping[str, Any], name: str, default: float) -> float:
    """A size in MiB: ``<name>_mb``, or the older ``<name>`` with a unit (``2G``)."""
    if (number := environment.get(f"{name}_mb")) is not None:
        return float(number)
    if (text := environment.get(name)) is None:
        return default
    found = _SIZE.fullmatch(str(text).strip())
    if found is None:
        raise ValueError(f"{name} {text!r} is not a size such as 2G")
    return float(found[1]) * _MIB[found[2].upper()]


def _health(table: Mapping[str, Any] | None) -> Health | None:
    if not table:
        return None
    given = {"interval_sec": "interval_s", "timeout_sec": "timeout_s", "start_period_sec": "start_period_s"}
    return Health(
        str(table["command"]),
        **{new: float(table[old]) for old, new in given.items() if old in table},
        retries=int(table.get("retries", 3)),
    )
