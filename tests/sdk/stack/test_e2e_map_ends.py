"""A map that ends early: an exception of one rollout, or Ctrl-C, ends the waits of the others, and their sandboxes are deleted."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from holdfast import AsyncSandboxClient, InvalidArgumentError, SandboxClient

from tests.sdk.support.requirements import STACK

pytestmark = STACK

PROGRAM = """
import sys
from holdfast import AsyncSandboxClient, InvalidArgumentError, SandboxClient

def rollout(number):
    with client.create_sandbox("host", group=group, labels={"map": "ctrl-c"}) as sandbox:
        for chunk in sandbox.shell().stream("echo at work; sleep 170"):
            print(chunk.text, end="", flush=True)

with SandboxClient(sys.argv[1], sys.argv[2]) as client, client.group(sys.argv[3]) as group:
    try:
        client.map(rollout, range(9), concurrency=3)
    except KeyboardInterrupt:
        print(len(client.list_sandboxes(labels={"map": "ctrl-c"})), "left")
"""


@pytest.mark.parametrize("failure", [ValueError("mine"), KeyboardInterrupt("pressed")])
def test_an_exception_of_one_rollout_cancels_the_others(stack: Any, failure: BaseException) -> None:
    at_work = threading.Barrier(3)
    begun: list[int] = []
    results: list[object] = []

    def rollout(number: int) -> None:
        begun.append(number)
        with client.create_sandbox("host", labels={"map": type(failure).__name__}) as sandbox:
            if number == 2:
                at_work.wait(60)
                raise failure
            stream = sandbox.exec(["true"]) if number else None  # one rollout waits for a shell, one for a process
            with sandbox.shell() as shell:
                at_work.wait(60)
                results.append(shell.run("sleep 170") if stream is None else sandbox.exec(["sleep", "170"]))

    with SandboxClient(stack.url, stack.key) as client:
        with pytest.raises(type(failure), match=str(failure)):
            client.map(rollout, range(9), concurrency=3)
        assert client.list_sandboxes(labels={"map": type(failure).__name__}) == []
    assert (sorted(begun), results) == ([0, 1, 2], [])


def test_a_cancelled_map_does_not_finish_its_pauses(stack: Any) -> None:
    """A pause between two requests is also interrupted."""
    from holdfast._transport.threads.events import Event

    with SandboxClient(stack.url, stack.key) as client, pytest.raises(ZeroDivisionError):
        client.map(lambda number: Event().wait(600) if number else 1 / 0, range(2))


def test_ctrl_c_ends_a_map(stack: Any) -> None:
    command = [sys.executable, "-c", PROGRAM, stack.url, stack.key, "ctrl-c-ends-a-map"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["at work\n"] * 3
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "0 left\n")


@pytest.mark.parametrize("keep", [False, True])
def test_a_function_of_the_other_api_is_refused(keep: bool) -> None:
    """Coroutines as results would never be awaited, and a plain function would block the loop."""

    async def waits(number: int) -> int:
        return number

    async def misused() -> None:
        async with AsyncSandboxClient("http://127.0.0.1:1", "hf_x") as client:
            plain: Any = int
            await client.map(plain, ["1", "2"], return_exceptions=keep)

    with SandboxClient("http://127.0.0.1:1", "hf_x") as client, pytest.raises(InvalidArgumentError, match="is a coroutine function"):
        client.map(waits, range(3), return_exceptions=keep)
    with pytest.raises(InvalidArgumentError, match="map takes a coroutine function"):
        asyncio.run(misused())
