"""The tree of commands, and what becomes of errors.

Owns the parser and the exit codes. argparse and nothing else: it is in the standard library, and starting fast matters more
to a command that runs in loops than colours do. Each command lives in the module its entry names.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

EXIT_USAGE = 2
EXIT_SERVICE = 125
EXIT_INTERRUPTED = 130
_WRONG_ARGUMENTS = ("InvalidArgumentError", "InvalidPathError", "UserNotFoundError", "WorkingDirectoryError")

_EXEC_FLAGS = "it"
_EXEC_VALUES = "cweu"
_EXEC_VALUED = ("--cwd", "--env", "--user", "--timeout")

EPILOG = """\
exit codes: 0 done · 2 wrong usage or arguments · 125 the service, session or sandbox failed · 130 interrupted;
`exec` and `shell` end with the exit code of what they ran (124 after a time-out, 127 not found, 128+n after signal n).

--json may also stand before the command.

The service and its key: HOLDFAST_URL and HOLDFAST_API_KEY, else the file .holdfast/env that `make up` writes.
"""


class UsageError(Exception):
    """The words make no command line. `usage` is how it is written."""

    def __init__(self, usage: str, program: str, message: str) -> None:
        super().__init__(message)
        self.usage = usage
        self.program = program


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(self.format_usage(), self.prog, message)


def parser() -> argparse.ArgumentParser:
    """The whole command line. What it makes parses or raises ``UsageError``."""
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON")
    top = _Parser(
        prog="holdfast",
        description="Isolated sandboxes for language-model agents.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def command(
        name: str, help_: str, entry: str, parent: argparse._SubParsersAction[_Parser] = commands, alias: str = ""
    ) -> argparse.ArgumentParser:
        aliases = [alias] if alias else []
        added = parent.add_parser(name, aliases=aliases, help=help_, description=help_[0].upper() + help_[1:] + ".", parents=[common])
        added.set_defaults(entry=entry)
        return added

    create = command("create", "make a sandbox and print its id", "sandboxes:create")
    create.add_argument("image", help="name of an image, such as python:3.11-slim, or host")
    create.add_argument("--id", help="the id it shall have")
    create.add_argument("--cpu", help="cores: 2, 0.5, 500m")
    create.add_argument("--memory", help="512Mi, 4Gi")
    create.add_argument("--disk", help="10Gi")
    create.add_argument("-e", "--env", action="append", default=[], metavar="NAME=VALUE", help="set a variable (repeatable)")
    create.add_argument("-l", "--label", action="append", default=[], metavar="NAME=VALUE", help="set a label (repeatable)")
    create.add_argument("--timeout", type=float, metavar="SECONDS", help="how long to wait until it is ready")
    create.add_argument("--lifetime", type=float, metavar="SECONDS", help="delete it after this time")
    create.add_argument("--idle-timeout", type=float, metavar="SECONDS", help="delete it when idle for this time")
    create.add_argument("--network", action="store_true", help="let it reach the network")

    list_ = command("list", "list sandboxes", "sandboxes:list_", alias="ls")
    list_.add_argument("-l", "--label", action="append", default=[], metavar="NAME=VALUE", help="only those with this label (repeatable)")
    list_.add_argument("-q", "--quiet", action="store_true", help="print ids only")

    rm = command("rm", "delete sandboxes", "sandboxes:remove")
    rm.add_argument("sandbox", nargs="+", help="id of a sandbox")
    rm.add_argument("-f", "--force", action="store_true", help="say nothing of those that are gone already")

    exec_ = command("exec", "run a command in a sandbox: exec SANDBOX [--] ARGUMENTS, or exec SANDBOX -c STRING", "execute:exec_")
    exec_.add_argument("sandbox", help="id of a sandbox")
    exec_.add_argument("-c", dest="script", metavar="STRING", help="a command string, run by the sandbox's shell")
    exec_.add_argument("-w", "--cwd", help="working directory")
    exec_.add_argument("-e", "--env", action="append", default=[], metavar="NAME=VALUE", help="set a variable (repeatable)")
    exec_.add_argument("-u", "--user", help="user name or id")
    exec_.add_argument("-i", "--stdin", action="store_true", help="pass standard input on; without it the command reads nothing")
    exec_.add_argument("-t", "--tty", action="store_true", help="run it on a terminal, which also takes what is typed here")
    exec_.add_argument("--timeout", type=float, metavar="SECONDS", help="end it after this time, with exit code 124")
    exec_.add_argument("--raw", action="store_true", help="let output drive the terminal here; a file or pipe always gets it byte for byte")
    exec_.add_argument("--login", action="store_true", help="run it by a login shell")

    shell = command("shell", "open a terminal in a sandbox", "interactive:shell")
    shell.add_argument("sandbox", help="id of a sandbox")
    shell.add_argument("--attach", metavar="NAME", help="attach to the terminal of this name, made where there is none; it lives on")
    shell.add_argument("-w", "--cwd", help="working directory")
    shell.add_argument("-u", "--user", help="user name or id")

    cp = command(
        "cp", "copy a file or directory: cp LOCAL SANDBOX:PATH, or cp SANDBOX:PATH LOCAL; - is standard input or output", "copying:copy"
    )
    cp.add_argument("source", help="a file goes to a file, or into a directory that is there")
    cp.add_argument("target", help="what a directory holds goes into the directory named here; modes are kept")
    cp.add_argument("-r", "-a", "--recursive", action="store_true", help="nothing more: directories are always copied whole")

    port = command("port", "reach a port of a sandbox at a local one, until interrupted", "ports:port")
    port.add_argument("sandbox", help="id of a sandbox")
    port.add_argument("port", help="PORT, or LOCAL:PORT")

    image = commands.add_parser("image", help="list, import, pull and remove images", description="The service's image store.")
    images = image.add_subparsers(metavar="COMMAND", required=True)
    command("list", "list images", "images:list_", images, "ls")
    import_ = command("import", "import an OCI layout, a docker or OCI archive, or a root directory", "images:import_", images)
    import_.add_argument("path", help="an archive or a directory on this machine")
    import_.add_argument("name", help="name to give it")
    pull = command("pull", "fetch an image from a registry", "images:pull", images)
    pull.add_argument("name")
    image_rm = command("rm", "remove images", "images:remove", images)
    image_rm.add_argument("name", nargs="+")

    command("doctor", "check that this machine and the service can do their work, and say what to do", "doctor:doctor")
    return top


def split(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Our words, and those of the sandbox's command, options and all.

    That is what follows the first ``--`` or, for ``exec``, begins with the first word after the sandbox that is no option of ours.
    """
    words = list(arguments)
    at = words.index("--") if "--" in words else None
    if words[:1] == ["exec"]:
        begin = _command_at(words[:at])
        if begin is not None:
            return words[:begin], words[begin:]
    return (words, None) if at is None else (words[:at], words[at + 1 :])


