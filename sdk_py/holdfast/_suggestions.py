"""Names of arguments in docker, subprocess, Modal and E2B, and what to use here instead of each.

Owns the text of the error for an unknown argument. Loaded only for that error, by ``_public`` and ``_requests``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from holdfast._arguments import bad
from holdfast._errors import InvalidArgumentError


def no_argument(cls: str, method: str, name: str, names: Sequence[str]) -> InvalidArgumentError:
    """The error for an argument ``name`` that ``method`` does not have, with a suggestion and the list of its arguments."""
    tables = _SUGGESTIONS.get(f"{cls}.{method}", _SUGGESTIONS.get(cls, ()))
    near = _answer(tables, name.lower())
    if near.isidentifier() and near not in names:
        near = _answer(tables, near)
    near = near or next(iter(difflib.get_close_matches(name, names, 1)), "")
    instead = f": use {near}" if near.isidentifier() else f": {near}" if near else ""
    return bad(f"{method} has no argument {name!r}{instead}", hint=f"one of {', '.join(names)}" if names else "it takes none")


def _answer(tables: Sequence[Mapping[str, str]], name: str) -> str:
    return next((answer for table in tables for answer, names in table.items() if name in names.split()), "")


_COMMAND = {
    "cwd": "workdir working_dir working_directory dir",
    "command": "cmd args code",
    "env": "envs environment env_vars",
    "timeout, in seconds": "timeout_s timeout_ms",
    "timeout": "timeout_seconds",
    "input is all of its standard input; start() writes to it while it runs": "stdin",
    "input": "data",
    "result.check() raises where the exit code is not 0": "check",
    "a string is run by the shell, a list as it is": "shell",
    "output is always in the result": "capture_output",
    "result.stdout is text, result.stdout_bytes bytes": "text",
    "stderr='stdout' makes them one stream": "stdout",
    "start() returns while it runs": "background",
    "start(detached=True) returns and leaves it running": "detach",
    "iterate start() for live output": "on_stdout on_stderr",
    "terminal() gives it a terminal, and shell(tty=True) to a living shell": "tty pty",
    "user": "uid",
}
_RUN = {
    "a shell stays where it is: run('cd DIR') first, or sandbox.shell(cwd=…)": "cwd",
    "a shell keeps its variables: run('export NAME=VALUE') first, or sandbox.shell(env=…)": "env",
    "the shell's user runs it: sandbox.shell(user=…)": "user",
    "input is all of its standard input": "stdin",
    "end the command with '&', or use sandbox.start()": "background",
    "end the command with '&', or use sandbox.start(detached=True)": "detach",
    "iterate stream() for live output": "on_stdout on_stderr",
}
_START = {
    "stdin": "stdin",
    "write() and close_stdin() are its input while it runs; exec(input=…) gives it at once": "input",
    "iterate it for live output": "on_stdout on_stderr",
}
_SHELL = {
    "each command names its own; command_timeout_s of the client is for all": "timeout",
    "it is opened empty: shell.run(command)": "command cmd",
    "shell.run('. /etc/profile') reads the profile; exec(login=True) for one command": "login",
    "tty": "pty",
    "name": "session_id id",
}
_TERMINAL = {
    "wait(timeout=…) waits so long, and kill() ends it": "timeout",
    "rows": "height",
    "cols": "width columns",
    "rows and cols are its size": "size",
    "it always is one": "tty pty",
    "name": "session_id id",
}
_FILES = {
    "path": "file_path filename file remote_path sandbox_path old_path",
    "data": "content contents text body",
    "user": "username uid owner",
    "mode": "permissions",
    "read() gives bytes, read_text() text, stream() pieces": "format",
    "read() gives bytes, read_text() text": "binary",
    "recursive": "depth",
    "src": "source",
    "dst": "destination dest target to",
    "to": "new_path",
    "parents": "make_parents create_parents",
    "exclude": "exclude_dirs",
    "ignore_case": "case_sensitive",
    "missing_ok": "force",
    "iterate it for events": "on_event",
    "watch() lasts until its block ends, and read(timeout=…) waits so long; other calls take as long as they need": "timeout",
}
_MOVE = {"to": "dst dest destination target", "path": "src source", "overwrite": "force"}
_REMOTE = {"local": "src source local_path", "remote": "dst dest destination target remote_path path"}
_CREATE = {
    "ready_timeout_s is how long it may take to become ready, lifetime_s how long it may live": "timeout",
    "sandbox_id is its name": "name id",
    "the image comes first, as in create_sandbox('python:3.12')": "template app",
    "env": "envs environment env_vars envvars secrets",
    "labels": "metadata tags",
    "cpu": "cpus nano_cpus",
    "memory": "mem mem_limit",
    "disk": "storage storage_opt",
    "idle_timeout_s": "idle_timeout",
    "lifetime_s": "ttl lifetime max_lifetime",
    "block_network=False opens the network": "allow_internet_access network_mode",
    "block_network": "network_disabled",
    "sandbox.tunnel(port) reaches a port once it runs": "ports encrypted_ports unencrypted_ports",
    "cwd of exec, start and shell sets where a command runs": "workdir working_dir cwd",
    "create it, then sandbox.exec(command) or sandbox.start(command)": "command",
    "gpu": "gpus",
    "node_selector": "node_selectors",
    "architecture": "platform",
}
_CLIENT = {
    "url": "base_url host domain endpoint server",
    "api_key": "token key apikey",
    "command_timeout_s is for commands, request_timeout_s for one answer of the service": "timeout",
    "request_timeout_s": "request_timeout",
    "resume_timeout_s": "retries",
}
_TUNNEL = {"wait_s": "timeout", "port": "remote_port container_port", "local_port": "host_port", "local_host": "bind"}
_WAIT = {"timeout, in seconds": "timeout_s timeout_ms", "timeout": "timeout_seconds"}
_SUGGESTIONS: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "Sandbox.exec": (_COMMAND,),
    "Sandbox.start": (_START, _COMMAND),
    "Sandbox.shell": (_SHELL, _COMMAND),
    "Sandbox.terminal": (_TERMINAL, _COMMAND),
    "Sandbox.tunnel": (_TUNNEL,),
    "Sandbox.apply_patch": ({"diff": "patch", "cwd": "path workdir", "check": "dry_run", "strip": "p"},),
    "Lifecycle.set_lifetime": ({"lifetime_s": "timeout seconds ttl"},),
    "Lifecycle.extend": ({"seconds": "timeout lifetime_s"},),
    "SandboxClient.create_sandbox": (_CREATE,),
    "SandboxClient.SandboxClient": (_CLIENT,),
    "SandboxClient.map": ({"concurrency": "max_workers workers max_concurrency", "function": "func", "items": "iterable"},),
    "SandboxClient.list_sandboxes": ({"labels": "metadata tags filters query"},),
    "SandboxClient.get_sandbox": ({"sandbox_id": "id name"},),
    "SandboxClient.group": ({"ttl_s": "ttl timeout", "name": "id"},),
    "Shell.run": (_RUN, _COMMAND),
    "Shell.stream": (_RUN, _COMMAND),
    "Shell.resize": ({"cols": "columns width", "rows": "height lines"},),
    "Terminal.resize": ({"cols": "columns width", "rows": "height lines"},),
    "Files": (_FILES,),
    "Files.move": (_MOVE, _FILES),
    "Files.upload": (_REMOTE, _FILES),
    "Files.download": (_REMOTE, _FILES),
    "Running": (_WAIT,),
    "Watch": (_WAIT,),
    "Input": ({"data": "text input keys"},),
    "CommandStream": (_WAIT,),
}
"""By class and method, or by class: tables from a suggestion to the names that it is for. The first table with the name is used."""
