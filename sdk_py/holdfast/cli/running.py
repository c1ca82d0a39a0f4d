"""``run``: a sandbox and its command in one step, as ``docker run``.

Owns the sandbox's life around the command. The command has the id ``main`` in it, by which ``logs`` finds its output; how it runs is
``execute``'s.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast import Sandbox, SandboxClient
from holdfast.cli.execute import Command, attached, command_of, leave, options_of
from holdfast.cli.leaving import told_by_signals
from holdfast.cli.output import note, say, say_json
from holdfast.cli.sandboxes import make
from holdfast.cli.words import Arguments, bad

MAIN = "main"
"""The id of the command a sandbox was made for, and the name of its terminal with ``-dt``."""


def run(arguments: Arguments) -> int:
    command = command_of(arguments)
    options = options_of(arguments)
    if command is None and not arguments.detach and not arguments.tty:
        raise bad(
            "a command is missing: an image's own is not used", hint=f"holdfast run {arguments.image} COMMAND, or run -it for a shell"
        )
    if arguments.detach and arguments.rm:
        raise bad(
            "nobody waits for the end of what -d starts, so --rm has nobody who deletes", hint="--lifetime SECONDS ends it at the latest"
        )
    with told_by_signals(), SandboxClient() as client:
        sandbox = make(client, arguments)
        try:
            if arguments.detach:
                return _left(sandbox, command, options, arguments)
            return attached(sandbox, command, options, arguments, **({} if arguments.tty else {"command_id": MAIN}))
        finally:
            if arguments.rm:
                sandbox.delete()
            else:
                sandbox.close()
                if not arguments.detach and sys.stderr.isatty():
                    note(f"holdfast: the sandbox stays: holdfast rm {sandbox.id}")


def _left(sandbox: Sandbox, command: Command | None, options: dict[str, Any], arguments: Arguments) -> int:
    status = 0
    if arguments.tty:
        words = ["sh", "-c", command] if isinstance(command, str) else command
        more = {name: options[name] for name in ("cwd", "user", "login")}
        sandbox.terminal(words, name=MAIN, max_output_bytes=0, **more).detach()
    elif command is not None:
        status = leave(sandbox, command, options, MAIN)[1]
    if arguments.json:
        say_json({"sandbox_id": sandbox.id, "command_id": None if command is None or arguments.tty else MAIN})
    else:
        say(sandbox.id)
    return status