def _command_at(words: Sequence[str]) -> int | None:
    """Where a command begins that was written without ``--``."""
    bare, value = 0, False
    for at, word in enumerate(words[1:], 1):
        if value:
            value = False
        elif word.startswith("--"):
            value = word in _EXEC_VALUED
        elif word.startswith("-") and word != "-":
            letters = word[1:].lstrip(_EXEC_FLAGS)
            value = len(letters) == 1 and letters in _EXEC_VALUES
        elif bare:
            return at
        else:
            bare += 1
    return None


def _report_usage(why: UsageError, *, as_json: bool) -> None:
    from holdfast._errors import HoldfastError
    from holdfast.cli.output import escape, report

    if as_json:
        report(HoldfastError("invalid_argument", str(why), hint=f"{why.program} --help says how it is written"), as_json=True)
    else:
        sys.stderr.write(f"{why.usage}{escape(f'{why.program}: error: {why}')}\n")


def _version() -> str:
    import holdfast

    return str(holdfast.__version__)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit status. Errors go to standard error as ``holdfast: message`` and a hint."""
    words = list(arguments)
    leading = words[:1] == ["--json"]
    ours, argv = split(words[1:] if leading else words)
    if leading:
        ours.append("--json")
    if "--version" in ours[:1]:
        sys.stdout.write(f"holdfast {_version()}\n")
        return 0
    if ours[:1] == ["help"]:
        ours = [*ours[1:], "-h"]
    try:
        parsed = parser().parse_args(ours)
    except SystemExit as ended:
        return int(ended.code or 0)
    except UsageError as why:
        _report_usage(why, as_json="--json" in ours)
        return EXIT_USAGE
    parsed.argv = argv
    module, _, function = parsed.entry.partition(":")
    from holdfast._errors import HoldfastError
    from holdfast.cli.output import report

    try:
        return int(getattr(import_module(f"holdfast.cli.{module}"), function)(parsed) or 0)
    except HoldfastError as why:
        report(why, as_json=parsed.json)
        return EXIT_USAGE if why.kind.sdk_class in _WRONG_ARGUMENTS else EXIT_SERVICE
    except KeyboardInterrupt as why:
        return 128 + int(getattr(why, "number", EXIT_INTERRUPTED - 128))
    except BrokenPipeError:
        # Who read our output has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as why:
        message = f"{why.strerror or why}{f': {why.filename}' if why.filename else ''}"
        local = HoldfastError("invalid_argument", message, hint="look at the path here, who may use it and what room there is")
        report(local, as_json=parsed.json)
        return EXIT_USAGE
