"""Connections from a sandbox without a network to the client, through the whole service, in both APIs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from holdfast import (
    AsyncConnection,
    AsyncSandboxClient,
    HoldfastError,
    InputClosedError,
    InvalidArgumentError,
    PortUnreachableError,
    RemoteFileExistsError,
    SandboxLostError,
    SessionLostError,
    WaitTimeoutError,
)

from tests.sdk.support.faces import AsyncFace, SyncFace, cut_connection, inner
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "bash")

ASK = """
import socket, sys
family, place = (socket.AF_UNIX, sys.argv[1]) if "/" in sys.argv[1] else (socket.AF_INET, ("127.0.0.1", int(sys.argv[1])))
with socket.socket(family) as sock:
    sock.connect(place)
    sock.sendall(sys.argv[2].encode())
    sock.shutdown(socket.SHUT_WR)
    got = b""
    while piece := sock.recv(65536):
        got += piece
print(got.decode())
"""


def ask(place: object, text: str) -> list[str]:
    return ["python3", "-c", ASK, str(place), text]


def was_reset(result: Any) -> bool:
    """Whether the program ended because of a reset, which it may notice in any of its calls."""
    return any(name in result.stderr for name in ("ConnectionResetError", "BrokenPipeError", "Transport endpoint is not connected"))


async def read_all(connection: Any) -> bytes:
    data = b""
    while piece := await connection.read():
        data += piece
    return data


async def answer(connection: Any) -> None:
    await connection.write(b"you said " + await read_all(connection))


@contextlib.asynccontextmanager
async def serving(handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[tuple[str, int]]:
    """A server of this machine."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[:2]


async def test_connections_are_taken_one_after_the_other(live: Any) -> None:
    async with await live.listen() as listener:
        assert listener.address.host == "127.0.0.1"
        assert listener.address.port > 0
        for word in ("one", "two"):
            process = await live.start(ask(listener.address.port, word))
            connection = await listener.accept(60)
            assert connection.peer.host == "127.0.0.1"
            async with connection:
                await answer(connection)
            assert (await process.wait(60)).stdout == f"you said {word}\n"
        with pytest.raises(WaitTimeoutError):
            await listener.accept(0)
    assert await listener.accept() is None
    refused = await live.exec(ask(listener.address.port, "late"), timeout=60)
    assert "ConnectionRefusedError" in refused.stderr


async def test_iterating_a_listener(stack: Stack) -> None:
    async with (
        AsyncSandboxClient(stack.url, stack.key) as client,
        client.create_sandbox("host") as sandbox,
        sandbox.listen(8123) as listener,
    ):
        await sandbox.start(["bash", "-c", "for n in 1 2 3; do exec 3<>/dev/tcp/127.0.0.1/8123; echo $n >&3; exec 3>&-; done"], stdin=False)
        seen = []
        async for connection in listener:
            async with connection:
                seen.append(await connection.read())
            if len(seen) == 3:
                break
        assert seen == [b"1\n", b"2\n", b"3\n"]


async def test_a_handler_serves_each_connection(live: Any) -> None:
    async def handled(connection: Any) -> None:
        await answer(connection)

    def blocking(connection: Any) -> None:
        data = b""
        while piece := connection.read():
            data += piece
        connection.write(b"you said " + data)

    async with await live.listen(0, handled if inner(live) is live else blocking) as listener:
        results = await asyncio.gather(*(live.exec(ask(listener.address.port, f"word {n}"), timeout=100) for n in range(20)))
        assert [result.stdout for result in results] == [f"you said word {n}\n" for n in range(20)]


async def test_a_unix_socket(live: Any) -> None:
    async with await live.listen(path="/tmp/listen.sock") as listener:
        assert listener.path == "/tmp/listen.sock"
        process = await live.start(ask("/tmp/listen.sock", "hello"))
        connection = await listener.accept(60)
        assert connection.peer is None
        async with connection:
            await answer(connection)
        assert (await process.wait(60)).stdout == "you said hello\n"
        mode = (await live.exec(["stat", "-c", "%F %a", "/tmp/listen.sock"])).stdout
        assert mode == "socket 666\n"
        with pytest.raises(RemoteFileExistsError):
            await live.listen(path="/tmp/listen.sock")
    assert not await live.files.exists("/tmp/listen.sock")


async def test_every_byte_arrives_both_ways_while_connections_are_cut(live: Any) -> None:
    """The session resumes at every cut: nothing is lost or doubled."""
    script = """
import hashlib, socket, sys, threading
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
data = bytes(range(256)) * 30000
def send():
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
total, seen = 0, hashlib.sha256()
while piece := sock.recv(65536):
    total += len(piece); seen.update(piece)
print(total, seen.hexdigest())
"""
    async with await live.listen() as listener:
        process = await live.start(["python3", "-c", script, str(listener.address.port)])
        connection = await listener.accept(60)
        size, seen, cuts = 0, hashlib.sha256(), 0

        async def send() -> None:
            for _ in range(30):
                await connection.write(bytes(range(256)) * 1000)
            await connection.write_eof()

        sending = asyncio.ensure_future(send())
        while piece := await connection.read():
            size += len(piece)
            seen.update(piece)
            if size > (cuts + 1) * 2_000_000:
                cuts += 1
                cut_connection(live)
        await sending
        assert cuts == 3
        whole = bytes(range(256)) * 30000
        assert (size, seen.digest()) == (len(whole), hashlib.sha256(whole).digest())
        assert (await process.wait(100)).stdout == f"{len(whole)} {hashlib.sha256(whole).hexdigest()}\n"
        await connection.close()


