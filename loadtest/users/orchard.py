"""The shape that Orchard Env published its figures for (arXiv 2605.15040): create, four one-off commands over REST, delete.

Owns the four commands: the Python version, ``ls /``, the first line of ``/etc/os-release``, and that line again in a login shell.
"""

from __future__ import annotations

from locust import constant, task

from loadtest.users.base import SandboxUser

RELEASE = "cat /etc/os-release | head -1"
COMMANDS = (
    ("Orchard python version", "python3 --version || python --version", False),
    ("Orchard ls", "ls /", False),
    ("Orchard os-release", RELEASE, False),
    ("Orchard login shell", RELEASE, True),
)


class OrchardUser(SandboxUser):
    """Each task creates, uses and deletes one sandbox."""

    transport = "rest"
    wait_time = constant(0.0)

    @task
    def life(self) -> None:
        """Create, the four commands, delete."""
        sandbox = self.ready()
        for name, command, login in COMMANDS:
            with self.measured("command", name) as step:
                step.take(sandbox.exec(command, login=login))
        self.done()
