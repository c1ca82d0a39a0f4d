"""``WS /sandboxes/{id}/exec/pty``: Orchard Env's terminal, JSON text frames with base64 data, on a terminal channel of the agent.

Owns the translation of frames. Browsers and simple clients cannot set headers on a WebSocket, so on this route alone the key may be in the
URL or a subprotocol; neither is ever logged. A refusal is an accepted socket that closes with a 44xx code, because these clients read no
other. Holdfast's own SDK uses sessions instead.
"""

from __future__ import annotations

import asyncio
import base64
import signal
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Close, Exited, Failed, Output, Resize, Signal, Started
from holdfast_wire.limits import DECODE_ITEMS
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gateway.agents.agent_call import AgentCall
from gateway.faces.table import header_key, parts
from gateway.http.request_fields import Fields
from gateway.use_cases import describe
from gateway.use_cases.activity import in_use
from gateway.use_cases.agent_reports import fact_error
from gateway.use_cases.login_shell import login_shell

_INIT_S = 10.0
_PROTOCOL = "api_key."
_NORMAL = 1000
_BROKEN = 4400


def terminal_key(connection: HTTPConnection) -> str | None:
    """The key of a request in its headers, its URL or a subprotocol."""
    return header_key(connection) or connection.query_params.get("api_key") or (_subprotocol(connection) or "").removeprefix(_PROTOCOL)


def _subprotocol(connection: HTTPConnection) -> str | None:
    offered: list[str] = connection.scope.get("subprotocols") or []
    return next((one for one in offered if one.startswith(_PROTOCOL)), None)


async def refuse(websocket: WebSocket, error: HoldfastError) -> None:
    """Accept, report the error and close with its code."""
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.accept(subprotocol=_subprotocol(websocket))
    await _end(websocket, {"type": "error", "message": str(error)}, error.kind.close_code or _BROKEN)


async def pty(websocket: WebSocket) -> None:
    """The handler."""
    gateway, principal = parts(websocket)
    await websocket.accept(subprotocol=_subprotocol(websocket))
    try:
        record = await describe.ready(gateway, principal, websocket.path_params["sandbox_id"])
        with in_use(gateway, record):
            async with gateway.agents.call(record, own=True) as call:
                await _serve(websocket, call)
    except HoldfastError as error:
        await refuse(websocket, error)
    except WebSocketDisconnect:
        pass


async def _serve(websocket: WebSocket, call: AgentCall) -> None:
    try:
        async with asyncio.timeout(_INIT_S):
            init = await _frame(websocket)
    except TimeoutError:
        init = {}
    if init.get("type") != "init":
        raise HoldfastError("invalid_argument", "the first frame must be init")
    call.open("terminal", _params(Fields(init)))
    output = asyncio.create_task(_send_output(websocket, call), name="terminal output")
    input_ = asyncio.create_task(_take_input(websocket, call), name="terminal input")
    try:
        await asyncio.wait((output, input_), return_when=asyncio.FIRST_COMPLETED)
        if not output.done():
            call.send(Close(call.number))  # the client has disconnected or sent close: the command is cancelled
            input_.result()
        await output
    finally:
        for task in (output, input_):
            task.cancel()
        await asyncio.gather(output, input_, return_exceptions=True)


async def _send_output(websocket: WebSocket, call: AgentCall) -> None:
    async for fact in call.facts():
        if isinstance(fact, Started):
            pid = fact.info.get("pid")
            await _send(websocket, {"type": "ready", "pid": pid if isinstance(pid, int) else None})
        elif isinstance(fact, Output):
            await _send(websocket, {"type": "stdout", "data": base64.b64encode(fact.data).decode()})
        elif isinstance(fact, Failed):
            raise fact_error(fact)
        elif isinstance(fact, Exited):
            call.acknowledge()
            await _end(websocket, {"type": "exit", "code": _exit_code(fact.result)}, _NORMAL)


async def _take_input(websocket: WebSocket, call: AgentCall) -> None:
    while True:
        frame = await _frame(websocket)
        fields = Fields(frame)
        match frame.get("type"):
            case "stdin":
                await call.write(fields.base64("data"))
            case "signal":
                name = fields.text("sig", "TERM", most=20) or "TERM"
                call.send(Signal(call.number, name.upper().removeprefix("SIG")))
            case "resize":
                rows = fields.integer("rows", 24, least=1, most=4096)
                call.send(Resize(call.number, rows, fields.integer("cols", 80, least=1, most=4096)))
            case "close":
                return
            case _:
                pass  # a frame of a newer client


def _params(fields: Fields) -> dict[str, Any]:
    command = fields.get("cmd") or ["bash"]
    if not isinstance(command, list) or not all(isinstance(part, str) and "\0" not in part for part in command):
        raise HoldfastError("invalid_argument", "cmd must be a list of strings: a program and its arguments")
    if len(command) > DECODE_ITEMS // 2:
        raise HoldfastError("invalid_argument", f"cmd must have at most {DECODE_ITEMS // 2} strings")
    if fields.boolean("login_shell", False):
        command = login_shell(command)
    params: dict[str, Any] = {
        "argv": command,
        "rows": fields.integer("rows", 24, least=1, most=4096),
        "cols": fields.integer("cols", 80, least=1, most=4096),
        "env": fields.environment(),
    }
    if fields.get("cwd") is not None:
        params["cwd"] = fields.path("cwd")
    return params


def _exit_code(result: dict[str, Any]) -> int:
    name = result.get("signal")
    number = getattr(signal, f"SIG{name}", None) if isinstance(name, str) else None
    if isinstance(number, signal.Signals):
        return -int(number)
    code = result.get("exit_code")
    return code if isinstance(code, int) else -1


async def _frame(websocket: WebSocket) -> dict[str, Any]:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    try:
        frame = orjson.loads(message.get("text") or message.get("bytes") or b"")
    except orjson.JSONDecodeError:
        frame = None
    if not isinstance(frame, dict):
        raise HoldfastError("invalid_json", "every frame is a JSON object in a text message")
    return frame


async def _send(websocket: WebSocket, frame: dict[str, Any]) -> None:
    await websocket.send_text(orjson.dumps(frame).decode())


async def _end(websocket: WebSocket, frame: dict[str, Any], code: int) -> None:
    try:
        await _send(websocket, frame)
        await websocket.close(code)
    except (WebSocketDisconnect, RuntimeError):
        pass  # it had disconnected
