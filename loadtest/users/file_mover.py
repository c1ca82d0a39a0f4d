"""File movers: write a file of random bytes into a sandbox, read it back, compare."""

from __future__ import annotations

import os

from locust import between, task

from loadtest.users.base import SandboxUser

PATH = "/tmp/moved.bin"


class FileMoverUser(SandboxUser):
    """One file there and back per task. Locust's column of bytes shows the size."""

    wait_time = between(0.2, 1.0)

    @task
    def there_and_back(self) -> None:
        """``--file-bytes`` of random bytes."""
        options = self.environment.parsed_options
        assert options is not None
        sandbox, data = self.ready(), os.urandom(options.file_bytes)
        with self.measured("file", "upload") as step:
            step.size_bytes = sandbox.files.write(PATH, data).size_bytes
        with self.measured("file", "download") as step:
            back = sandbox.files.read(PATH)
            step.size_bytes = len(back)
            step.check(back == data, "other bytes came back")
