"""Turning the untrusted parameters of a request into a ``Launch``: working directory, environment and user.

Owns their defaults, which are the same for commands, shells and terminals, and finding a shell in the image.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import DEFAULT_PATH, AgentContext
from session_agent.agent.process.fork import Launch
from session_agent.agent.process.users import User, check_ids_exist, find_user
from session_agent.agent.request import params as read
from session_agent.agent.request.paths import path_param

_BUSYBOX_BYTES = 4 * 1024 * 1024


def launch_from(context: AgentContext, params: dict[str, Any], *, term: str | None = None) -> Launch:
    """The ``Launch`` that cwd, env and user of ``params`` ask for. Raises ``HoldfastError``."""
    wanted = params.get("user")
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, str | int)):
        raise HoldfastError("invalid_argument", "user must be a name or a number")
    user = find_user(context.settings.default_user if wanted is None else wanted)
    cwd = context.workdir
    if params.get("cwd") is not None:
        cwd = os.path.join(cwd, path_param(params, "cwd"))
    elif not os.path.isdir(cwd):
        cwd = "/"
    env = _environment(user, term)
    env.update(context.settings.env)
    if wanted is not None and context.settings.env.get("HOME") == context.settings.given_home:
        env["HOME"] = user.home
    given = read.mapping(params, "env")
    for name in given:
        if not name or "=" in name:
            raise HoldfastError("invalid_argument", f"{name!r:.80} cannot name an environment variable")
    env.update(given)
    if not env["HOME"]:
        env["HOME"] = user.home  # as container runtimes set it in the place of an empty one
    env["PWD"] = cwd
    namespaced = context.settings.command_namespace_fd >= 0
    own = user.uid == os.geteuid() and user.gid == os.getegid()
    if own and not namespaced and (wanted is None or user.uid != 0 or _in_groups(user)):
        return Launch(cwd, env)
    check_ids_exist(user, ids=context.settings.command_ids)
    if namespaced:
        return Launch(cwd, env, user.uid, user.gid, user.groups)
    if os.geteuid() != 0:
        raise HoldfastError(
            "permission_denied",
            f"commands in this sandbox run as uid {os.geteuid()} and cannot run as {user.name!r:.80}",
            hint="leave user out, or create the sandbox so that its agent is root",
        )
    return Launch(cwd, env, user.uid, user.gid, user.groups)


def _in_groups(user: User) -> bool:
    """Whether the agent itself is in all groups of the user."""
    return {*user.groups} <= {user.gid, *os.getgroups()}


def find_program(names: tuple[str, ...], path: str = DEFAULT_PATH) -> str | None:
    """The first of ``names`` that is an executable file on ``path``."""
    for name in names:
        for directory in path.split(":"):
            candidate = os.path.join(directory, name)
            if os.access(candidate, os.X_OK, effective_ids=True) and os.path.isfile(candidate):
                return candidate
    return None


def find_shell(context: AgentContext, wanted: str) -> tuple[str, str]:
    """``(kind, path)`` of ``auto``, ``bash`` or ``sh``, on the image's own PATH first. Raises ``shell_unavailable``."""
    named = [folder for folder in context.settings.env.get("PATH", "").split(":") if folder.startswith("/")]
    search = ":".join([*named, DEFAULT_PATH])
    if wanted in {"auto", "bash"}:
        path = find_program(("bash",), search)
        if path is not None:
            return "bash", path
    if wanted in {"auto", "sh"}:
        path = find_program(("sh", "dash", "ash", "busybox"), search)
        if path is not None:
            return "sh", path
    raise HoldfastError("shell_unavailable", f"the image has no {'bash or sh' if wanted == 'auto' else wanted}")


def shell_words(path: str) -> list[str]:
    """The words that start a shell: a bare busybox needs the name of its program."""
    return [path, "sh"] if path.endswith("/busybox") else [path]


def is_busybox(path: str) -> bool:
    """Whether the program at ``path`` is busybox, whatever its name."""
    try:
        found = os.stat(path)
        return _contains_busybox(path, found.st_dev, found.st_ino, found.st_mtime_ns)
    except OSError:
        return False


@functools.lru_cache(maxsize=16)
def _contains_busybox(path: str, device: int, inode: int, changed: int) -> bool:
    # A command may replace the program by a named pipe, on which a blocking open would never return.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return b"BusyBox v" in (file.read(_BUSYBOX_BYTES) or b"")  # None: a named pipe that is empty


def _environment(user: User, term: str | None) -> dict[str, str]:
    """The variables that docker adds to those of the image; TERM only with a terminal."""
    env = {"PATH": DEFAULT_PATH, "HOME": user.home}
    if term is not None:
        env["TERM"] = term
    return env
