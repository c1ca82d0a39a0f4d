"""SWE-ReX's calls where the gateway itself has to be protected. What works is tested with its client (tests/e2e)."""

from __future__ import annotations

import time

import pytest

from tests.gateway.harness import Served
from tests.support.requires import requires

pytestmark = requires("redis")


@pytest.mark.parametrize("encoding", ["punycode", "idna", "Punycode", "none"])
async def test_no_encoding_keeps_the_gateway_busy(served: Served, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    async def read(*_: object) -> bytearray:
        return bytearray(b"a" * 100_000 + b"-" + b"b" * 100_000)

    monkeypatch.setattr("gateway.use_cases.files.read", read)
    await served.place("sb-1", "unix:///nowhere")
    async with served.client() as ada:
        begun = time.process_time()
        answer = await ada.post("/sandboxes/sb-1/swerex/read_file", json={"path": "/a", "encoding": encoding})
        assert time.process_time() - begun < 0.5
    assert answer.status_code == 511
    assert answer.json()["swerexception"]["class_path"] == "builtins.LookupError"
