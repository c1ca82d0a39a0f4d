"""SWE-ReX's calls but uploads: sessions, commands, files.

Owns the form of requests and answers. ``X-Request-ID`` is an idempotency key: a request that comes twice is one command.
"""

from __future__ import annotations

import codecs
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDERR, STDOUT
from holdfast_wire.limits import PARAMS_BYTES, PARAMS_ITEMS
from starlette.requests import Request
from starlette.responses import Response

from gateway.audit.lines import command_facts, masked_path
from gateway.faces.table import note, parts
from gateway.http.bounded_protocol import CONNECTED
from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.model.records import Record
from gateway.use_cases import agent_reports, describe, files
from gateway.use_cases import execute as execution
from gateway.use_cases.activity import in_use
from gateway.use_cases.command_ids import command_id_of_key, new_command_id
from gateway.use_cases.execute import Command

from .errors import TransferredError
from .sessions import PROMPT, Seen, Session, close_all

_MORE_S: Final = 30.0
_MOST_TRIES: Final = 20
_SLOW_ENCODINGS: Final = frozenset({"punycode", "idna"})
"""Encodings whose decoding takes a time that grows with the square of the text."""


async def greeting(request: Request) -> Response:
    """``GET /``."""
    await _record(request)
    return json_response({"message": "hello world"})


async def is_alive(request: Request) -> Response:
    """``GET /is_alive``."""
    await _record(request)
    return json_response({"is_alive": True, "message": ""})


async def create_session(request: Request) -> Response:
    """``POST /create_session``: a living shell, in which the files of ``startup_source`` are read."""
    session, fields = await _session(request)
    sources = fields.get("startup_source") or []
    if not isinstance(sources, list) or not all(isinstance(one, str) for one in sources):
        raise HoldfastError("invalid_argument", "startup_source must be a list of paths")
    await session.create()
    output = ""
    for path in sources:
        quoted = path.replace("'", "'\\''")
        output += (await session.run(new_command_id(), f"source '{quoted}'", fields.seconds("startup_timeout"))).output
    return json_response({"output": output, "session_type": "bash"})


async def run_in_session(request: Request) -> Response:
    """``POST /run_in_session``."""
    session, fields = await _session(request)
    if fields.get("action_type") == "bash_interrupt":
        return json_response(_observation(await _interrupted(session, fields), 0))
    command, check = fields.text("command", "", most=PARAMS_BYTES) or "", fields.get("check")
    note(request, **command_facts(command))
    if check not in ("silent", "raise", "ignore", None):
        raise HoldfastError("invalid_argument", "check must be silent, raise or ignore")
    timeout_s, expect = fields.seconds("timeout"), _texts(fields)
    begins, quits = fields.boolean("is_interactive_command", False), fields.boolean("is_interactive_quit", False)
    command_id, running = _command_id(request, session.record), await session.running()
    if running is not None and running.command_id != command_id:
        seen = await session.type(running, command, [] if quits else expect, timeout_s)
    elif begins or quits or expect:
        seen = await session.start(command_id, command, expect, timeout_s)
    else:
        await _check_syntax(session, command)
        seen = await session.run(command_id, command, timeout_s)
    if begins or quits:
        seen.output = seen.output if quits else seen.output.lstrip().removeprefix(command).strip()
        return json_response(_observation(seen, 0))
    if check == "ignore":
        return json_response(_observation(seen, None))
    if check != "silent" and seen.exit_code not in (0, None):
        what = f"Command {command[:2000]!r} failed with exit code {seen.exit_code}. Here is the output:\n{seen.output[:20_000]!r}"
        raise TransferredError("NonZeroExitCodeError", _prefixed(fields, what))
    return json_response(_observation(seen, seen.exit_code))


async def close_session(request: Request) -> Response:
    """``POST /close_session``."""
    session, _ = await _session(request)
    await session.close()
    return json_response({"session_type": "bash"})


async def close(request: Request) -> Response:
    """``POST /close``: ends the sessions. The sandbox stays."""
    await close_all(*parts(request), await _record(request))
    return json_response({})