async def test_resets_arrive_on_both_sides(live: Any) -> None:
    script = """
import socket, struct, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(b"hello")
if sys.argv[2] == "resets":
    assert sock.recv(2) == b"go"
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
else:
    try:
        print(sock.recv(10))
    except ConnectionResetError:
        print("reset")
"""
    async with await live.listen() as listener:
        process = await live.start(["python3", "-c", script, str(listener.address.port), "waits"])
        connection = await listener.accept(60)
        assert await connection.read() == b"hello"
        await asyncio.to_thread(inner(connection).abort) if inner(connection) is not connection else connection.abort()
        assert (await process.wait(60)).stdout == "reset\n"
        await live.start(["python3", "-c", script, str(listener.address.port), "resets"])
        connection = await listener.accept(60)
        assert await connection.read() == b"hello"
        await connection.write("go")
        with pytest.raises(PortUnreachableError, match="ended the connection"):
            await read_all(connection)
        await connection.close()


async def test_a_handler_that_fails_resets_its_connection(live: Any) -> None:
    async def failing(connection: Any) -> None:
        raise ValueError("no")

    def blocking(connection: Any) -> None:
        raise ValueError("no")

    async with await live.listen(0, failing if inner(live) is live else blocking) as listener:
        result = await live.exec(ask(listener.address.port, "x"), timeout=60)
        assert was_reset(result)


TALKS = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
size = 0
sock.sendall(b"hello")
while piece := sock.recv(65536):
    size += len(piece)
    sock.sendall(b"more")
print(size)
"""


async def test_what_was_written_arrives_although_the_connection_is_closed_at_once(live: Any) -> None:
    async with await live.listen() as listener:
        process = await live.start(["python3", "-c", TALKS, str(listener.address.port)])
        async with await listener.accept(60) as connection:
            await connection.write(b"y" * 3_000_000)
        with pytest.raises(InputClosedError):
            await connection.write(b"z")
        assert (await process.wait(60)).stdout == "3000000\n"


async def test_forwarding_to_an_address_of_this_machine(live: Any) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"echo " + await reader.read(-1))

    async with serving(echo) as address:
        async with await live.listen(forward_to=address) as listener:
            assert (await live.exec(ask(listener.address.port, "this"), timeout=60)).stdout == "echo this\n"
        async with await live.listen(forward_to=address[1]) as listener:
            assert (await live.exec(ask(listener.address.port, "that"), timeout=60)).stdout == "echo that\n"
    async with await live.listen(forward_to=address) as listener:
        refused = await live.exec(ask(listener.address.port, "x"), timeout=60)
        assert "Connection reset" in refused.stderr or not refused.stdout.strip()
        assert isinstance(listener.last_error, PortUnreachableError)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"port": -1}, "port"),
        ({"port": 70000}, "port"),
        ({"handler": 5}, "handler"),
        ({"forward_to": 0}, "port"),
        ({"forward_to": ("", 80)}, "forward_to"),
        ({"handler": print, "forward_to": 80}, "not both"),
        ({"path": "/tmp/" + "x" * 120}, "107 bytes"),
    ],
)
async def test_invalid_arguments(live: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        await live.listen(**wrong)


async def test_a_port_in_use_and_too_many_ports(live: Any) -> None:
    first = await live.listen()
    with pytest.raises(InvalidArgumentError, match=r"in use.*another port"):
        await live.listen(first.address.port)
    others = [await live.listen() for _ in range(15)]
    with pytest.raises(HoldfastError, match="at most 16 ports"):
        await live.listen()
    await others[0].close()
    for listener in [await live.listen(), *others, first]:
        await listener.close()


async def test_programs_wait_in_the_kernels_queue_until_connections_are_taken(live: Any) -> None:
    """A program that does not take connections is sent a bounded number of them; the others lose nothing by waiting."""
    count = 150
    script = """
import socket, sys
socks = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
for number, sock in enumerate(socks):
    sock.sendall(b"%d\\n" % number)
print("connected", flush=True)
for sock in socks:
    sock.recv(1)
