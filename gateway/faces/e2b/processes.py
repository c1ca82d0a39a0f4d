"""``process.Process``: E2B's procedures for commands and terminals, on commands and terminals of Holdfast.

Owns the translation of messages and events. A process is found by its pid or tag in the sandbox's own report of its commands
(``use_cases.history``), so that any replica finds it, also after its end; the tag is part of the command's id. Reconnecting replays the
output that the sandbox has kept, where E2B has only what comes later.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDERR, Exited, Gap, Output, Started
from holdfast_wire.limits import PARAMS_BYTES, PARAMS_ITEMS
from starlette.requests import Request

from gateway.audit.lines import command_facts
from gateway.faces.table import note, parts
from gateway.http.request_fields import Fields
from gateway.model.records import Record
from gateway.use_cases import accounts, agent_reports, history, streams
from gateway.use_cases.command_ids import new_command_id
from gateway.use_cases.history import PastCommand

from .actors import Actor, actor_of, text_of
from .connect_rpc import Message, client_stream, server_stream, unary
from .targets import ready_record, requested_user

_PULSE: Final[Message] = {"event": {"keepalive": {}}}
_SHELL_WORDS: Final = ("/bin/bash -l -c ", "/bin/bash", ["-l", "-c"])
"""How E2B's SDKs start a command: its line in the history, the program, and the words before the command itself."""
_SIGNALS: Final = {"SIGNAL_SIGTERM": "TERM", "SIGNAL_SIGKILL": "KILL", 15: "TERM", 9: "KILL"}
_TAG_CHARACTERS: Final = 60
_TAG_MARK: Final = "."
_MOST_MS: Final = 366 * 86400 * 1000


async def _start(request: Request, message: Message) -> AsyncGenerator[Message]:
    gateway, _ = parts(request)
    record = await ready_record(request)
    process = _map(message.get("process"), "process")
    actor = actor_of(await accounts.users(gateway, record), requested_user(request))
    kind, params = _params(message, process, actor, _timeout_s(request))
    note(request, **command_facts(params["argv"]))
    tag = text_of(message, "tag", required=False)
    params["id"] = params["name"] = new_command_id() + _tagged(tag)
    if kind == "command":
        del params["name"]
    async for event in _events(gateway, record, kind, params):
        yield event


async def _connect(request: Request, message: Message) -> AsyncGenerator[Message]:
    gateway, _ = parts(request)
    record = await ready_record(request)
    found = await _find(request, record, message, ended=True)
    if found.kind == "terminal":
        if not found.running:
            yield {"event": {"start": {"pid": found.pid}}}
            yield {"event": {"end": _end_of(found.exit_code, found.signal, found.reason)}}
            return
        kind, params = _terminal(found)
    else:
        kind, params = "follow", {"id": found.command_id, "keep": True}
    async for event in _events(gateway, record, kind, params):
        yield event


async def _events(gateway: Any, record: Record, kind: str, params: dict[str, Any]) -> AsyncGenerator[Message]:
    is_terminal = kind == "terminal"
    facts = streams.begun(gateway, record, kind, params)
    try:
        async for fact in facts:
            if isinstance(fact, Started):
                yield {"event": {"start": {"pid": _pid(fact.info.get("pid"))}}}
            elif isinstance(fact, Output):
                name = "pty" if is_terminal else "stderr" if fact.stream == STDERR else "stdout"
                yield {"event": {"data": {name: base64.b64encode(fact.data).decode()}}}
            elif isinstance(fact, Exited):
                yield {"event": {"end": _end(fact.result)}}
            else:
                assert isinstance(fact, Gap)  # these events have no form for lost output; the sandbox had no room for it
    finally:
        await facts.aclose()


