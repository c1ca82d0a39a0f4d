"""SWE-ReX's endpoint over plain HTTP: its forms, repeated requests, and hostile uploads.

Its own client is tested by `make integrations`.
"""

from __future__ import annotations

import io
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from holdfast import Sandbox

from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "bash")


@pytest.fixture
def rex(stack: Stack, sandbox: Sandbox) -> Any:
    with httpx.Client(base_url=f"{stack.url}/sandboxes/{sandbox.id}/swerex", headers={"X-API-Key": stack.key}, timeout=30) as made:
        yield made


def raised(answer: httpx.Response) -> str:
    assert answer.status_code == 511, answer.text
    return str(answer.json()["swerexception"]["class_path"])


def zipped(**files: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return stream.getvalue()


def test_a_session_and_its_errors(rex: httpx.Client) -> None:
    assert rex.get("/is_alive").json()["is_alive"] is True
    assert raised(rex.post("/run_in_session", json={"command": "true"})) == "swerex.exceptions.SessionDoesNotExistError"
    assert rex.post("/create_session", json={"session_type": "bash"}).status_code == 200
    assert raised(rex.post("/create_session", json={})) == "swerex.exceptions.SessionExistsError"
    seen = rex.post("/run_in_session", json={"command": "printf 'a\\n\\033[1mb\\033[0m\\n'; echo c >&2", "action_type": "bash"}).json()
    assert (seen["output"], seen["exit_code"]) == ("a\nb\nc\n", 0)
    assert raised(rex.post("/run_in_session", json={"command": "(a"})) == "swerex.exceptions.BashIncorrectSyntaxError"
    assert raised(rex.post("/run_in_session", json={"command": "sleep 99", "timeout": 0.3})) == "swerex.exceptions.CommandTimeoutError"
    assert rex.post("/run_in_session", json={"command": "false", "check": "silent"}).json()["exit_code"] == 1
    assert rex.post("/close").status_code == 200
    assert raised(rex.post("/close_session", json={})) == "swerex.exceptions.SessionDoesNotExistError"


def test_a_request_that_comes_twice_is_one_command(rex: httpx.Client, sandbox: Sandbox) -> None:
    rex.post("/create_session", json={"session": "once"})
    for _ in range(2):
        rex.post("/run_in_session", json={"session": "once", "command": "echo x >> /tmp/count"}, headers={"X-Request-ID": "r1"})
        rex.post("/execute", json={"command": "echo y >> /tmp/count", "shell": True}, headers={"X-Request-ID": "r2"})
    assert sorted(sandbox.files.read_text("/tmp/count").split()) == ["x", "y"]
    rex.post("/close_session", json={"session": "once"})


def test_a_repeated_request_types_nothing_into_its_own_command(rex: httpx.Client, sandbox: Sandbox) -> None:
    rex.post("/create_session", json={"session": "again"})
    body = {"session": "again", "command": "touch /tmp/begun; read -t 3 line; echo read:$line"}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rex.post, "/run_in_session", json=body, headers={"X-Request-ID": "r3"})
        while not sandbox.files.exists("/tmp/begun") and not first.done():
            pass
        second = rex.post("/run_in_session", json=body, headers={"X-Request-ID": "r3"})
        assert first.result().json()["output"] == second.json()["output"] == "read:\n"
    rex.post("/close_session", json={"session": "again"})


def test_a_text_is_expected_behind_more_output_than_is_kept(rex: httpx.Client) -> None:
    rex.post("/create_session", json={"session": "much"})
    script = "head -c 9000000 /dev/zero | tr '\\0' a; printf 'N\\033[1mO'; printf '\\033[0mW\\n'; sleep 99"
    body = {"session": "much", "command": script, "expect": ["NOW"], "is_interactive_command": True, "timeout": 25}
    seen = rex.post("/run_in_session", json=body).json()
    assert (seen["expect_string"], set(seen["output"])) == ("NOW", {"a"})
    rex.post("/close_session", json={"session": "much"})


def test_uploads_cannot_leave_their_target_or_lie(rex: httpx.Client, sandbox: Sandbox) -> None:
    form = {"target_path": "/tmp/target", "unzip": "true"}
    good = rex.post("/upload", data=form, files={"file": zipped(sub__f="text")})
    assert good.status_code == 200, good.text
    assert sandbox.files.read_text("/tmp/target/sub/f") == "text"
    for content in (
        zipped(**{"..__..__escaped": "x"}),
        b"no archive",
        zipped(f="x" * 1000).replace(b"\xe8\x03\x00\x00", b"\x10\x00\x00\x00"),
    ):
        refused = rex.post("/upload", data=form, files={"file": content})
        assert 400 <= refused.status_code < 500, (refused.status_code, refused.text)
    assert not sandbox.files.exists("/escaped")
    assert not sandbox.files.exists("/tmp/escaped")
    assert rex.post("/upload", data={"unzip": "false"}, files={"file": b"x"}).json()["code"] == "invalid_argument"


def test_malformed_requests_are_refused(rex: httpx.Client) -> None:
    for path, body in (
        ("/run_in_session", {"command": 5}),
        ("/run_in_session", {"command": "true", "expect": "text"}),
        ("/run_in_session", {"command": "true", "check": "perhaps"}),
        ("/create_session", {"session": "x" * 1000}),
        ("/create_session", {"startup_source": "file"}),
        ("/execute", {"command": "", "shell": False}),
        ("/read_file", {}),
    ):
        answer = rex.post(path, json=body)
        assert answer.status_code == 422 or answer.status_code == 400, (path, body, answer.status_code, answer.text)