async def execute(request: Request) -> Response:
    """``POST /execute``: a command outside sessions."""
    record, fields = await _asked(request)
    text = fields.get("command")
    if fields.boolean("shell", False):
        argv = ["/bin/sh", "-c", fields.text("command", "", most=PARAMS_BYTES) or ""]
    elif isinstance(text, list):
        wanted = fields.command()
        argv = wanted if isinstance(wanted, list) else [wanted]
    else:
        argv = [fields.required("command", most=PARAMS_BYTES)]
    note(request, **command_facts(argv))
    timeout_s = fields.seconds("timeout")
    env = fields.environment(most_bytes=PARAMS_BYTES, most=PARAMS_ITEMS, code="arguments_too_long") if fields.get("env") else {}
    cwd = None if fields.get("cwd") is None else fields.path("cwd")
    params = Command(None, argv, cwd=cwd, env=env, timeout_s=timeout_s).params()
    if fields.boolean("merge_output_streams", False):
        params["stderr"] = "stdout"
    wait_s = timeout_s + _MORE_S if timeout_s else parts(request)[0].settings.rest.exec_timeout_s
    gateway, _ = parts(request)
    with in_use(gateway, record):
        outcome = await execution.run(gateway, record, {"id": _command_id(request, record), **params}, wait_s, request.scope[CONNECTED])
    result = outcome.result
    if result is None or result.get("timed_out") is True:
        raise TransferredError("CommandTimeoutError", f"Timeout ({timeout_s or wait_s}s) exceeded while running command")
    if failure := agent_reports.not_executed(result.get("not_executed")):
        name = "FileNotFoundError" if failure == "not_found" else "PermissionError"
        raise TransferredError(f"builtins.{name}", f"{failure.replace('_', ' ')}: {argv[0][:1000]!r}")
    stdout, stderr = (outcome.output[one].decode("utf-8", "backslashreplace") for one in (STDOUT, STDERR))
    exit_code = agent_reports.exit_code(result.get("exit_code"))
    if exit_code and fields.boolean("check", False):
        what = f"Command {str(text)[:2000]!r} failed with exit code {exit_code}. Stdout:\n{stdout[:20_000]!r}\nStderr:\n{stderr[:20_000]!r}"
        raise TransferredError("NonZeroExitCodeError", _prefixed(fields, what))
    return json_response({"stdout": stdout, "stderr": stderr, "exit_code": exit_code})


async def read_file(request: Request) -> Response:
    """``POST /read_file``."""
    record, fields = await _asked(request)
    path = fields.path()
    note(request, path=masked_path(path))
    content = await files.read(parts(request)[0], record, path)
    encoding, errors = fields.text("encoding") or "utf-8", fields.text("errors") or "strict"
    try:
        if codecs.lookup(encoding).name in _SLOW_ENCODINGS:
            raise LookupError(f"the encoding {encoding[:40]} is for names of hosts, not for files")
        return json_response({"content": bytes(content).decode(encoding, errors)})
    except LookupError as error:
        raise TransferredError("builtins.LookupError", str(error)) from None
    except ValueError as error:
        raise TransferredError("builtins.ValueError", str(error)) from None


async def write_file(request: Request) -> Response:
    """``POST /write_file``, with the directories that the file needs."""
    record, fields = await _asked(request)
    gateway, _ = parts(request)
    content = fields.text("content", "", most=gateway.settings.rest.file_bytes) or ""
    path = fields.path()
    note(request, path=masked_path(path), size=len(content))
    await files.write(gateway, record, path, content.encode("utf-8", "surrogatepass"))
    return json_response({})


async def _interrupted(session: Session, fields: Fields) -> Seen:
    running = await session.running()
    if running is None:
        return Seen("", {"exit_code": 0})
    tries = fields.integer("n_retry", 3, least=0, most=_MOST_TRIES)
    wait_s = fields.seconds("timeout")
    seen = await session.interrupt(running, tries, 0.2 if wait_s is None else wait_s)
    seen.output = seen.output.strip()
    return seen


async def _check_syntax(session: Session, command: str) -> None:
    """Raise ``BashIncorrectSyntaxError`` for what bash cannot parse; nothing of it runs."""
    gateway, record = session.gateway, session.record
    params = Command(None, ["bash", "-n", "-c", command]).params()
    outcome = await execution.run(gateway, record, {"id": new_command_id(), **params}, _MORE_S, lambda: True)
    if outcome.result is None or agent_reports.exit_code(outcome.result.get("exit_code")) != 2:
        return
    stdout, stderr = (outcome.output[one].decode("utf-8", "backslashreplace")[:20_000] for one in (STDOUT, STDERR))
    what = f"Error (exit code 2) while checking bash command \n{command[:2000]!r}\n---- Stderr ----\n{stderr}\n---- Stdout ----\n{stdout}"
    raise TransferredError("BashIncorrectSyntaxError", what, bash_stdout=stdout, bash_stderr=stderr)


def _observation(seen: Seen, exit_code: int | None) -> dict[str, Any]:
    return {
        "output": seen.output,
        "exit_code": exit_code,
        "failure_reason": "",
        "expect_string": seen.expected or PROMPT,
        "session_type": "bash",
    }


def _prefixed(fields: Fields, what: str) -> str:
    said = fields.text("error_msg", "") or ""
    return f"{said}: {what}" if said else what


def _texts(fields: Fields) -> list[str]:
    texts = fields.get("expect") or []
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        raise HoldfastError("invalid_argument", "expect must be a list of texts")
    return texts


def _command_id(request: Request, record: Record) -> str:
    key = request.headers.get("x-request-id")
    return command_id_of_key(record.owner, f"swerex {record.sandbox_id} {key}") if key else new_command_id()


async def _record(request: Request) -> Record:
    gateway, principal = parts(request)
    return await describe.ready(gateway, principal, request.path_params["sandbox_id"])


async def _asked(request: Request) -> tuple[Record, Fields]:
    record = await _record(request)
    return record, Fields(await read_json(request, parts(request)[0].settings.rest.body_bytes))


async def _session(request: Request) -> tuple[Session, Fields]:
    record, fields = await _asked(request)
    gateway, principal = parts(request)
    return Session(gateway, principal, record, fields.text("session", "default") or "default"), fields
