"""Routes of one-off commands and their jobs.

Owns the form of their requests and answers, which is Orchard Env's.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDERR, STDOUT
from holdfast_wire.limits import PARAMS_BYTES, PARAMS_ITEMS
from starlette.requests import Request
from starlette.responses import Response

from gateway.audit.lines import command_facts
from gateway.faces.table import gateway_of, note, parts
from gateway.http.bounded_protocol import CONNECTED
from gateway.http.middleware import COMMAND
from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.use_cases import agent_reports, describe
from gateway.use_cases import execute as execution
from gateway.use_cases.activity import in_use
from gateway.use_cases.command_ids import created_at
from gateway.use_cases.execute import Command, Job, Posted
from gateway.use_cases.login_shell import login_shell

_NO_TTY = (b"bash: cannot set terminal process group", b"bash: no job control in this shell")
"""What an interactive bash without a terminal prints before anything else."""


async def execute(request: Request) -> Response:
    """``POST /sandboxes/{id}/exec``."""
    gateway, principal = parts(request)
    record = await describe.ready(gateway, principal, request.path_params["sandbox_id"])
    with in_use(gateway, record):
        body = await read_json(request, gateway.settings.rest.body_bytes)
        fields = Fields(body)
        waits = fields.boolean("wait", False)
        text = fields.command()
        note(request, **command_facts(text))
        command = _command(fields, text)
        posted = Posted(body, request.scope[CONNECTED], request.headers.get("idempotency-key"), waits)
        job = await execution.execute(gateway, record, command, posted)
        request.scope[COMMAND] = job.command_id
    if not waits:
        return json_response({"job_id": job.job_id, "status": "queued"})
    shown = text if isinstance(text, str) else " ".join(text)
    return json_response(_job(job, shown, login=command.argv[:2] == ["bash", "--login"]))


async def job(request: Request) -> Response:
    """``GET /jobs/{id}``."""
    return await _look(request, None)


async def wait_job(request: Request) -> Response:
    """``GET /jobs/{id}/wait?timeout=``: answers when it has ended, or its state when the wait runs out."""
    timeout_s = Fields(dict(request.query_params)).seconds("timeout", most=86400.0)
    return await _look(request, timeout_s or gateway_of(request).settings.rest.exec_timeout_s)


async def _look(request: Request, wait_s: float | None) -> Response:
    gateway, principal = parts(request)
    return json_response(_job(await execution.look(gateway, principal, request.path_params["job_id"], wait_s), "", login=False))


def _command(fields: Fields, text: str | list[str]) -> Command:
    outlive = fields.text("outlive")
    if outlive not in (None, "adopt", "kill", "wait"):
        raise HoldfastError("invalid_argument", "outlive must be adopt, kill or wait")
    script, argv = (text, []) if isinstance(text, str) else (None, text)
    if fields.boolean("login_shell", False):
        script, argv = None, login_shell(text)
    return Command(
        script,
        argv,
        cwd=None if fields.get("cwd") is None else fields.path("cwd"),
        user=fields.user(),
        env=fields.environment(most_bytes=PARAMS_BYTES, most=PARAMS_ITEMS, code="arguments_too_long"),
        timeout_s=fields.seconds("timeout_seconds"),
        outlive=outlive,
    )


def _job(job: Job, command: str, *, login: bool) -> dict[str, Any]:
    outcome, result = job.outcome, job.outcome.result or {}
    begun_at = created_at(job.command_id) or outcome.started_at or job.record.created_at
    started_at = max(begun_at, outcome.started_at or 0.0)  # the latter is measured by the sandbox's clock
    exit_code = agent_reports.exit_code(result.get("exit_code"))
    status = "running" if outcome.status != "ended" else "succeeded" if exit_code == 0 else "failed"
    duration_s = result.get("duration_s")
    cause = agent_reports.cause(result.get("cause"))
    error = None if cause is None else cause["message"] or cause["reason"]
    return {
        "job_id": job.job_id,
        "sandbox_id": job.record.name,
        "command": command,
        "status": status,
        "stdout": outcome.output[STDOUT].decode("utf-8", "replace"),
        "stderr": _without_tty_warnings(bytes(outcome.output[STDERR]), login).decode("utf-8", "replace"),
        "exit_code": exit_code,
        "created_at": begun_at,
        "started_at": started_at,
        "completed_at": started_at + duration_s if isinstance(duration_s, int | float) else None,
        "error": error,
        "cause": cause,
        "signal": result["signal"] if isinstance(result.get("signal"), str) else None,
        "timed_out": result.get("timed_out") is True,
        "truncated": outcome.truncated,
        "late": result.get("late") is True,
        "not_executed": agent_reports.not_executed(result.get("not_executed")),
        "streams": agent_reports.streams(result.get("streams")),
    }


def _without_tty_warnings(stderr: bytes, login: bool) -> bytes:
    while login and stderr.startswith(_NO_TTY):
        stderr = stderr.partition(b"\n")[2]
    return stderr
