"""One-off commands over REST in one sandbox, as callers without WebSockets send them."""

from __future__ import annotations

from locust import between, task

from loadtest.users.base import SandboxUser


class OneOffUser(SandboxUser):
    """One HTTP request per task."""

    transport = "rest"
    wait_time = between(0.1, 1.0)

    @task
    def command(self) -> None:
        """A command whose output is checked."""
        sandbox = self.ready()
        with self.measured("command", "REST command") as step:
            step.check(step.take(sandbox.exec("echo $(( 6 * 7 ))")).stdout == "42\n", "another output than 42")
