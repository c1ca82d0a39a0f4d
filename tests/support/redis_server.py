"""A real, private Redis on a Unix socket: one server per test module, empty at the start of each test.

Owns the server process. Fixtures: `redis_server` (module; can be killed and started again) and `redis_url` (function;
flushed). Nothing is stored on disk and no port is opened.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from holdfast_server.redis import find_redis_server

from tests.support.until import until

_START_DEADLINE_S = 60.0


class RedisServer:
    """One redis-server process. `start`, `stop` and `kill` may be called in any order; its data is lost when it ends."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the server and return once it answers PING."""
        program = find_redis_server()
        assert program is not None, 'mark the test with requires("redis")'
        log = self._folder / "redis.log"
        arguments = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [program, *arguments, "--dir", str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        until(self._answers, deadline_s=_START_DEADLINE_S, what=lambda: f"redis to answer; its log: {log.read_text()}")

    def flush(self) -> None:
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            client.flushall()

    def stop(self) -> None:
        self._end("terminate")

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end("kill")

    def _end(self, how: str) -> None:
        if self._process is not None:
            getattr(self._process, how)()
            self._process.wait(timeout=_START_DEADLINE_S)
            self._process = None
            self.socket.unlink(missing_ok=True)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"redis ended with {self._process.returncode}"
        try:
            with redis.Redis(unix_socket_path=str(self.socket)) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    folder = Path(tempfile.mkdtemp(prefix="hf-redis-"))
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    redis_server.flush()
    return redis_server.url