"""
    async with await live.listen() as listener:
        process = await live.start(["python3", "-c", script, str(listener.address.port), str(count)])
        assert (await process.read(60)).text == "connected\n"
        assert (await live.exec("true")).ok  # what the agent sent before has arrived
        assert len(inner(listener)._sink.untaken) == 64
        seen = []
        for _ in range(count):
            connection = await listener.accept(60)
            seen.append(int((await connection.read()).strip()))
            await connection.close()
        assert seen == list(range(count))
        assert (await process.wait(60)).ok


async def test_a_killed_gateway_loses_and_doubles_no_connection(stack: Stack) -> None:
    """Of both APIs at once, because a new gateway takes seconds to be ready."""
    clients = [face().client(stack.url, stack.key) for face in (AsyncFace, SyncFace)]
    all_ready, killed = asyncio.Barrier(3), asyncio.Event()
    async with asyncio.timeout(170), asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(_listen_through_a_kill(client, all_ready, killed))
        await all_ready.wait()
        old = await asyncio.to_thread(stack.kill_process, "gateway")
        killed.set()
    await asyncio.to_thread(stack.wait_restarted, "gateway", old)
    await asyncio.to_thread(stack.wait_ready)
    for client in clients:
        await client.close()


async def _listen_through_a_kill(client: Any, all_ready: asyncio.Barrier, killed: asyncio.Event) -> None:
    script = """
import socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
open_ = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
for number, sock in enumerate(open_):
    sock.sendall(b"early %d\\n" % number)
print("ready", flush=True)
sys.stdin.readline()
late = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
for number, sock in enumerate(late):
    sock.sendall(b"late %d\\n" % number)
print(sum(sock.makefile().readline().startswith("answer to ") for sock in open_ + late))
"""
    async with await client.create_sandbox("host", ready_timeout_s=60) as sandbox, await sandbox.listen() as listener:
        process = await sandbox.start(["python3", "-c", script, str(listener.address.port), "30"], timeout=170)
        assert (await process.read(60)).text == "ready\n"
        taken = [await listener.accept(60) for _ in range(10)]
        await all_ready.wait()
        await killed.wait()
        await process.write("\n")
        taken += [await listener.accept(100) for _ in range(50)]
        lines = []
        for connection in taken:
            line = await connection.read()
            lines.append(line.decode().strip())
            await connection.write(b"answer to " + line)
            await connection.close()
        assert sorted(lines) == sorted(f"{when} {n}" for when in ("early", "late") for n in range(30))
        assert (await process.wait(100)).stdout.endswith("60\n")


async def test_listeners_end_with_their_session(stack: Stack, client: Any) -> None:
    sandbox = await client.create_sandbox("host")
    listener, other = await sandbox.listen(), await sandbox.listen()
    process = await sandbox.start(ask(listener.address.port, "hello"))
    connection = await listener.accept(60)
    waiting = asyncio.ensure_future(other.accept())
    ended = asyncio.ensure_future(other.wait())
    await asyncio.sleep(0)
    with contextlib.suppress(HoldfastError):
        async with AsyncSandboxClient(stack.url, stack.key) as second:
            await second.get_sandbox(sandbox.id).delete()
    for wait in (waiting, ended, listener.accept(), read_all(connection), process.wait(60)):
        with pytest.raises((SandboxLostError, SessionLostError)):
            await wait
    await listener.close()


async def test_closing_the_sandbox_object_ends_its_listeners(live: Any) -> None:
    listener = await live.listen()
    other = await inner(live).client.get_sandbox(live.id).exec("true") if inner(live) is live else None
    assert other is None or other.ok
    await live.close()
    assert await listener.accept() is None


def test_a_connection_that_is_dropped_is_reset(stack: Stack) -> None:
    from holdfast import SandboxClient

    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host") as sandbox, sandbox.listen() as listener:
        process = sandbox.start(ask(listener.address.port, "hello"))
        connection = listener.accept(60)
        assert connection is not None
        del connection
        assert was_reset(process.wait(60))


async def test_a_cancelled_accept_loses_no_connection(stack: Stack) -> None:
    async with AsyncSandboxClient(stack.url, stack.key) as client, client.create_sandbox("host") as sandbox, sandbox.listen() as listener:
        for _ in range(20):
            waiting = asyncio.ensure_future(listener.accept())
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                connection = await waiting
        process = await sandbox.start(ask(listener.address.port, "kept"))
        connection = await listener.accept(60)
        assert isinstance(connection, AsyncConnection)
        async with connection:
            await answer(connection)
        assert (await process.wait(60)).stdout == "you said kept\n"


@pytest.mark.parametrize("where", ["taken", "waiting"])
async def test_connections_of_a_closed_listener(live: Any, where: str) -> None:
    """Those that were taken go on; those that wait are reset."""
    listener = await live.listen()
    process = await live.start(ask(listener.address.port, "hello"))
    if where == "waiting":
        while not inner(listener)._sink.untaken:
            await live.exec("true")
        await listener.close()
        assert was_reset(await process.wait(60))
        return
    connection = await listener.accept(60)
    await listener.close()
    await answer(connection)
    await connection.close()
    assert (await process.wait(60)).stdout == "you said hello\n"


def test_handlers_of_the_blocking_api_end_with_their_listener(stack: Stack) -> None:
    from holdfast import SandboxClient

    started = threading.Event()

    def hold(connection: Any) -> None:
        started.set()
        connection.read()
        connection.read()

    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host") as sandbox:
        listener = sandbox.listen(0, hold)
        process = sandbox.start(
            ["python3", "-c", f"import socket; s = socket.create_connection(('127.0.0.1', {listener.address.port})); s.recv(1)"]
        )
        assert started.wait(60)
        listener.close()
        assert was_reset(process.wait(60))
