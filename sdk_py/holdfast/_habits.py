"""What others call an argument, and what it is here: habits of docker, subprocess, Modal and E2B, answered with our names.

Owns the words of the error that an unknown argument raises. Loaded only then, by ``_public`` and ``_requests``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from holdfast._arguments import bad
from holdfast._errors import InvalidArgumentError


def no_argument(cls: str, method: str, name: str, names: Sequence[str]) -> InvalidArgumentError:
    """That ``method`` has no argument ``name``: which one was meant, and which ones there are."""
    habits: Mapping[str, str] = _HABITS.get(f"{cls}.{method}", _HABITS.get(cls, {}))
    near = habits.get(name.lower(), "")
    if near.isidentifier() and near not in names:
        near = habits.get(near, "")
    near = near or next(iter(difflib.get_close_matches(name, names, 1)), "")
    instead = f": use {near}" if near.isidentifier() else f": {near}" if near else ""
    return bad(f"{method} has no argument {name!r}{instead}", hint=f"one of {', '.join(names)}" if names else "it takes none")


_COMMAND = {
    "workdir": "cwd",
    "working_dir": "cwd",
    "working_directory": "cwd",
    "dir": "cwd",
    "cmd": "command",
    "args": "command",
    "code": "command",
    "envs": "env",
    "environment": "env",
    "env_vars": "env",
    "timeout_s": "timeout, in seconds",
    "timeout_ms": "timeout, in seconds",
    "timeout_seconds": "timeout",
    "stdin": "input is all of its standard input; start() writes to it while it runs",
    "data": "input",
    "check": "result.check() raises where the exit code is not 0",
    "shell": "a string is run by the shell, a list as it is",
    "capture_output": "output is always in the result",
    "text": "result.stdout is text, result.stdout_bytes bytes",
    "stdout": "stderr='stdout' makes them one stream",
    "background": "start() returns while it runs",
    "detach": "start(detached=True) returns and leaves it running",
    "on_stdout": "iterate start() for live output",
    "on_stderr": "iterate start() for live output",
    "tty": "terminal() gives it a terminal, and shell(tty=True) to a living shell",
    "pty": "terminal() gives it a terminal, and shell(tty=True) to a living shell",
    "uid": "user",
}
_RUN = _COMMAND | {
    "cwd": "a shell stays where it is: run('cd DIR') first, or sandbox.shell(cwd=…)",
    "env": "a shell keeps its variables: run('export NAME=VALUE') first, or sandbox.shell(env=…)",
    "user": "the shell's user runs it: sandbox.shell(user=…)",
    "stdin": "input is all of its standard input",
    "background": "end the command with '&', or use sandbox.start()",
    "detach": "end the command with '&', or use sandbox.start(detached=True)",
    "on_stdout": "iterate stream() for live output",
    "on_stderr": "iterate stream() for live output",
    "stderr": "sandbox.exec(stderr='stdout') makes them one stream, and so does sandbox.shell(tty=True)",
}
_START = _COMMAND | {
    "stdin": "stdin",
    "input": "write() and close_stdin() are its input while it runs; exec(input=…) gives it at once",
    "on_stdout": "iterate it for live output",
    "on_stderr": "iterate it for live output",
}
_SHELL = {
    **_COMMAND,
    "timeout": "each command names its own; command_timeout_s of the client is for all",
    "command": "it is opened empty: shell.run(command)",
    "cmd": "it is opened empty: shell.run(command)",
    "login": "shell.run('. /etc/profile') reads the profile; exec(login=True) for one command",
    "pty": "tty",
    "session_id": "name",
    "id": "name",
}
_TERMINAL = {
    **_COMMAND,
    "timeout": "wait(timeout=…) waits so long, and kill() ends it",
    "height": "rows",
    "width": "cols",
    "columns": "cols",
    "size": "rows and cols are its size",
    "tty": "it always is one",
    "pty": "it always is one",
    "session_id": "name",
    "id": "name",
}
_FILES = {
    "file_path": "path",
    "filename": "path",
    "file": "path",
    "remote_path": "path",
    "sandbox_path": "path",
    "content": "data",
    "contents": "data",
    "text": "data",
    "body": "data",
    "username": "user",
    "uid": "user",
    "owner": "user",
    "permissions": "mode",
    "format": "read() gives bytes, read_text() text, stream() pieces",
    "binary": "read() gives bytes, read_text() text",
    "depth": "recursive",
    "source": "src",
    "destination": "dst",
    "dest": "dst",
    "target": "dst",
    "to": "dst",
    "new_path": "to",
    "old_path": "path",
    "make_parents": "parents",
    "create_parents": "parents",
    "exclude_dirs": "exclude",
    "case_sensitive": "ignore_case",
    "force": "missing_ok",
    "on_event": "iterate it for events",
    "timeout": "watch() lasts until its block ends, and read(timeout=…) waits so long; other calls take as long as they need",
}
_MOVE = _FILES | {"dst": "to", "dest": "to", "destination": "to", "target": "to", "src": "path", "source": "path", "force": "overwrite"}
_REMOTE = _FILES | {
    "src": "local", "source": "local", "dst": "remote", "dest": "remote", "destination": "remote", "target": "remote",
    "local_path": "local", "remote_path": "remote", "path": "remote",
}  # fmt: skip
_CREATE = {
    "timeout": "ready_timeout_s is how long it may take to become ready, lifetime_s how long it may live",
    "name": "sandbox_id is its name",
    "id": "sandbox_id is its name",
    "template": "the image comes first, as in create_sandbox('python:3.12')",
    "app": "the image comes first, as in create_sandbox('python:3.12')",
    "envs": "env",
    "environment": "env",
    "env_vars": "env",
    "envvars": "env",
    "secrets": "env",
    "metadata": "labels",
    "tags": "labels",
    "cpus": "cpu",
    "nano_cpus": "cpu",
    "mem": "memory",
    "mem_limit": "memory",
    "storage": "disk",
    "storage_opt": "disk",
    "idle_timeout": "idle_timeout_s",
    "ttl": "lifetime_s",
    "lifetime": "lifetime_s",
    "max_lifetime": "lifetime_s",
    "allow_internet_access": "block_network=False opens the network",
    "network_mode": "block_network=False opens the network",
    "network_disabled": "block_network",
    "ports": "sandbox.tunnel(port) reaches a port once it runs",
    "encrypted_ports": "sandbox.tunnel(port) reaches a port once it runs",
    "unencrypted_ports": "sandbox.tunnel(port) reaches a port once it runs",
    "workdir": "cwd of exec, start and shell sets where a command runs",
    "working_dir": "cwd of exec, start and shell sets where a command runs",
    "cwd": "cwd of exec, start and shell sets where a command runs",
    "command": "create it, then sandbox.exec(command) or sandbox.start(command)",
    "gpus": "gpu",
    "node_selectors": "node_selector",
    "platform": "architecture",
}
_CLIENT = {
    "base_url": "url",
    "host": "url",
    "domain": "url",
    "endpoint": "url",
    "server": "url",
    "token": "api_key",
    "key": "api_key",
    "apikey": "api_key",
    "timeout": "command_timeout_s is for commands, request_timeout_s for one answer of the service",
    "request_timeout": "request_timeout_s",
    "retries": "resume_timeout_s",
}
_TUNNEL = {"timeout": "wait_s", "remote_port": "port", "container_port": "port", "host_port": "local_port", "bind": "local_host"}
_WAIT = {"timeout_s": "timeout, in seconds", "timeout_ms": "timeout, in seconds", "timeout_seconds": "timeout"}
_HABITS: Mapping[str, Mapping[str, str]] = {
    "Sandbox.exec": _COMMAND,
    "Sandbox.start": _START,
    "Sandbox.shell": _SHELL,
    "Sandbox.terminal": _TERMINAL,
    "Sandbox.tunnel": _TUNNEL,
    "Sandbox.apply_patch": {"patch": "diff", "path": "cwd", "workdir": "cwd", "dry_run": "check", "p": "strip"},
    "Sandbox.set_lifetime": {"timeout": "lifetime_s", "seconds": "lifetime_s", "ttl": "lifetime_s"},
    "Sandbox.extend": {"timeout": "seconds", "lifetime_s": "seconds"},
    "SandboxClient.create_sandbox": _CREATE,
    "SandboxClient.SandboxClient": _CLIENT,
    "SandboxClient.map": {
        "max_workers": "concurrency",
        "workers": "concurrency",
        "max_concurrency": "concurrency",
        "func": "function",
        "iterable": "items",
    },
    "SandboxClient.list_sandboxes": {"metadata": "labels", "tags": "labels", "filters": "labels", "query": "labels"},
    "SandboxClient.get_sandbox": {"id": "sandbox_id", "name": "sandbox_id"},
    "SandboxClient.group": {"ttl": "ttl_s", "timeout": "ttl_s", "id": "name"},
    "Shell.run": _RUN,
    "Shell.stream": _RUN,
    "Shell.resize": {"columns": "cols", "width": "cols", "height": "rows", "lines": "rows"},
    "Terminal.resize": {"columns": "cols", "width": "cols", "height": "rows", "lines": "rows"},
    "Files": _FILES,
    "Files.move": _MOVE,
    "Files.upload": _REMOTE,
    "Files.download": _REMOTE,
    "Running": _WAIT,
    "Watch": _WAIT,
    "Input": {"text": "data", "input": "data", "keys": "data"},
    "CommandStream": _WAIT,
}
"""By class and method, or by class alone."""
