"""Programs in a sandbox without a network reach one server outside: many at once, streamed, held back, and cut off."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient, PortUnreachableError, SandboxLostError
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.proxy.session import SessionLimits

from tests.support.stack import Stack

from .clients import PATHS, TOKENIZER, body_of, scripted_policy

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

CLIENT = """\
import json, sys, urllib.request, concurrent.futures
url, key, count, body = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.stdin.read()
def ask(n):
    request = urllib.request.Request(url, body.replace("NUMBER", str(n)).encode(), {"Authorization": "Bearer " + key})
    return urllib.request.urlopen(request, timeout=100).read().decode()
with concurrent.futures.ThreadPoolExecutor(count) as pool:
    print(json.dumps(list(pool.map(ask, range(count)))))
"""


@pytest.fixture
async def sandbox(stack: Stack) -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandboxClient(stack.url, stack.key) as client, await client.create_sandbox("host") as sandbox:
        yield sandbox


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[str, int]]:
    """A server of raw connections."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(handle(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


async def test_many_requests_at_once_without_a_network(sandbox: AsyncSandbox) -> None:
    async with Proxy(TOKENIZER) as proxy:
        session = proxy.open(scripted_policy("word " * 200))
        async with sandbox.listen(forward_to=proxy.address) as listener:
            closed = await sandbox.exec(f"python3 -c 'import socket; socket.create_connection({proxy.address}, 3)'", timeout=60)
            assert closed.exit_code != 0  # the server itself is out of reach
            body = json.dumps(body_of("chat", [{"role": "user", "content": "task NUMBER"}], stream=True))
            command = ["python3", "-c", CLIENT, f"http://{listener.address}" + PATHS["chat"], session.key, "40"]
            result = await sandbox.exec(command, input=body, timeout=120)
            assert result.ok, result.stderr
            answers = json.loads(result.stdout)
        assert [answer.count("word") for answer in answers] == [200] * 40
        assert all(answer.endswith("data: [DONE]\n\n") for answer in answers)
    assert sorted(TOKENIZER.decode(call.prompt_ids).split("task ")[1].split("<")[0] for call in session.calls) == sorted(
        map(str, range(40))
    )
    assert len(session.samples()) == 40
    assert {call.finish for call in session.calls} == {"stop"}


async def test_every_byte_arrives_both_ways(sandbox: AsyncSandbox) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    script = """
import hashlib, socket, sys, threading
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
data = bytes(range(256)) * 40000
def send():
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
back = b""
while piece := sock.recv(65536):
    back += piece
print(len(back), back == data)
"""
    async with serving(echo) as address, sandbox.listen(forward_to=address) as listener:
        result = await sandbox.exec(["python3", "-c", script, str(listener.address.port)], timeout=120)
    assert result.stdout == "10240000 True\n", result.stderr


async def test_pieces_arrive_as_they_are_written(sandbox: AsyncSandbox) -> None:
    """Each piece is answered before the next is sent: one that buffered them would deadlock."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(20):
            writer.write(b"piece %d\n" % number)
            assert await reader.readline() == b"piece %d\n" % number

    script = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock, sock.makefile("rwb") as both:
    for line in both:
        both.write(line)
        both.flush()
        print(line)
"""
    async with serving(serve) as address, sandbox.listen(forward_to=address) as listener:
        result = await sandbox.exec(["python3", "-c", script, str(listener.address.port)], timeout=60)
    assert result.stdout.count("piece") == 20


async def test_a_reader_that_waits_holds_its_server_back_and_no_other(sandbox: AsyncSandbox) -> None:
    written = 0
    full = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        if await reader.readline() == b"small\n":
            writer.write(b"here\n")
            return
        writer.transport.set_write_buffer_limits(high=0)
        while True:
            writer.write(b"x" * 65536)
            try:
                async with asyncio.timeout(2):
                    await writer.drain()
            except TimeoutError:
                full.set()
                await writer.drain()
            written += 65536

    script = """
import socket, sys
big = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
big.sendall(b"big\\n")
print("open", flush=True)
sys.stdin.readline()
small = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
small.sendall(b"small\\n")
print(small.recv(100))
"""
    async with serving(flood) as address, sandbox.listen(forward_to=address) as listener:
        process = await sandbox.start(["python3", "-c", script, str(listener.address.port)], timeout=120)
        async with asyncio.timeout(60):
            await full.wait()
        await process.write("now\n")
        result = await process.wait(60)
        assert "here" in result.stdout
        # kernel buffers of four sockets and two windows, however long the server would go on
        assert written < 32 * 1024 * 1024


async def test_a_program_that_hangs_up_cuts_its_call(sandbox: AsyncSandbox) -> None:
    script = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
