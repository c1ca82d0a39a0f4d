"""Churn: create a sandbox, run a few commands in it, delete it.

Owns the commands. Most of the cost is creation: a trainer creates thousands of sandboxes at the start of a step.
"""

from __future__ import annotations

from locust import between, task

from loadtest.users.base import SandboxUser

COMMANDS = ("ls /", "cat /etc/os-release | head -1", "echo done")


class ChurnUser(SandboxUser):
    """Each task creates, uses and deletes one sandbox."""

    weight = 2
    wait_time = between(0.0, 1.0)

    @task
    def life(self) -> None:
        """Create, three one-off commands over the session, delete."""
        sandbox = self.ready()
        for command in COMMANDS:
            with self.measured("command", "one-off command") as step:
                step.take(sandbox.exec(command))
        self.done()