def _params(message: Message, process: Message, actor: Actor, timeout_s: float | None) -> tuple[str, dict[str, Any]]:
    fields = Fields({"env": process.get("envs")})
    words = process.get("args") or []
    if not isinstance(words, list):
        raise HoldfastError("invalid_argument", "process.args must be a list of texts")
    argv = [text_of(process, "cmd"), *(text_of({"args": word}, "args") for word in words)]
    cwd = text_of(process, "cwd", required=False)
    params: dict[str, Any] = {
        **actor.command(),
        **({"cwd": actor.path(cwd)} if cwd else {}),
        "argv": argv,
        "env": fields.environment(most_bytes=PARAMS_BYTES, most=PARAMS_ITEMS, code="arguments_too_long"),
        **({} if timeout_s is None else {"timeout_s": timeout_s}),
    }
    if message.get("pty") is not None:
        rows, columns = _size(message)
        return "terminal", {**params, "rows": rows, "cols": columns}
    stdin = message.get("stdin")
    return "command", {**params, "stdin": "null" if stdin is False else "pipe", "keep": True, "live": True, "detached": True}


async def _list(request: Request, message: Message) -> Message:
    record = await ready_record(request)
    return {"processes": [_shown(one) for one in await _commands(request, record) if one.running]}


def _shown(command: PastCommand) -> Message:
    start, shell, words = _SHELL_WORDS
    if command.line.startswith(start):
        program, rest = shell, [*words, command.line.removeprefix(start)]
    else:
        program, *rest = command.line.split() or [""]
    tag = _tag_of(command.command_id)
    return {"config": {"cmd": program, "args": rest, "envs": {}}, "pid": command.pid, **({"tag": tag} if tag else {})}


async def _send_input(request: Request, message: Message) -> Message:
    record = await ready_record(request)
    found = await _find(request, record, message)
    await streams.tell(parts(request)[0], record, _attach(found), _input(message.get("input")))
    return {}


async def _close_stdin(request: Request, message: Message) -> Message:
    record = await ready_record(request)
    found = await _find(request, record, message)
    if found.kind == "terminal":
        raise HoldfastError("invalid_argument", "a terminal has no end of input; send it Ctrl-D (0x04)", hint="")
    await streams.tell(parts(request)[0], record, _attach(found), None)
    return {}


async def _send_signal(request: Request, message: Message) -> Message:
    record = await ready_record(request)
    name = _SIGNALS.get(signal) if isinstance(signal := message.get("signal"), str | int) else None
    if name is None:
        raise HoldfastError("unsupported", "signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL", hint="")
    found = await _find(request, record, message)
    await streams.tell(parts(request)[0], record, _attach(found), name)
    return {}


async def _update(request: Request, message: Message) -> Message:
    record = await ready_record(request)
    found = await _find(request, record, message)
    if message.get("pty") is not None:
        if found.kind != "terminal":
            raise HoldfastError("invalid_argument", "the process has no terminal whose size could be changed", hint="")
        await streams.tell(parts(request)[0], record, _attach(found), _size(message))
    return {}


async def _stream_input(request: Request, messages: AsyncIterator[Message]) -> Message:
    record = await ready_record(request)
    first: Message = await anext(messages, {})
    found = await _find(request, record, _map(first.get("start"), "start"))

    async def pieces() -> AsyncIterator[bytes]:
        async for message in messages:
            if message.get("keepalive") is None:
                yield _input(_map(message.get("data"), "data").get("input"))

    await streams.feed(parts(request)[0], record, _attach(found), pieces())
    return {}


async def _commands(request: Request, record: Record) -> list[PastCommand]:
    gateway, principal = parts(request)
    return [one for one in await history.commands(gateway, principal, record.name) if one.pid is not None]


