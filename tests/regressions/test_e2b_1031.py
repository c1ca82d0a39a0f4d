"""E2B #1031: a time-out killed only the leader of a command; its children stayed alive and kept the port.

Reported as "process was not killed when auto paused"; isolated in the thread to the command's own (default, 60 s) time-out: the managed
leader is gone and no longer listed, `next-server` still answers on port 3000. Here: the same shape, a server started by a shell that
waits.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

from holdfast import CommandResult, Sandbox

from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash")]

TIME_OUT_S = 10.0
"""Time enough for four servers to begin to listen on a busy machine."""
SERVER = "python3 -m http.server {port} --bind 127.0.0.1"
CONNECT = "import socket,sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2)"


def answers(sandbox: Sandbox, port: int) -> bool:
    return sandbox.exec(["python3", "-c", CONNECT, str(port)]).exit_code == 0


def server_script(port: int) -> str:
    """Start the server, wait until it listens, then wait for it as `npm run dev` does."""
    server = SERVER.format(port=port)
    connect = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null"
    return f"sh -c '{server}' >/dev/null 2>&1 & until {connect}; do sleep 0.1; done; echo listening; wait"


def test_the_server_dies_with_the_command_that_timed_out(sandbox: Sandbox) -> None:
    """Four variants at once, because each has to wait for its own time-out."""
    first = 20000 + 10 * secrets.randbelow(1000)

    def by_exec(port: int, prefix: str) -> None:
        result = sandbox.exec(prefix + "bash -c " + quoted(server_script(port)), timeout=TIME_OUT_S)
        check_stopped(sandbox, result, port)

    def in_shell(port: int) -> None:
        with sandbox.shell() as shell:
            check_stopped(sandbox, shell.run(server_script(port), timeout=TIME_OUT_S), port)

    with ThreadPoolExecutor(4) as pool:
        variants = [pool.submit(by_exec, first + number, prefix) for number, prefix in enumerate(("", "setsid --wait "))]
        variants += [pool.submit(in_shell, first + number) for number in (2, 3)]
        for variant in variants:
            variant.result()


def check_stopped(sandbox: Sandbox, result: CommandResult, port: int) -> None:
    assert result.timed_out
    assert result.stdout == "listening\n", "the server listened"
    assert not answers(sandbox, port), "the server has stopped"


def test_without_a_time_out_the_server_lives_on(sandbox: Sandbox) -> None:
    """No default time-out ends a server that is meant to stay: it lives as a job of its shell, or adopted."""
    port = 31000 + secrets.randbelow(1000)
    with sandbox.shell() as shell:
        shell.run(server_script(port).removesuffix("wait"))
        shell.run("sleep 10", timeout=0.1)
        assert answers(sandbox, port), "the time-out of another command does not affect it"
    assert not answers(sandbox, port), "it ends with its shell"
    assert sandbox.exec(server_script(port).removesuffix("wait"), outlive="adopt").ok
    assert answers(sandbox, port)
    sandbox.exec(f"pkill -f 'http.server {port}'")


def quoted(script: str) -> str:
    return "'" + script.replace("'", "'\\''") + "'"
