"""Reads and runs one command line, and prints its errors.

Owns the exit codes and the message for a wrong command line: the error with a suggestion, then the usage. ``commands`` owns the list of
commands; the module of a command is imported when the command is used.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.commands import GROUPS, NAMES, group_help_text, help_text, named

EXIT_USAGE = 2
EXIT_SERVICE = 125
EXIT_INTERRUPTED = 130


def parse(words: Sequence[str], *, as_json: bool = False) -> Arguments:
    """Read a command line. Raises ``UsageError``. If it asks for help, the help is printed and ``SystemExit`` is raised."""
    if words[:1] in (["-h"], ["--help"]):
        sys.stdout.write(help_text())
        raise SystemExit(0)
    command, used = named(words)
    if command is None:
        if any(word in ("-h", "--help") for word in words[1:2]) and (text := group_help_text(words[0])):
            sys.stdout.write(text)
            raise SystemExit(0)
        raise _no_command(words)
    found = command.read(words[used:])
    if found.help:
        sys.stdout.write(command.help_text())
        raise SystemExit(0)
    found.json = found.json or as_json
    return found


def _no_command(words: Sequence[str]) -> UsageError:
    usage = "usage: holdfast COMMAND ..."
    if not words:
        return UsageError("no command is given", usage=usage)
    if words[0].startswith("-"):
        return UsageError(f"there is no option {words[0]}; a command comes first", usage=usage)
    if len(words) == 1 and (text := group_help_text(words[0])):
        return UsageError(f"{words[0]} needs a command", usage=text.partition("\n")[0], program=f"holdfast {words[0]}")
    if words[0] in GROUPS:
        words = words[1:]
    from holdfast.cli.suggestions import suggest_command

    name = " ".join(words[:2]) if words[0] in ("image", "key", "project") else words[0]
    return UsageError(f"there is no command {name}{suggest_command(name, NAMES)}", usage=usage)


def _report_usage(why: UsageError, *, as_json: bool) -> None:
    from holdfast.cli.output import print_note, report

    hint = why.hint or (f"{why.program} --help shows its usage" if as_json else "")
    report({"code": "invalid_argument", "message": str(why), "hint": hint, "usage": why.usage}, as_json=as_json, program=why.program)
    if why.usage and not as_json:
        print_note(f"{why.usage}\n  {why.program} --help for details")


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit status. Errors go to standard error as ``holdfast: message`` and a hint."""
    words = list(arguments)
    leading = words[:1] == ["--json"]
    rest = words[1:] if leading else words
    if rest[:1] == ["--version"]:
        rest = ["version"]
    if rest[:1] == ["help"]:
        rest = [*rest[1:], "--help"]
    try:
        parsed = parse(rest, as_json=leading)
    except SystemExit as ended:
        return int(ended.code or 0)
    except UsageError as why:
        _report_usage(why, as_json=leading or "--json" in rest[: rest.index("--") if "--" in rest else None])
        return EXIT_USAGE
    return _run(parsed)


def _run(parsed: Arguments) -> int:
    module, _, function = parsed.entry.partition(":")
    from holdfast import _errors
    from holdfast._errors import HoldfastError, InvalidArgumentError

    try:
        command = getattr(import_module(f"holdfast.cli.subcommands.{module}"), function)
        gc.enable()
        status = int(command(parsed) or 0)
        sys.stdout.flush()
        return status
    except UsageError as why:
        _report_usage(why if why.usage else parsed.command.wrong(str(why), why.hint), as_json=parsed.json)
        return EXIT_USAGE
    except HoldfastError as why:
        from holdfast.cli.output import report

        report(why.to_map(), as_json=parsed.json)
        return EXIT_USAGE if issubclass(getattr(_errors, why.kind.sdk_class), InvalidArgumentError) else EXIT_SERVICE
    except KeyboardInterrupt as why:
        return 128 + int(getattr(why, "number", EXIT_INTERRUPTED - 128))
    except BrokenPipeError:
        # The reader of our output has closed it; without this, Python would raise the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as why:
        from holdfast.cli.output import report

        message = f"{why.strerror or why}{f': {why.filename}' if why.filename else ''}"
        local = HoldfastError("invalid_argument", message, hint="check the path on this machine, its permissions and the free space")
        report(local.to_map(), as_json=parsed.json)
        return EXIT_USAGE
