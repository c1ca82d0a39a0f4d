"""Slow readers: a command writes faster than its output is read, while a shell of the same session must still answer.

Owns the pace of reading: in locust ``time.sleep`` lets other users run. The command waits once its channel's credit is used up; no other
channel may wait with it.
"""

from __future__ import annotations

import time

from locust import between, task

from loadtest.users.base import SandboxUser

PAUSE_S = 0.05
CHUNKS_BETWEEN_COMMANDS = 8


class SlowReaderUser(SandboxUser):
    """One long output per task, read with pauses, and commands beside it."""

    wait_time = between(0.5, 2.0)

    @task
    def stream(self) -> None:
        """``--stream-bytes``, all of which must arrive."""
        options = self.environment.parsed_options
        assert options is not None
        sandbox, wanted = self.ready(), options.stream_bytes
        with self.measured("session", "open shell"):
            shell = sandbox.shell()
        with shell, self.measured("stream", "slow read") as step:
            process = sandbox.start(["head", "-c", str(wanted), "/dev/zero"], stdin=False)
            for number, chunk in enumerate(process):
                step.size_bytes += len(chunk.data)
                if number % CHUNKS_BETWEEN_COMMANDS == 0:
                    with self.measured("command", "beside a slow read") as beside:
                        beside.take(shell.run("true"))
                time.sleep(PAUSE_S)
            step.check(step.size_bytes == wanted, "not all of the output arrived")
