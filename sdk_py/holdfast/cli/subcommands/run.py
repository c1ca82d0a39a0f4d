"""``run``: create a sandbox and run a command in it, as ``docker run``.

Owns the creation and deletion of the sandbox. The given command gets the id ``main``, by which ``logs`` finds its output; without a
command, the image's own command runs with the id ``entrypoint``. ``subcommands.execute`` runs commands.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from holdfast import InvalidArgumentError, Process, Sandbox, SandboxClient, UnsupportedError
from holdfast._requests import command_params
from holdfast._sync.commands import begin
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import print_json, print_line, print_note
from holdfast.cli.signals import raised_on_exit_signals
from holdfast.cli.subcommands.execute import NOT_FOUND, Command, Screen, attached, command_of, leave, options_of, show, terminal_of
from holdfast.cli.subcommands.sandboxes import make

ENTRYPOINT = "entrypoint"
GONE_AFTER_S = 10.0
"""With ``-dt --rm``, how long after the end of the command and of all processes that it started the sandbox is deleted."""
MAIN = "main"
"""The id of the command that a sandbox was created for, and the name of its terminal with ``-dt``."""


def run(arguments: Arguments) -> int:
    if arguments.image in arguments.not_values and _is_image(arguments.argv):
        raise UsageError(arguments.not_values[arguments.image])  # as in --network host IMAGE COMMAND
    command = command_of(arguments)
    options = options_of(arguments)
    if arguments.entrypoint is not None:
        if isinstance(command, str):
            raise UsageError("-c and --entrypoint cannot be combined", hint="write the arguments of the entrypoint after IMAGE and --")
        if arguments.entrypoint:
            command = [arguments.entrypoint, *(command or [])]
        elif command is None:  # an empty entrypoint means none, as in docker, not even the image's
            raise UsageError("COMMAND is missing", hint="--entrypoint is empty: write a COMMAND after IMAGE")
    own = command is None and not arguments.tty
    if own and arguments.stdin:
        raise UsageError("the image's own command gets no standard input", hint=f"holdfast run -i {arguments.image} COMMAND")
    if own and any(options.values()):
        raise UsageError("-w, -u, --timeout and --login need a COMMAND", hint=f"holdfast run {arguments.image} COMMAND")
    if command is not None:  # before the sandbox is created, so that a wrong argument leaves no sandbox behind
        command_params(command, command_id=MAIN, env=None, stdin=False, outlive="adopt", **options)
    if arguments.detach and arguments.rm and arguments.tty and arguments.idle_timeout is None:
        arguments.idle_timeout = GONE_AFTER_S  # no client waits for the end: the service deletes the sandbox when it is idle
    with raised_on_exit_signals(), SandboxClient() as client:
        try:
            sandbox = make(client, arguments, entrypoint=own)
        except (InvalidArgumentError, UnsupportedError) as why:
            if own and "entrypoint" in why.message.lower():
                why.hint = f"write the command: holdfast run {arguments.image} COMMAND; holdfast create makes a sandbox without one"
            raise
        try:
            if arguments.cwd:
                with contextlib.suppress(UnsupportedError):  # only over REST, where the directory must exist already
                    sandbox.files.mkdir(arguments.cwd)
            if own and not arguments.detach:
                return show(sandbox.follow(ENTRYPOINT, max_output_bytes=0), Screen(raw=arguments.raw))
            if arguments.detach:
                return _left(sandbox, command, options, arguments)
            status = attached(sandbox, command, options, arguments, **({} if arguments.tty else {"command_id": MAIN}))
            if status == NOT_FOUND and not arguments.json and arguments.image in arguments.not_values:
                print_note(f"holdfast: {arguments.not_values[arguments.image]}")  # such as for --network host IMAGE COMMAND
            return status
        finally:
            if arguments.rm and not arguments.detach:
                sandbox.delete()
            else:
                sandbox.close()
                if not arguments.detach and sys.stderr.isatty():
                    print_note(f"holdfast: the sandbox stays: holdfast rm {sandbox.id}")


def _is_image(words: list[str] | None) -> bool:
    """Whether the first word can hardly be a command, but the name of an image."""
    return bool(words) and (words[0] == "host" or ":" in words[0] or ("/" in words[0] and words[0][0] not in "/."))  # type: ignore[index]


def _left(sandbox: Sandbox, command: Command | None, options: dict[str, Any], arguments: Arguments) -> int:
    status = 0
    if arguments.tty:
        terminal_of(sandbox, command, options, name=MAIN).detach()
    elif command is not None:
        status = leave(sandbox, command, options, MAIN, ends_sandbox=arguments.rm)[1]
    elif arguments.rm:
        begin(sandbox, Process, "follow", {"id": ENTRYPOINT, "output": False, "ends_sandbox": True}, 0).detach()
    if arguments.json:
        print_json({"sandbox_id": sandbox.id, "command_id": None if command is None or arguments.tty else MAIN})
    else:
        print_line(sandbox.id)
    return status
