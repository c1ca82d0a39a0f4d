"""REST requests and answers that are lost or late: a command runs once, its result is complete, a cancelled create makes no sandbox."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from holdfast import AsyncSandboxClient, NotFoundError

from tests.sdk.support.blocking_proxy import BlockingProxy


async def test_a_result_is_complete_although_its_first_answers_were_lost(stack: Any, live: Any, face: Any) -> None:
    with BlockingProxy(stack.url) as proxy:
        handler: Any = proxy._server.RequestHandlerClass
        answer = handler._answer
        lost: list[str] = []

        def lose(self: Any, status: int, kind: str, body: bytes) -> None:
            if len(lost) < 2 and ("/exec" in self.path or "/jobs/" in self.path):
                lost.append(self.path)
                self.close_connection = True
            else:
                answer(self, status, kind, body)

        handler._answer = lose
        client = face.client(proxy.url, stack.key, transport="rest")
        sandbox = client.get_sandbox(live.id)
        script = "echo x >> /tmp/ran; head -c 131070 /dev/zero | tr '\\0' x; cat /tmp/ran >&2"
        result = await asyncio.wait_for(sandbox.exec(script), 60)
        assert len(lost) == 2
        assert (result.exit_code, len(result.stdout_bytes), result.stderr, result.truncated) == (0, 131070, "x\n", False)
        await client.close()


async def test_a_create_that_arrives_after_its_cancellation_makes_no_sandbox(stack: Any) -> None:
    with BlockingProxy(stack.url) as proxy:
        handler: Any = proxy._server.RequestHandlerClass
        forward, answer = handler.do_POST, handler._answer
        arrived, go_on, refused = threading.Event(), threading.Event(), threading.Event()
        bodies: list[bytes] = []

        def late(self: Any) -> None:
            arrived.set()
            assert go_on.wait(60)
            forward(self)

        def record(self: Any, status: int, kind: str, body: bytes) -> None:
            if self.command == "POST":
                bodies.append(body)
                refused.set()
            else:
                answer(self, status, kind, body)

        handler.do_POST, handler._answer = late, record
        async with AsyncSandboxClient(proxy.url, stack.key) as client:
            creation = asyncio.create_task(client.create_sandbox("host", sandbox_id="late-1"))
            assert await asyncio.to_thread(arrived.wait, 60)
            creation.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creation
            go_on.set()
            assert await asyncio.to_thread(refused.wait, 60)
            assert b"cancelled" in bodies[0]
            with pytest.raises(NotFoundError):
                await client.get_sandbox("late-1").info()
        handler.do_POST, handler._answer = forward, answer
        async with AsyncSandboxClient(proxy.url, stack.key) as client, await client.create_sandbox("host", sandbox_id="late-1") as again:
            assert (await again.exec("echo hi")).stdout == "hi\n"


async def test_a_cancelled_create_does_not_delete_another_sandbox_of_its_name(stack: Any) -> None:
    with BlockingProxy(stack.url) as proxy:
        handler: Any = proxy._server.RequestHandlerClass
        answer, refused, go_on = handler._answer, threading.Event(), threading.Event()

        def late(self: Any, status: int, kind: str, body: bytes) -> None:
            if self.command == "POST":
                refused.set()
                assert go_on.wait(60)
            answer(self, status, kind, body)

        async with AsyncSandboxClient(stack.url, stack.key) as client, await client.create_sandbox("host", sandbox_id="mine-1") as mine:
            handler._answer = late
            async with AsyncSandboxClient(proxy.url, stack.key) as other:
                creation = asyncio.create_task(other.create_sandbox("host", sandbox_id="mine-1"))
                assert await asyncio.to_thread(refused.wait, 60)
                creation.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await creation
            go_on.set()
            assert (await mine.exec("echo hi")).stdout == "hi\n"
            assert (await mine.info()).ready
