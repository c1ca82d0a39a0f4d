"""``exec``: one command, its output as it comes, its exit code as ours."""

from __future__ import annotations

import argparse
import os
import select
import sys
import threading
from typing import Any

from holdfast import STDERR, STDOUT, Chunk, CommandResult, HoldfastError, Process, Sandbox, SandboxClient, UnsupportedError
from holdfast._arguments import bad
from holdfast.cli.leaving import attended, told_by_signals
from holdfast.cli.output import TerminalFilter, note, pairs, say_json

PIECE_BYTES = 64 * 1024


def exec_(arguments: argparse.Namespace) -> int:
    if (arguments.script is None) == (not arguments.argv):
        raise bad("give either the command's words or a string with -c", hint="holdfast exec SANDBOX -- ls -l")
    command = arguments.script if arguments.script is not None else arguments.argv
    options = {
        "cwd": arguments.cwd,
        "env": pairs(arguments.env, "--env") or None,
        "user": _user(arguments.user),
        "timeout": arguments.timeout,
        "login": arguments.login,
    }
    with told_by_signals(), SandboxClient() as client:
        sandbox = client.get_sandbox(arguments.sandbox)
        try:
            if arguments.tty:
                return _on_terminal(sandbox, command, options, arguments.json)
            return run(sandbox, command, options, stdin=arguments.stdin, raw=arguments.raw, as_json=arguments.json)
        finally:
            sandbox.close()


def run(
    sandbox: Sandbox, command: str | list[str], options: dict[str, Any], *, stdin: bool, raw: bool = False, as_json: bool = False
) -> int:
    """Run it, its output as it comes or the whole of it as JSON. The exit status."""
    if not as_json:
        return _live(sandbox, command, options, stdin, raw)
    data = sys.stdin.buffer.read() if stdin else None
    return _as_json(sandbox.exec(command, input=data, **options))


def _on_terminal(sandbox: Sandbox, command: str | list[str], options: dict[str, Any], as_json: bool) -> int:
    from holdfast.cli.interactive import attend, size

    if options.pop("timeout") is not None:
        raise bad("a terminal has no time-out", hint="leave out --timeout, or -t")
    rows, cols = size()
    words = ["sh", "-c", command] if isinstance(command, str) else command
    return attend(sandbox.terminal(words, rows=rows, cols=cols, max_output_bytes=0, **options), as_json=as_json)


def _live(sandbox: Sandbox, command: str | list[str], options: dict[str, object], stdin: bool, raw: bool) -> int:
    try:
        process = sandbox.start(command, stdin=stdin, max_output_bytes=0, **options)  # type: ignore[arg-type]
    except UnsupportedError:
        result = sandbox.exec(command, **options)  # type: ignore[arg-type]
        screen = Screen(raw=raw)
        screen.show(Chunk(1, result.stdout_bytes))
        screen.show(Chunk(2, result.stderr_bytes))
        screen.end()
        return finish(result)
    screen = Screen(raw=raw)
    try:
        if stdin:
            threading.Thread(target=_feed, args=(process,), daemon=True).start()
        with attended(lambda: process.signal("INT"), process.close):
            for chunk in process:
                screen.show(chunk)
            screen.end()
            return finish(process.wait())
    except BaseException:  # whatever ended us ends it too
        process.close()
        raise


def _feed(process: Process) -> None:
    """Standard input, passed on until it ends or nobody reads it. Past Python's buffer, whose lock nobody may hold when we end."""
    try:
        while data := _piece(sys.stdin.fileno()):
            process.write(data)
        process.close_stdin()
    except HoldfastError:
        pass


def _piece(source: int) -> bytes:
    """What comes next; nothing at its end, and where nothing more can be read."""
    while True:
        try:
            return os.read(source, PIECE_BYTES)
        except BlockingIOError:  # whoever handed it down reads it without waiting
            select.select([source], [], [])
        except OSError:
            return b""


class Screen:
    """Our own standard streams: a command's output goes to the one of the same kind, byte for byte.

    On a terminal, sequences that would drive it are spelled out, unless ``raw``.
    """

    def __init__(self, *, raw: bool = False) -> None:
        self._filters = {} if raw else {n: TerminalFilter() for n, out in ((STDOUT, sys.stdout), (STDERR, sys.stderr)) if out.isatty()}

    def show(self, chunk: Chunk) -> None:
        filter_ = self._filters.get(chunk.stream)
        self._write(chunk.stream, chunk.data if filter_ is None else filter_.feed(chunk.data))

    def end(self) -> None:
        """Nothing more comes."""
        for stream, filter_ in self._filters.items():
            self._write(stream, filter_.end())

    def _write(self, stream: int, data: bytes) -> None:
        out = (sys.stdout if stream == STDOUT else sys.stderr).buffer
        out.write(data)
        out.flush()


def finish(result: CommandResult) -> int:
    """Our exit status; what the user should know beside it goes to standard error."""
    if result.cause is not None:
        note(f"holdfast: {result.cause.message or result.cause.reason}")
    if result.exit_code is None:
        return 125
    return result.exit_code


def _as_json(result: CommandResult) -> int:
    say_json(
        {
            "command_id": result.command_id,
            "exit_code": result.exit_code,
            "signal": result.signal,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "duration_s": result.duration_s,
            "timed_out": result.timed_out,
            "truncated": result.truncated,
            "cause": None if result.cause is None else {"fault": result.cause.fault, "reason": result.cause.reason},
        }
    )
    return 125 if result.exit_code is None else result.exit_code


def _user(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text