body = sys.stdin.buffer.read()
lines = ["POST /v1/chat/completions HTTP/1.1", "Host: x", "x-api-key: " + sys.argv[2], "Content-Length: %d" % len(body), "", ""]
sock.sendall("\\r\\n".join(lines).encode() + body)
if sys.argv[3] == "reads":
    sock.recv(10)
else:
    sys.stdout.write("sent")
    sys.stdout.flush()
    import time
    time.sleep(100)
"""
    async with Proxy(TOKENIZER) as proxy:
        slow, quick = scripted_policy("one", held=True), scripted_policy("word " * 1000)
        held, written = proxy.open(slow), proxy.open(quick, limits=SessionLimits(new_tokens=100_000))
        async with sandbox.listen(forward_to=proxy.address) as listener:
            body = json.dumps(body_of("chat", [{"role": "user", "content": "x"}], stream=True))
            process = await sandbox.start(["python3", "-c", script, str(listener.address.port), held.key, "waits"], timeout=120)
            await process.write(body)
            await process.close_stdin()
            await slow.prompts.get()
            await process.kill()
            async with asyncio.timeout(60):
                await slow.cancelled.wait()
            await sandbox.exec(["python3", "-c", script, str(listener.address.port), written.key, "reads"], input=body, timeout=60)
            async with asyncio.timeout(60):
                while not written.calls or written.calls[0].finish != "cut":
                    await asyncio.sleep(0.01)
    assert [call.finish for call in held.calls] == ["cut"]
    assert [call.finish for call in written.calls] == ["cut"]


async def test_closing_the_listener_cuts_no_answer_that_was_taken(sandbox: AsyncSandbox) -> None:
    """A program may keep its connection open to the end, as opencode does."""
    script = """
import http.client, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", "/v1/chat/completions", sys.stdin.buffer.read(), {"x-api-key": sys.argv[2]})
assert b"[DONE]" in connection.getresponse().read()
print("read", flush=True)
time.sleep(100)
"""
    async with Proxy(TOKENIZER) as proxy:
        taken, held = proxy.open(scripted_policy("word " * 100)), proxy.open(scripted_policy("one", held=True))
        body = json.dumps(body_of("chat", [{"role": "user", "content": "x"}], stream=True))
        async with sandbox.listen(forward_to=proxy.address) as listener:
            for session in (held, taken):
                process = await sandbox.start(["python3", "-c", script, str(listener.address.port), session.key], timeout=100)
                await process.write(body)
                await process.close_stdin()
            chunk = await process.read(60)
            assert chunk is not None
            assert chunk.text == "read\n"
            policy: Any = held._policy
            await policy.prompts.get()
        await proxy.settle(taken)
        await proxy.settle(held)
    assert [call.finish for call in taken.calls] == ["stop"]
    assert [call.finish for call in held.calls] == ["cut"]


async def test_streams_outlive_a_gateway(stack: Stack, sandbox: AsyncSandbox) -> None:
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first\n")
        assert await reader.readline() == b"seen\n"
        await go_on.wait()
        writer.write(b"second\n")

    script = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock, sock.makefile("rwb") as both:
    print(both.readline(), flush=True)
    both.write(b"seen\\n"); both.flush()
    print(both.readline())
"""
    async with serving(serve) as address, sandbox.listen(forward_to=address) as listener:
        process = await sandbox.start(["python3", "-c", script, str(listener.address.port)], timeout=170)
        chunk = await process.read(60)
        assert chunk is None or "first" in chunk.text
        old = await asyncio.to_thread(stack.kill_process, "gateway")
        go_on.set()
        result = await process.wait(120)
        assert "second" in result.stdout
        assert listener.last_error is None
        await asyncio.to_thread(stack.wait_restarted, "gateway", old)
        await asyncio.to_thread(stack.wait_ready)


async def test_a_server_that_is_away_resets_the_program(sandbox: AsyncSandbox) -> None:
    async with serving(lambda reader, writer: asyncio.sleep(0)) as address:
        pass
    async with sandbox.listen(forward_to=address) as listener:
        command = f"import socket; print(socket.create_connection(('127.0.0.1', {listener.address.port})).recv(5))"
        result = await sandbox.exec(["python3", "-c", command], timeout=60)
        assert result.stdout == "b''\n" or "ConnectionReset" in result.stderr
        assert isinstance(listener.last_error, PortUnreachableError)


async def test_a_deleted_sandbox_ends_its_listener(sandbox: AsyncSandbox) -> None:
    async with sandbox.listen(forward_to=1) as listener:
        await sandbox.client.get_sandbox(sandbox.id).delete()
        with pytest.raises(SandboxLostError):
            async with asyncio.timeout(60):
                await listener.wait()