async def _find(request: Request, record: Record, message: Message, *, ended: bool = False) -> PastCommand:
    """The process that the message selects: the newest that runs, with ``ended`` else the newest that has ended.

    Raises ``command_not_found``.
    """
    selector = _map(message.get("process"), "process")
    pid, tag = selector.get("pid"), text_of(selector, "tag", required=False)
    if pid is None and not tag:
        raise HoldfastError("invalid_argument", "process must have a pid or a tag", hint="")
    matching = [one for one in await _commands(request, record) if (one.pid == pid if pid is not None else _tag_of(one.command_id) == tag)]
    found = [one for one in matching if one.running] or (matching if ended else [])
    if not found:
        what = f"pid {pid}" if pid is not None else f"tag {tag}"
        raise HoldfastError("command_not_found", f"process with {what} not found"[:300], hint="")
    return found[-1]


def _attach(found: PastCommand) -> tuple[str, dict[str, Any]]:
    return _terminal(found) if found.kind == "terminal" else streams.following(found.command_id)


def _terminal(found: PastCommand) -> tuple[str, dict[str, Any]]:
    """Attach to a terminal that exists, whatever its size."""
    return "terminal", {"name": found.command_id, "create": False}


def _tagged(tag: str) -> str:
    if len(tag.encode()) > _TAG_CHARACTERS:
        raise HoldfastError("invalid_argument", f"tag must have at most {_TAG_CHARACTERS} bytes", hint="")
    return _TAG_MARK + base64.urlsafe_b64encode(tag.encode()).decode().rstrip("=") if tag else ""


def _tag_of(command_id: str) -> str:
    text = command_id.partition(_TAG_MARK)[2]
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return ""


def _end(result: dict[str, Any]) -> Message:
    """The end of a process. Raises ``wait_timeout`` for one that was ended because its time was over."""
    if result.get("timed_out") is True:
        raise HoldfastError("wait_timeout", "the process was ended because its time was over", hint="")
    cause = agent_reports.cause(result.get("cause"))
    name = result.get("signal")
    return _end_of(
        agent_reports.exit_code(result.get("exit_code")), name if isinstance(name, str) else None, cause["reason"] if cause else None
    )


def _end_of(exit_code: int | None, signal: str | None, reason: str | None) -> Message:
    """As a Go program reports the end of a process, which is what E2B's SDKs show: a signal has the exit code -1."""
    if signal is not None:
        status = f"signal: {signal.lower()}" + (f" ({reason})" if reason else "")
        return {"exitCode": -1, "exited": False, "status": status, "error": status}
    status = f"exit status {exit_code}"
    return {
        "exitCode": -1 if exit_code is None else exit_code,
        "exited": True,
        "status": status,
        **({"error": status} if exit_code else {}),
    }


def _input(value: Any) -> bytes:
    given = _map(value, "input")
    text = given.get("pty") if given.get("pty") is not None else given.get("stdin")
    try:
        return base64.b64decode(text if isinstance(text, str) else "*", validate=True)
    except binascii.Error:
        raise HoldfastError("invalid_argument", "input must have stdin or pty, as base64", hint="") from None


def _size(message: Message) -> tuple[int, int]:
    fields = Fields(_map(_map(message.get("pty"), "pty").get("size") or {}, "pty.size"))
    return fields.integer("rows", 24, least=1, most=4096), fields.integer("cols", 80, least=1, most=4096)


def _map(value: Any, name: str) -> Message:
    if not isinstance(value, dict):
        raise HoldfastError("invalid_argument", f"{name} must be an object", hint="")
    return value


def _pid(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**32 else 0


def _timeout_s(request: Request) -> float | None:
    """The time that the client gives the process; None without a limit. Raises ``invalid_argument``."""
    text = request.headers.get("connect-timeout-ms", "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 20 or not 0 < int(text) <= _MOST_MS:
        raise HoldfastError("invalid_argument", "Connect-Timeout-Ms must be a number of milliseconds", hint="")
    return int(text) / 1000


start = server_stream(_start, _PULSE)
connect = server_stream(_connect, _PULSE)
list_running = unary(_list)
send_input = unary(_send_input)
stream_input = client_stream(_stream_input)
send_signal = unary(_send_signal)
close_stdin = unary(_close_stdin)
update = unary(_update)
