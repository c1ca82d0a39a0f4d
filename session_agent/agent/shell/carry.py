"""Living shells as bytes: the state of all shells of a sandbox, and starting shells from such bytes in a copy of it.

Owns the format of the bytes. The state is the one that is written after each command and from which a lost shell is rebuilt, so a copy
keeps and loses what a rebuilt shell does. What runs in a shell is not copied; it is named. The bytes come from an agent, which code in the
sandbox may own: they are as trustworthy as that sandbox. Called for branches of a sandbox.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgpack
from holdfast_wire.errors import HoldfastError
from holdfast_wire.fast_dataclass import dataclass
from holdfast_wire.paths import shown

from session_agent.agent.commands.launch import find_shell
from session_agent.agent.context import AgentContext
from session_agent.agent.process.fork import Launch

from .shell import Shell
from .state.saved import SavedState

VERSION = 1
_HOST_NAME = "HOSTNAME"
"""A variable that each sandbox has with its own name; a copy of a shell gets that of the new sandbox, unless its value was changed."""
_WRITTEN_CHECK_S = 0.002
_WRITTEN_CHECKS = 500
"""How often it is checked whether an idle shell has written its state: for about a second."""


@dataclass(frozen=True, slots=True)
class StartedShell:
    """One shell that ``start_shells`` has started, or could not."""

    name: str
    lost: tuple[str, ...] = ()
    """What of its state it does not have, as in the result of a command whose shell was rebuilt, and ``command NAME`` for each process."""
    error: HoldfastError | None = None
    """Why it was not started."""


async def save_shells(context: AgentContext) -> bytes:
    """The state of every living shell that has a name, as its last completed command left it."""
    shells = [shell for shell in context.shells.values() if isinstance(shell, Shell)]
    for _ in range(_WRITTEN_CHECKS):
        if all(shell.busy or shell.is_saved for shell in shells):
            break
        await asyncio.sleep(_WRITTEN_CHECK_S)
    body = {"version": VERSION, "host_name": _host_name(context), "shells": [_save(shell) for shell in shells]}
    saved: bytes = msgpack.packb(body, unicode_errors="surrogateescape")
    return saved


def _host_name(context: AgentContext) -> str:
    return context.settings.env.get(_HOST_NAME, "")


def _save(shell: Shell) -> dict[str, Any]:
    state, launch = shell.saved_state(), shell.launch
    return {
        "name": shell.name,
        "kind": shell.kind,
        "size": shell.size,
        "cwd": launch.cwd,
        "env": launch.env,
        "uid": launch.uid,
        "gid": launch.gid,
        "groups": launch.groups,
        "status": shell.last_status,
        "state": None if state is None else state.to_map(),
        "processes": [_command_name(pid) for pid in shell.processes()],
    }


def _command_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return "command " + shown(os.fsdecode(file.read(64).rstrip(b"\n")))
    except OSError:
        return "command that has ended since"


async def start_shells(context: AgentContext, saved: bytes) -> list[StartedShell]:
    """Start the shells of ``saved``, all at once, and wait until each has loaded its state. Raises ``invalid_argument``."""
    try:
        body = msgpack.unpackb(saved, unicode_errors="surrogateescape")
        if body["version"] != VERSION:
            raise ValueError(f"version {body['version']!r:.20}")
        names = str(body.get("host_name") or ""), _host_name(context)
        shells = [(_launch(shell, *names), shell, _state(shell["state"], *names)) for shell in body["shells"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HoldfastError("invalid_argument", f"this is not the saved state of shells: {error!r:.200}") from None
    return await asyncio.gather(*(_start(context, *shell) for shell in shells))


def _launch(shell: dict[str, Any], old_host: str, new_host: str) -> Launch:
    cwd = str(shell["cwd"])
    env = {str(name): str(value) for name, value in shell["env"].items()}
    if old_host and new_host and env.get(_HOST_NAME) == old_host:
        env[_HOST_NAME] = new_host
    if not os.path.isdir(cwd):
        cwd, env["PWD"] = "/", "/"
    uid, gid = shell["uid"], shell["gid"]
    return Launch(cwd, env, None if uid is None else int(uid), None if gid is None else int(gid), tuple(map(int, shell["groups"])))


def _state(saved: dict[str, Any] | None, old_host: str, new_host: str) -> SavedState | None:
    if not saved:
        return None
    state = SavedState.from_map(saved)
    key = "variable", _HOST_NAME.encode()
    declaration, _, value = state.entries.get(key, b"").rpartition(b"=")
    if old_host and new_host and value[1:-1] == os.fsencode(old_host):  # bash and sh print it in quotes
        state.entries[key] = b"%s=%s%s%s" % (declaration, value[:1], os.fsencode(new_host), value[-1:])
    return state


async def _start(context: AgentContext, launch: Launch, saved: dict[str, Any], state: SavedState | None) -> StartedShell:
    name, size = str(saved["name"]), saved["size"]
    try:
        if name in context.shells or len(context.shells) >= context.limits.shells:
            raise HoldfastError("session_limit", f"the shell {name!r:.140} exists already, or too many shells are open")
        kind, path = find_shell(context, str(saved["kind"]))
        terminal = size and (int(size[0]), int(size[1]))
        shell = context.shells[name] = Shell(context, name, kind, path, launch, terminal, loads=state is not None)
        lost = await shell.load(state, int(saved["status"]))
    except HoldfastError as error:
        return StartedShell(name, error=error)
    return StartedShell(name, (*lost, *map(str, saved["processes"])))
