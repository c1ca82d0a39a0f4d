"""``exec`` and ``shell``, and what ``run`` shares with them.

The command's output is shown as it arrives, and its exit code is that of this program. Owns the options of commands, the standard streams
of this program while a command runs, and detached commands.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable
from typing import Any

from holdfast import STDERR, STDOUT, Chunk, HoldfastError, Process, Sandbox, SandboxClient, Terminal, UnsupportedError
from holdfast._requests import command_params
from holdfast._sync.commands import begin
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import TerminalFilter, finish, print_json, print_line, print_note, variables
from holdfast.cli.sandbox_names import opened
from holdfast.cli.signals import passed_to_command, raised_on_exit_signals

PIECE_BYTES = 64 * 1024
NOT_FOUND = 127
CANNOT_EXECUTE = 126
_SHELL_SIGNS = frozenset(" |&;<>$*?'\"`\n")
Command = str | list[str]
_PIPED = "command -v bash >/dev/null 2>&1 && exec bash{login}; exec sh{login}"


def exec_(arguments: Arguments) -> int:
    command = command_of(arguments)
    if command is None:
        raise UsageError("COMMAND is missing", hint="write holdfast exec SANDBOX ls -l, or holdfast exec SANDBOX -c 'ls | wc -l'")
    options = options_of(arguments) | {"env": variables(arguments) or None}
    if arguments.detach and (arguments.tty or arguments.stdin):
        raise UsageError(
            "a detached command has no terminal and no standard input",
            hint="leave out -i and -t; `holdfast shell SANDBOX --attach NAME` keeps a terminal",
        )
    with raised_on_exit_signals(), SandboxClient() as client, opened(client, arguments.sandbox) as sandbox:
        if not arguments.detach:
            return attached(sandbox, command, options, arguments)
        process, status = leave(sandbox, command, options, None)
        if arguments.json:
            print_json({"sandbox_id": sandbox.id, "command_id": process.command_id})
        elif not status:
            print_line(process.command_id)
        return status


def shell(arguments: Arguments) -> int:
    """``shell``: a shell on a terminal.

    If standard input is not a terminal, a shell without a terminal reads it, without prompts and echo, as with other remote shells. With
    ``--attach`` a terminal is used in any case.
    """
    from holdfast.cli.terminal import run_terminal, size

    place = {"cwd": arguments.cwd, "user": arguments.user, "env": variables(arguments) or None}
    with raised_on_exit_signals(), SandboxClient() as client, opened(client, arguments.sandbox) as sandbox:
        if arguments.attach is None and not sys.stdin.isatty():
            script = _PIPED.format(login=" -l" if arguments.login else "")
            return run(sandbox, script, place, stdin=True, as_json=arguments.json)
        rows, cols = size()
        terminal = terminal_of(sandbox, None, place, rows=rows, cols=cols, name=arguments.attach, login=arguments.login)
        return run_terminal(terminal, attach=arguments.attach, as_json=arguments.json)


def command_of(arguments: Arguments) -> Command | None:
    """The command to run; None if none was given. Raises ``UsageError`` if both words and ``-c`` were given."""
    if arguments.c is not None and arguments.argv:
        raise UsageError("give either a COMMAND or -c STRING, not both", hint="bash -c STRING is a COMMAND too")
    return arguments.c if arguments.c is not None else arguments.argv or None


def options_of(arguments: Arguments) -> dict[str, Any]:
    """The arguments of ``Sandbox.exec`` and ``start``."""
    if arguments.tty and arguments.timeout is not None:
        raise UsageError("a command on a terminal cannot have a time limit", hint="leave out --timeout, or -t")
    user = arguments.user
    return {
        "cwd": arguments.cwd,
        "user": int(user) if user is not None and user.isdecimal() else user,
        "timeout": arguments.timeout,
        "login": arguments.login,
    }


def attached(sandbox: Sandbox, command: Command | None, options: dict[str, Any], arguments: Arguments, **more: Any) -> int:
    """Run the command with the standard streams or the terminal of this program. Returns the exit status."""
    if arguments.tty:
        from holdfast.cli.terminal import run_terminal, size

        rows, cols = size()
        return run_terminal(terminal_of(sandbox, command, options, rows=rows, cols=cols), as_json=arguments.json)
    assert command is not None
    status = run(sandbox, command, options | more, stdin=arguments.stdin, raw=arguments.raw, as_json=arguments.json)
    if status == NOT_FOUND and not arguments.json:
        _hint(command)
    return status


def _hint(command: Command) -> None:
    """Print a hint if a whole command line was given as the name of one program."""
    if isinstance(command, list) and len(command) == 1 and _SHELL_SIGNS & set(command[0]):
        import shlex

        print_note(f"holdfast: no shell reads these words; to run them in a shell write -c {shlex.quote(command[0])}, or bash -c STRING")


def run(sandbox: Sandbox, command: Command, options: dict[str, Any], *, stdin: bool, raw: bool = False, as_json: bool = False) -> int:
    """Run the command and print its output as it arrives, or all of it as JSON. Returns the exit status."""
    if not as_json:
        return _live(sandbox, command, options, stdin, raw)
    result = sandbox.exec(command, input=sys.stdin.buffer.read() if stdin else None, **options)
    names = ("command_id", "exit_code", "signal", "stdout", "stderr", "duration_s", "timed_out", "truncated")
    cause = None if result.cause is None else {"fault": result.cause.fault, "reason": result.cause.reason}
    print_json({"sandbox_id": sandbox.id, **{name: getattr(result, name) for name in names}, "cause": cause})
    return result.exit_code


def terminal_of(sandbox: Sandbox, command: Command | None, options: dict[str, Any], **more: Any) -> Terminal:
    """A terminal that runs the command. None of its output is kept for the result."""
    words = ["sh", "-c", command] if isinstance(command, str) else command
    return sandbox.terminal(words, max_output_bytes=0, **{name: value for name, value in options.items() if name != "timeout"}, **more)


def leave(
    sandbox: Sandbox, command: Command, options: dict[str, Any], command_id: str | None, *, ends_sandbox: bool = False
) -> tuple[Process, int]:
    """Start the command and detach from it; its output is kept for ``logs``. ``ends_sandbox``: the sandbox ends with it.

    Returns the exit status too, which is not 0 if the command could not be started.
    """
    more = {"command_id": command_id, "env": None, "stdin": False, "outlive": "adopt", "spool": "tail", "detached": True}
    more["ends_sandbox"] = ends_sandbox
    params = command_params(command, **{**more, "live": True, "keep": True, **options})
    process = begin(sandbox, Process, "command", params, sandbox._options.max_output_bytes)
    if process.done:
        result = process.wait()
        if result.exit_code in (CANNOT_EXECUTE, NOT_FOUND) and not result.stdout_bytes:
            Screen().show([Chunk(STDERR, result.stderr_bytes)])
            _hint(command)
            return process, result.exit_code
    process.detach()
    return process, 0


def _live(sandbox: Sandbox, command: Command, options: dict[str, object], stdin: bool, raw: bool) -> int:
    screen = Screen(raw=raw)
    try:
        stderr: Any = "stdout" if _one_stream() else "pipe"
        process = sandbox.start(command, stdin=stdin, max_output_bytes=0, stderr=stderr, **options)  # type: ignore[arg-type]
    except UnsupportedError:
        result = sandbox.exec(command, **options)  # type: ignore[arg-type]
        screen.show([Chunk(STDOUT, result.stdout_bytes), Chunk(STDERR, result.stderr_bytes)])
        return finish(result)
    try:
        if stdin:
            import threading

            threading.Thread(target=_feed, args=(process,), daemon=True).start()
        return show(process, screen)
    except BaseException:  # Ctrl-C or a signal: end the command too
        process.close()
        raise


def _one_stream() -> bool:
    """Whether this program writes both of its streams to the same place, as with ``2>&1``: then the command's order of writing is kept."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


