"""Sessions survive the death of processes: a gateway or a client is killed, and the work continues or is found again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient, AuthenticationError, ConflictError, HoldfastError, SandboxClient, SessionFencedError
from holdfast._transport.aio.driver import SessionDriver
from holdfast_wire.session.client_session import ClientSession

from tests.support.stack import Stack
from tests.support.until import until_async


async def test_a_gateway_killed_in_the_middle_of_an_episode_loses_nothing(stack: Stack, sandbox: AsyncSandbox) -> None:
    shell = await sandbox.shell()
    await shell.run("cd /tmp; word=kept; f() { echo $word-$1; }")
    running = asyncio.create_task(
        shell.run("while [ ! -e go ]; do read -t 0.05 <> <(:); done; f running; exit_code() { return 7; }; exit_code")
    )
    process = await sandbox.start("cat")
    await process.write(b"before ")
    old = await asyncio.to_thread(stack.kill_process, "gateway")
    await asyncio.to_thread(stack.wait_restarted, "gateway", old)
    await asyncio.to_thread(stack.wait_ready)
    assert (await sandbox.exec(": > /tmp/go")).exit_code == 0
    result = await running
    assert (result.stdout, result.exit_code) == ("kept-running\n", 7)
    assert (await shell.run("f after; pwd")).stdout == "kept-after\n/tmp\n"
    await process.write(b"after")
    await process.close_stdin()
    assert (await process.wait()).stdout == "before after"


def test_the_synchronous_client_survives_the_kill_of_a_gateway(stack: Stack) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("python:3.12") as sandbox:
        shell = sandbox.shell()
        assert shell.run("x=1").ok
        old = stack.kill_process("gateway")
        stack.wait_restarted("gateway", old)
        assert shell.run("echo $x").stdout == "1\n"


KILLED_CLIENT = """
    import sys
    from holdfast import SandboxClient

    sandbox = SandboxClient().get_sandbox(sys.argv[1])
    shell = sandbox.shell("survivor")
    shell.run("mark=from-the-dead")
    sandbox.start("echo early; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo late; exit 9", command_id="orphan")
    stream = shell.stream("echo in-shell; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo done; (exit 3)", command_id="in-shell")
    for chunk in stream:
        print("started", flush=True)
"""


async def test_another_client_continues_the_work_of_a_killed_one(stack: Stack, sandbox: AsyncSandbox) -> None:
    """kill -9 of the SDK's process: another one finds the command by its id and the shell by its name."""
    script = textwrap.dedent(KILLED_CLIENT)
    killed = subprocess.Popen([sys.executable, "-c", script, sandbox.id], env=stack.environment(), stdout=subprocess.PIPE)
    assert killed.stdout is not None
    assert (await asyncio.to_thread(killed.stdout.readline)) == b"started\n"
    killed.kill()
    killed.wait()
    killed.stdout.close()

    orphan = await sandbox.follow("orphan")
    in_shell = await sandbox.follow("in-shell")
    shell = await sandbox.shell("survivor")
    assert not shell.created
    await sandbox.exec(": > /tmp/go")
    result = await orphan.wait()
    assert (result.exit_code, result.stdout) == (9, "early\nlate\n")
    result = await in_shell.wait()
    assert (result.exit_code, result.stdout.endswith("done\n")) == (3, True)
    assert (await shell.run("echo $mark")).stdout == "from-the-dead\n"


async def test_one_command_id_from_many_clients_runs_once(stack: Stack, sandbox: AsyncSandbox) -> None:
    clients = [AsyncSandboxClient(stack.url, stack.key) for _ in range(8)]
    others = [client.get_sandbox(sandbox.id) for client in clients]
    for number in range(10):
        command = f"echo {number} >> /tmp/once; echo $$-{number}; exit {number}"
        results = await asyncio.gather(*[other.exec(command, command_id=f"once-{number}") for other in others])
        assert {result.exit_code for result in results} == {number}
        assert len({result.stdout for result in results}) == 1, "every caller sees the one outcome"
    assert (await sandbox.exec("cat /tmp/once")).stdout == "".join(f"{number}\n" for number in range(10))
    with pytest.raises(ConflictError):
        await others[0].exec("echo something else", command_id="once-1")
    for other, client in zip(others, clients, strict=True):
        await other.close()
        await client.close()


async def test_several_readers_follow_one_command(stack: Stack, sandbox: AsyncSandbox) -> None:
    process = await sandbox.start("for i in $(seq 20000); do echo $i; done; read line; echo $line", command_id="followed")
    others = [AsyncSandboxClient(stack.url, stack.key) for _ in range(4)]
    followers = [await other.get_sandbox(sandbox.id).follow("followed") for other in others]
    waiting = [asyncio.create_task(follower.wait()) for follower in followers]
    await process.write(b"the end\n")
    expected = "".join(f"{n}\n" for n in range(1, 20001)) + "the end\n"
    first = await process.wait()
    assert first.stdout == expected
    for result in await asyncio.gather(*waiting):
        gone = result.streams[1].dropped
        assert result.stdout_bytes == expected.encode()[gone:], "all of it, or a counted gap at the start"
        assert result.truncated == (gone > 0)
    for other in others:
        await other.close()


async def _attach(sandbox: AsyncSandbox, session: ClientSession) -> SessionDriver:
    """A driver of ``sandbox`` that carries ``session`` instead of one of its own."""
    driver = SessionDriver(sandbox._options, sandbox.id)
    driver.engine.session = session
    await driver.start()
    return driver


async def test_a_client_that_knows_the_secret_takes_a_session_over(client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    shell = await sandbox.shell("mine")
    await shell.run("mark=1")
    hanging = asyncio.create_task(sandbox.exec("while [ ! -e /tmp/go ]; do sleep 0.05; done; echo went on", command_id="taken"))
    assert sandbox._driver is not None
    old = sandbox._driver.engine.session
    await until_async(lambda: not old.outgoing(), deadline_s=60, what="the command to be sent")
    other = client.get_sandbox(sandbox.id)
    with pytest.raises(AuthenticationError):
        await _attach(other, ClientSession(old.session_id, bytes(32), take_over=True))
    other._driver = await _attach(other, ClientSession(old.session_id, old.secret, take_over=True))
    with pytest.raises(HoldfastError) as fenced:
        await hanging
    assert isinstance(fenced.value, SessionFencedError)
    follower = await other.follow("taken")
    assert (await (await other.shell("mine")).run("echo $mark")).stdout == "1\n"
    await other.exec(": > /tmp/go")
    assert (await follower.wait()).stdout == "went on\n", "running commands continue"
    await other.close()


def test_the_history_file_read_from_outside_is_that_of_the_sandbox() -> None:
    """The checker reads the file from the machine; with a wrong path it could never fail."""
    from .context import replicated_stack
    from .load import HISTORY, history_path

    with (
        replicated_stack(1) as replicas,
        SandboxClient(replicas.stack.url, replicas.stack.key) as client,
        client.create_sandbox("python:3.12") as sandbox,
    ):
        sandbox.exec(f"echo one >> {HISTORY}").check()
        assert history_path(Path(replicas.stack.data), sandbox.id).read_text() == "one\n"
