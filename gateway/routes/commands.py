"""Routes of one-off commands and their jobs.

Owns the answers of exec and jobs, which are Orchard Env's. A job is a command of the agent; its id names the sandbox and the time of its
creation, so any replica can answer and nothing is kept here.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDERR, STDOUT
from holdfast_wire.limits import PARAMS_BYTES, PARAMS_ITEMS
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.bounded_protocol import CONNECTED
from gateway.http.request_fields import SANDBOX_ID, Fields, read_json
from gateway.http.responses import json_response
from gateway.lifecycle.activity import in_use
from gateway.model.records import Record
from gateway.oneoff import operations, validation
from gateway.oneoff.login_shell import login_shell
from gateway.oneoff.operations import Outcome
from gateway.service import authenticated, gateway_of, ready_sandbox

ExecId = Callable[[Record, dict[str, Any], bool, Callable[[], bool]], AbstractContextManager[str]]
"""Returns the command id of a posted exec without an idempotency key, as a context that lasts until the exec is answered. The arguments are
the sandbox, the body, whether the exec waits, and a function that returns whether its client is still connected.
"""
_WAIT_MORE_S = 30.0
"""A waiting exec waits this much longer than its command may run."""
_NO_TTY = (b"bash: cannot set terminal process group", b"bash: no job control in this shell")
"""What an interactive bash without a terminal prints before anything else."""


async def execute(request: Request) -> Response:
    """``POST /sandboxes/{id}/exec``."""
    gateway, record = await ready_sandbox(request)
    with in_use(gateway, record):
        body = await read_json(request, gateway.settings.rest.body_bytes)
        fields = Fields(body)
        waits = fields.boolean("wait", False)
        command = fields.command()
        params = _params(fields, command)
        key = request.headers.get("idempotency-key")
        connected: Callable[[], bool] = request.scope[CONNECTED]
        exec_id: ExecId = request.scope["app"].exec_id
        timeout_s = params.get("timeout_s")
        wait_s = (timeout_s + _WAIT_MORE_S if timeout_s else gateway.settings.rest.exec_timeout_s) if waits else None
        with _id_of_key(record, key) if key else exec_id(record, body, waits, connected) as command_id:
            outcome = await operations.run(gateway, record, {"id": command_id, **params}, wait_s, connected)
    gateway.metrics.count("execs_total")
    job_id = f"{record.sandbox_id}.{command_id}"
    if not waits:
        return json_response({"job_id": job_id, "status": "queued"})
    shown = command if isinstance(command, str) else " ".join(command)
    return json_response(_job(record, command_id, shown, outcome, login=params.get("argv", ())[:2] == ["bash", "--login"]))


async def job(request: Request) -> Response:
    """``GET /jobs/{id}``."""
    return await _look(request, None)


async def wait_job(request: Request) -> Response:
    """``GET /jobs/{id}/wait?timeout=``: answers when it has ended, or its state when the wait runs out."""
    timeout_s = Fields(dict(request.query_params)).seconds("timeout", most=86400.0)
    return await _look(request, timeout_s or gateway_of(request).settings.rest.exec_timeout_s)


async def _look(request: Request, wait_s: float | None) -> Response:
    gateway, owner = authenticated(request)
    job_id = request.path_params["job_id"]
    sandbox_id, dot, command_id = job_id.rpartition(".")
    missing = HoldfastError("command_not_found", f"there is no job {job_id[:200]!r}")
    if not dot or not SANDBOX_ID.fullmatch(sandbox_id) or not command_id.isalnum() or len(command_id) > 64:
        raise missing
    try:
        record = await gateway.ready(owner, sandbox_id)
    except HoldfastError as error:
        if error.code == "sandbox_not_found":
            raise missing from None
        raise
    outcome = await operations.peek(gateway, record, command_id, wait_s)
    return json_response(_job(record, command_id, "", outcome, login=False))


def _params(fields: Fields, command: str | list[str]) -> dict[str, Any]:
    """The params of a command channel's Open."""
    params: dict[str, Any] = {"detached": True}
    outlive = fields.text("outlive")
    if outlive is not None:
        if outlive not in ("adopt", "kill", "wait"):
            raise HoldfastError("invalid_argument", "outlive must be adopt, kill or wait")
        params["outlive"] = outlive
    if fields.boolean("login_shell", False):
        params["argv"] = login_shell(command)
    elif isinstance(command, str):
        params["script"] = command
    else:
        params["argv"] = command
    cwd = fields.get("cwd")
    if cwd is not None:
        params["cwd"] = fields.path("cwd")
    user = fields.user()
    if user is not None:
        params["user"] = user
    env = fields.environment(most_bytes=PARAMS_BYTES, most=PARAMS_ITEMS, code="arguments_too_long")
    if env:
        params["env"] = env
    timeout_s = fields.seconds("timeout_seconds")
    if timeout_s:
        params["timeout_s"] = timeout_s
    return params


def new_exec_id(record: Record, body: dict[str, Any], waits: bool, connected: Callable[[], bool]) -> AbstractContextManager[str]:
    """See ``ExecId``: a new id for every exec."""
    return contextlib.nullcontext(new_command_id())


def _id_of_key(record: Record, key: str) -> AbstractContextManager[str]:
    return contextlib.nullcontext("k" + hashlib.sha256(f"{record.owner}\0{key}".encode()).hexdigest()[:32])


def new_command_id() -> str:
    """A command id that contains its time of creation."""
    return f"j{int(time.time() * 1000):012x}{secrets.token_hex(8)}"


def _created_at(command_id: str) -> float | None:
    """The time in an id of ``new_command_id``; None for one derived from an idempotency key."""
    try:
        return int(command_id[1:13], 16) / 1000 if command_id[0] == "j" else None
    except ValueError:
        return None


def _job(record: Record, command_id: str, command: str, outcome: Outcome, *, login: bool) -> dict[str, Any]:
    result = outcome.result or {}
    created_at = _created_at(command_id) or outcome.started_at or record.created_at
    started_at = max(created_at, outcome.started_at or 0.0)  # the latter is measured by the sandbox's clock
    exit_code = validation.exit_code(result.get("exit_code"))
    status = "running" if outcome.status != "ended" else "succeeded" if exit_code == 0 else "failed"
    duration_s = result.get("duration_s")
    cause = validation.cause(result.get("cause"))
    error = None if cause is None else cause["message"] or cause["reason"]
    return {
        "job_id": f"{record.sandbox_id}.{command_id}",
        "sandbox_id": record.sandbox_id,
        "command": command,
        "status": status,
        "stdout": outcome.output[STDOUT].decode("utf-8", "replace"),
        "stderr": _without_tty_warnings(bytes(outcome.output[STDERR]), login).decode("utf-8", "replace"),
        "exit_code": exit_code,
        "created_at": created_at,
        "started_at": started_at,
        "completed_at": started_at + duration_s if isinstance(duration_s, int | float) else None,
        "error": error,
        "cause": cause,
        "signal": result["signal"] if isinstance(result.get("signal"), str) else None,
        "timed_out": result.get("timed_out") is True,
        "truncated": outcome.truncated,
        "streams": validation.streams(result.get("streams")),
    }


def _without_tty_warnings(stderr: bytes, login: bool) -> bytes:
    while login and stderr.startswith(_NO_TTY):
        stderr = stderr.partition(b"\n")[2]
    return stderr