def show(process: Process, screen: Screen) -> int:
    """Show the process's output until it ends, and pass signals to it. Returns the exit status."""
    with passed_to_command(lambda: process.signal("INT"), process.close) as ended_by:
        screen.show(process)
        return finish(process.wait(), ended_by)


def _feed(process: Process) -> None:
    """Pass standard input on until its end, or until the command no longer reads it.

    Bypasses Python's buffer, whose lock must be free at exit.
    """
    try:
        while data := _piece(sys.stdin.fileno()):
            process.write(data)
        process.close_stdin()
    except HoldfastError:
        pass


def _piece(source: int) -> bytes:
    """The next bytes; empty at the end, or if no more can be read."""
    while True:
        try:
            return os.read(source, PIECE_BYTES)
        except BlockingIOError:  # the descriptor was inherited as non-blocking
            select.select([source], [], [])
        except OSError:
            return b""


class Screen:
    """The standard streams of this program: a command's output is written to the stream of the same kind, byte for byte.

    On a terminal, control sequences are escaped, unless ``raw``.
    """

    def __init__(self, *, raw: bool = False) -> None:
        self._filters = {} if raw else {n: TerminalFilter() for n, out in ((STDOUT, sys.stdout), (STDERR, sys.stderr)) if out.isatty()}

    def show(self, chunks: Iterable[Chunk]) -> None:
        """Write all chunks until their end."""
        for chunk in chunks:
            filter_ = self._filters.get(chunk.stream)
            self._write(chunk.stream, chunk.data if filter_ is None else filter_.feed(chunk.data))
        for stream, filter_ in self._filters.items():
            self._write(stream, filter_.end())

    def _write(self, stream: int, data: bytes) -> None:
        out = (sys.stdout if stream == STDOUT else sys.stderr).buffer
        out.write(data)
        out.flush()
