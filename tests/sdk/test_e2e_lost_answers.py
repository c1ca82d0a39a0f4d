"""Answers of REST that get lost on the way: the command ran once, and its result is whole when it is asked for again."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sdk.support.blocking_proxy import BlockingProxy


async def test_a_result_whose_answer_was_lost_is_whole(stack: Any, live: Any, face: Any) -> None:
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
