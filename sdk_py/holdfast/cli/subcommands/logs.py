"""``logs``: the output of a detached command from its beginning.

Owns the choice of the command, how the end of the output so far is recognised, and the last lines. The sandbox keeps the output (`keep` in
CHANNELS.md), so that it can be read any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from holdfast import Chunk, InvalidArgumentError, NotFoundError, OutcomeUnknownError, Process, Sandbox, SandboxClient, WaitTimeoutError
from holdfast._sync.commands import begin
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import print_json, print_note
from holdfast.cli.sandbox_names import opened
from holdfast.cli.signals import raised_on_exit_signals
from holdfast.cli.subcommands.execute import Screen
from holdfast.cli.subcommands.run import ENTRYPOINT, MAIN
from holdfast.cli.subcommands.service_logs import service_logs

_QUIET_ROUNDS = 2
"""After so many requests that were answered without new output in between, the output so far has arrived completely."""


def logs(arguments: Arguments) -> int:
    if arguments.service is not None:
        return service_logs(arguments)
    if not arguments.sandbox:
        raise InvalidArgumentError("invalid_argument", "logs needs a SANDBOX, or --service NAME", hint="holdfast ps lists sandboxes")
    with raised_on_exit_signals(), SandboxClient() as client, opened(client, arguments.sandbox) as sandbox:
        process = _found(sandbox, *([arguments.command_id] if arguments.command_id else [MAIN, ENTRYPOINT]))
        try:
            chunks = [*_present(sandbox, process)]
            if arguments.tail is not None:
                chunks = last_lines(chunks, arguments.tail)
            if arguments.json:
                return _as_json(process, chunks, follow=arguments.follow)
            Screen(raw=arguments.raw).show(chain(chunks, process if arguments.follow else ()))
            if process.done and (lost := sum(count.dropped for count in process.wait().streams.values())):
                print_note(f"holdfast: {lost} bytes of older output are no longer kept")
        finally:
            process.detach()
    return 0


def _found(sandbox: Sandbox, command_id: str, *others: str) -> Process:
    """The command of the first of these ids that exists."""
    try:
        return begin(sandbox, Process, "follow", {"id": command_id, "keep": True}, sandbox._options.max_output_bytes)
    except NotFoundError as why:
        if why.code != "command_not_found":
            raise
        if others:
            return _found(sandbox, *others)
        if command_id == ENTRYPOINT:
            why.message = "this sandbox has no command that `run` started"
        why.hint = "logs shows what `run` or `exec -d` started; of `exec -d`, give the id that it printed"
        raise
    except OutcomeUnknownError as why:
        why.hint = "output is kept for five minutes after the command has ended and was read to its end"
        raise


def _present(sandbox: Sandbox, process: Process) -> Iterator[Chunk]:
    """The output so far. The agent answers in order: output from before a request arrives before the answer to that request."""
    quiet = 0
    while quiet < _QUIET_ROUNDS:
        quiet += 1
        sandbox.files.exists("/")
        while (chunk := _next(process)) is not None:
            quiet = 0
            yield chunk


def _next(process: Process) -> Chunk | None:
    try:
        return process.read(timeout=0)
    except WaitTimeoutError:
        return None


def last_lines(chunks: list[Chunk], lines: int) -> list[Chunk]:
    """The chunks of the last lines of both streams together."""
    kept: list[Chunk] = []
    left = lines + 1  # the end of the line before the first
    at_end = True
    for chunk in reversed(chunks):
        data = chunk.data
        if at_end and data:
            left -= not data.endswith(b"\n")
            at_end = False
        count = data.count(b"\n")
        if count < left:
            kept.append(chunk)
            left -= count
            continue
        end = len(data)
        for _ in range(left):
            end = data.rfind(b"\n", 0, end)
        if data[end + 1 :]:
            kept.append(Chunk(chunk.stream, data[end + 1 :]))
        break
    return kept[::-1]


def _as_json(process: Process, chunks: list[Chunk], *, follow: bool) -> int:
    if follow:
        chunks += process
    result = process.wait() if process.done else None
    streams = {number: b"".join(chunk.data for chunk in chunks if chunk.stream == number).decode("utf-8", "replace") for number in (1, 2)}
    print_json({"command_id": process.command_id, "stdout": streams[1], "stderr": streams[2], "ended": result is not None,
              "exit_code": None if result is None else result.exit_code})  # fmt: skip
    return 0
