"""``holdfast-docker``: answers the docker calls that harnesses make, so that ``MSWEA_DOCKER_EXECUTABLE=holdfast-docker`` is all they need.

Owns the differences to ``holdfast``, whose commands do the work: what has another meaning in docker, and how docker prints records. What
docker has and a sandbox has not is refused by name (``suggestions``), with docker's exit code 1; nothing is ignored silently.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

from holdfast.cli.command_line import UsageError

COMMANDS = frozenset(
    {
        "version", "info", "run", "create", "exec", "cp", "stop", "kill", "rm", "inspect", "ps", "images", "pull", "rmi", "tag",
        "logs", "commit", "build", "pause", "unpause", "stats", "top", "load", "save", "import", "events",
    }
)  # fmt: skip
"""Docker's commands that are answered. ``holdfast`` has each of them, under the same name or another."""
_GROUPS = {
    "container": frozenset(
        [
            "run",
            "create",
            "exec",
            "cp",
            "stop",
            "kill",
            "rm",
            "inspect",
            "ls",
            "list",
            "ps",
            "logs",
            "stats",
            "top",
            "commit",
            "pause",
            "unpause",
        ]
    ),
    "image": frozenset(["build", "inspect", "ls", "list", "prune", "pull", "rm", "remove", "tag", "load", "save", "import"]),
}
_REFUSED = {
    "buildx": "docker buildx build is answered, its other commands are not",
    "compose": "start each service with holdfast-docker run; services do not reach each other by name",
    "network": "each sandbox has a network of its own: run --network none or bridge",
    "volume": "files go in and out with holdfast-docker cp",
    "start": "a sandbox that has ended cannot be started again: run another",
    "restart": "a sandbox that has ended cannot be started again: run another",
    "attach": "holdfast logs -f SANDBOX follows what run -d started",
    "push": "images are kept by the service; holdfast image save writes one as an archive",
    "login": "the service pulls as skopeo does: skopeo login REGISTRY there",
    "wait": "holdfast logs -f SANDBOX waits until what run -d started has ended",
    "diff": "holdfast-docker exec looks inside; snapshots keep the files",
    "export": "holdfast-docker cp SANDBOX:/ - writes the files as a tar archive",
    "rename": "a sandbox is named when it is created: run --name NAME",
    "update": "limits are set when a sandbox is created: run -m 4g --cpus 2",
    "port": "ports of sandboxes are reached with holdfast port SANDBOX LOCAL:PORT",
}
_RENAMED = {"kill": "stop", "ps": "list", "ls": "list", "images": "image list"}
_FAILED = 1
_NETWORKS = ("--network", "--net")


def translated(words: list[str]) -> list[str]:
    """The command line of ``holdfast`` for one of docker. Raises ``UsageError`` for a command that is not answered."""
    while words and words[0] in ("-D", "--debug"):
        words = words[1:]
    if not words or words[0].startswith("-"):
        return ["version", "--docker"] if words[:1] in (["-v"], ["--version"]) else words
    if words[:2] == ["buildx", "build"]:
        words = words[1:]
    group, rest = words[0], words[1:]
    if group in _GROUPS and rest and rest[0] in _GROUPS[group]:
        name, rest = rest[0], rest[1:]
        if group == "image":
            if name == "build":
                return ["build", *rest]
            if name == "tag":
                rest = ["--docker", *rest]
            return ["image", {"ls": "list", "remove": "rm", "load": "import"}.get(name, name), *rest]
    elif group in COMMANDS:
        name = group
    else:
        raise UsageError(f"docker {' '.join(words[: 1 + (group in _GROUPS)])} is not answered", hint=_REFUSED.get(group, _answered()))
    match name:
        case "run" | "create":
            rest = _with_network(rest)
        case "version" | "info" | "inspect" | "ps" | "ls" | "list" | "commit":
            rest = ["--docker", *rest]
        case "tag":
            return ["image", "tag", "--docker", *rest]
        case "pull" | "load" | "save" | "import":
            return ["image", "import" if name == "load" else name, *rest]
        case "rmi":
            return ["image", "rm", *rest]
    return [*_RENAMED.get(name, name).split(), *rest]


def _with_network(words: list[str]) -> list[str]:
    """The words of ``run`` with ``--network=MODE``: here, as in docker, a mode always follows the option, and ``bridge`` is the default.

    The words of the command in the sandbox come after the image, the first word that is neither an option nor its value.
    """
    from holdfast.cli.commands import named

    command, _ = named(["run"])
    known = {name: option for option in command.options for name in option.names.split()} if command is not None else {}
    at, mode = 0, ""
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        name, equals, value = words[at].partition("=")
        if name in _NETWORKS:
            mode = value if equals else "".join(words[at + 1 : at + 2])
            words = words[:at] + words[at + (1 if equals else 2) :]
            continue
        option = known.get(name)
        at += 2 if option is not None and option.metavar and not equals else 1
    return [f"--network={mode or 'bridge'}", *words]


def _answered() -> str:
    return f"answered are {', '.join(sorted(COMMANDS))}"


def main() -> NoReturn:
    """The entry point of the installed script ``holdfast-docker``."""
    gc.disable()
    from holdfast.cli import _leave, _open_missing_streams
    from holdfast.cli.app import EXIT_SERVICE, EXIT_USAGE, run

    _open_missing_streams()
    words = [os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]]
    try:
        status = run(translated(words))
        # docker's own codes: 125 is only for a `run` that could not start, where its users look for it
        if status in (EXIT_USAGE, EXIT_SERVICE) and words[:1] not in (["run"], ["exec"]):
            status = _FAILED
    except UsageError as why:
        from holdfast.cli.output import report

        report({"message": str(why), "hint": why.hint}, as_json=False, program="holdfast-docker")
        status = _FAILED
    except KeyboardInterrupt:
        status = 130
    _leave(status)
