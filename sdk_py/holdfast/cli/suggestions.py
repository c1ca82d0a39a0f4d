"""Suggestions for an unknown command or option: for typing mistakes, and for the commands of docker and other tools.

Loaded only after a mistake. Owns the tables of these names. A suggestion is printed and never run.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

_AGAIN = "a sandbox runs from `create` until `rm`; one that ended cannot be started, so create another: holdfast run or create"
_ELSEWHERE = "build or save it elsewhere and bring it in: docker save NAME -o x.tar; holdfast image import x.tar NAME"
_SERVICE = "the service is run with `holdfast up`, or on a cluster with `make deploy`"

COMMANDS = {
    **dict.fromkeys(("kill", "delete", "remove", "destroy", "terminate", "down", "del"), "holdfast rm SANDBOX, or holdfast stop SANDBOX"),
    "prune": "holdfast rm --all, or holdfast rm -l NAME=VALUE",
    **dict.fromkeys(("start", "restart"), _AGAIN),
    **dict.fromkeys(("export", "push", "buildx"), _ELSEWHERE),
    **dict.fromkeys(("fork", "clone", "duplicate"), "holdfast branch SANDBOX"),
    **dict.fromkeys(("suspend", "freeze", "hibernate"), "holdfast pause SANDBOX, or holdfast pause --to-disk SANDBOX"),
    **dict.fromkeys(("new", "spawn", "launch", "make"), "holdfast create IMAGE, or holdfast run IMAGE COMMAND"),
    **dict.fromkeys(("ssh", "bash", "sh", "console", "connect", "enter", "terminal"), "holdfast shell SANDBOX"),
    **dict.fromkeys(("login", "logout"), "the service pulls as skopeo does: skopeo login REGISTRY there, on a cluster pull secrets"),
    "attach": "holdfast logs -f SANDBOX for what `run -d` started, or holdfast shell SANDBOX --attach NAME for a terminal",
    **dict.fromkeys(("scp", "copy", "upload", "download", "put", "rsync"), "holdfast cp LOCAL SANDBOX:/path, or cp SANDBOX:/path LOCAL"),
    **dict.fromkeys(("forward", "port-forward", "tunnel", "expose", "publish", "proxy"), "holdfast port SANDBOX PORT"),
    **dict.fromkeys(("describe", "show", "get"), "holdfast inspect SANDBOX"),
    **dict.fromkeys(("system", "status", "health", "check", "context"), "holdfast doctor"),
    **dict.fromkeys(("execute", "cmd", "command", "eval"), "holdfast exec SANDBOX COMMAND"),
    "log": "holdfast logs SANDBOX",
    "wait": "holdfast logs -f SANDBOX waits until what `run -d` started has ended",
    **dict.fromkeys(("serve", "server", "gateway", "compose", "deploy"), _SERVICE),
    **dict.fromkeys(("volume", "diff"), "holdfast exec SANDBOX COMMAND looks inside; holdfast cp moves files"),
    "network": "holdfast run --network IMAGE COMMAND; without it a sandbox reaches no network",
    "search": "holdfast pull NAME fetches an image by its whole name",
    "rename": "a sandbox is named when it is created: holdfast run --name NAME",
}
"""Commands of other tools, and what to use here."""

_FILES = "files go in and out with holdfast cp"
_PORTS = "holdfast port SANDBOX LOCAL:PORT reaches a port of a running sandbox"
OPTIONS = {
    **dict.fromkeys(("-v", "--volume", "--mount"), _FILES),
    **dict.fromkeys(("-p", "-P", "--publish", "--expose", "--publish-all"), _PORTS),
    "--gpus": "GPUs are requested in the SDK: create_sandbox(…, gpu=1)",
    "--privileged": "a sandbox has the rights of an ordinary container, root included",
    **dict.fromkeys(("--cap-add", "--cap-drop", "--security-opt"), "a sandbox has the rights of an ordinary container"),
    "--restart": "a sandbox is not started again; --lifetime sets how long it may live",
    "--init": "the first process is the agent, which reaps orphans",
    "--platform": "an image is run as it is",
    "--hostname": "--name names the sandbox, and its host name is its id",
    "--format": "--json prints all there is",
    "--timeout": "--ready-timeout is how long to wait until the sandbox is ready, --lifetime how long it may live",
    "--no-stdin": "standard input is passed on only with -i",
    "--sig-proxy": "signals always reach the command",
}
_IMPORT = "holdfast image import FILE NAME; FILE may be - for standard input"
OF_COMMANDS = {
    (
        "build",
        "--push",
    ): "the service keeps the image; holdfast image save NAME -o FILE writes an archive, which skopeo copies to a registry",
    ("build", "--output"): "holdfast image save NAME -o FILE writes the image as an archive",
    ("build", "-o"): "holdfast image save NAME -o FILE writes the image as an archive",
    ("build", "--ssh"): "give the key as a secret: --secret id=NAME,src=FILE",
    ("build", "--squash"): "each step is a layer of its own",
    ("build", "--cache-from"): "steps of earlier builds are found by what they depend on",
    ("build", "--cache-to"): "the service keeps the steps",
    ("build", "--build-context"): "import the files as an image, and COPY --from=NAME",
    ("image import", "-i"): _IMPORT,
    ("image import", "--input"): _IMPORT,
    **dict.fromkeys(
        [("snapshot", "-c"), ("snapshot", "--change")], "the image keeps its settings; run has -e, -w and -u, and takes a command"
    ),
    ("snapshot", "--no-pause"): "a snapshot is of one instant: the sandbox stands still while its files are copied",
    ("logs", "-t"): "output is kept as it was written, without times",
    ("logs", "--timestamps"): "output is kept as it was written, without times",
    ("logs", "--since"): "-n LINES shows the last lines",
    ("port", "-d"): "it runs until interrupted: holdfast port SANDBOX PORT &",
}
"""Options of docker that belong to one command only."""


def suggest_option(name: str, command: str, options: Sequence[str]) -> str:
    """The end of the error message for an option that ``command`` does not have; ``options`` are those that it has."""
    meant = OF_COMMANDS.get((command, name)) or OPTIONS.get(name)
    if meant:
        return f": {meant}"
    names = [known for known in options if known.startswith("--")]
    close = get_close_matches(name, names, 1, 0.6) or [known for known in names if len(name) > 4 and known.startswith(name)]
    return f"; did you mean {close[0]}?" if close else ""


def suggest_command(word: str, known: list[str]) -> str:
    """The end of the error message for a command that does not exist."""
    if word in COMMANDS:
        return f": {COMMANDS[word]}"
    close = get_close_matches(word, known, 1, 0.6) or get_close_matches(word, COMMANDS, 1, 0.8)
    if close and close[0] in COMMANDS:
        return f": {COMMANDS[close[0]]}"
    return f"; did you mean `holdfast {close[0]}`?" if close else ""
