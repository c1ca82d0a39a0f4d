"""One peer, run by the interpreter of the peers' own environment, in which Holdfast is not installed.

Owns how each peer runs a command. Started as `python peer_process.py PEER [PORT]`, prints `ready` once it has run one command, and
answers each line `N` with the seconds of N commands, as a JSON list.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

Command = Callable[[], Awaitable[None]]
_ONE_OFF = ["bash", "-c", "true"]


@contextlib.asynccontextmanager
async def _rex_runtime(*, remote: bool) -> AsyncIterator[object]:
    if not remote:
        from swerex.runtime.local import LocalRuntime

        runtime = LocalRuntime()
        yield runtime
        await runtime.close()
        return
    from swerex.runtime.remote import RemoteRuntime

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = [sys.executable, "-m", "swerex.server", "--host", "127.0.0.1", "--port", str(port), "--auth-token", "bench"]
    with subprocess.Popen(server, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            runtime = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token="bench")
            await runtime.wait_until_alive(timeout=60)
            yield runtime
            await runtime.close()
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def _rex_session(*, remote: bool) -> AsyncIterator[Command]:
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

    async with _rex_runtime(remote=remote) as runtime:
        await runtime.create_session(CreateBashSessionRequest())  # type: ignore[attr-defined]

        async def command() -> None:
            seen = await runtime.run_in_session(BashAction(command="true"))  # type: ignore[attr-defined]
            assert seen.exit_code == 0, seen

        yield command


@contextlib.asynccontextmanager
async def _rex_execute(*, remote: bool) -> AsyncIterator[Command]:
    from swerex.runtime.abstract import Command as Execute

    async with _rex_runtime(remote=remote) as runtime:

        async def command() -> None:
            seen = await runtime.execute(Execute(command=_ONE_OFF))  # type: ignore[attr-defined]
            assert seen.exit_code == 0, seen

        yield command


@contextlib.asynccontextmanager
async def _inspect() -> AsyncIterator[Command]:
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    sandbox = LocalSandboxEnvironment()

    async def command() -> None:
        seen = await sandbox.exec(_ONE_OFF)
        assert seen.success, seen

    yield command
    sandbox.directory.cleanup()


_PEERS = {
    "rex-session": lambda: _rex_session(remote=False),
    "rex-session-remote": lambda: _rex_session(remote=True),
    "rex-execute": lambda: _rex_execute(remote=False),
    "rex-execute-remote": lambda: _rex_execute(remote=True),
    "inspect": _inspect,
}


async def _main(peer: str) -> None:
    loop = asyncio.get_running_loop()
    async with _PEERS[peer]() as command:
        await command()
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            seconds = []
            for _ in range(int(line)):
                started = time.perf_counter()
                await command()
                seconds.append(time.perf_counter() - started)
            print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
