"""Bad input to operations in a sandbox: too large, not found, of the wrong type for every parameter of every method.

After every case the shell that was open before still has its variable.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, cast

import httpx
import pytest
from holdfast import (
    HoldfastError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    RemoteFileNotFoundError,
    RequestTooLargeError,
    Sandbox,
    SandboxClient,
    Shell,
    UserNotFoundError,
    WorkingDirectoryError,
)

from tests.e2e.error_checks import is_clear, is_typed
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = [requires("namespaces", "redis", "bash"), pytest.mark.usefixtures("nothing_lost")]


def test_too_large_for_one_message(sandbox: Sandbox, living: Shell) -> None:
    huge = "x" * 300_000
    with pytest.raises(RequestTooLargeError) as refused:
        living.run(f": {huge}")
    is_clear(refused.value, "request_too_large")
    assert "files.write" in refused.value.hint
    assert sandbox.exec("wc -c", input=huge * 20).stdout == f"{20 * len(huge)}\n", "the way that the hint names works"


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "/" + "d/" * 3000], ids=lambda path: repr(path[:10]))
def test_bad_path(sandbox: Sandbox, rest: httpx.Client, path: str) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: sandbox.files.read(path),
        lambda: sandbox.files.write(path, b""),
        lambda: sandbox.files.list(path),
        lambda: sandbox.files.stat(path),
        lambda: sandbox.files.move("/tmp", path),
        lambda: sandbox.exec("true", cwd=path),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidPathError) as refused:
            attempt()
        is_clear(refused.value, "invalid_path")
    answer = rest.get(f"/sandboxes/{sandbox.id}/files", params={"path": path})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_path")


def test_paths_that_do_not_exist(sandbox: Sandbox, rest: httpx.Client) -> None:
    for attempt in (sandbox.files.read, sandbox.files.list, sandbox.files.stat, sandbox.files.remove):
        with pytest.raises(RemoteFileNotFoundError) as refused:
            attempt("/no/such/file")
        assert refused.value.filename == "/no/such/file"
        assert isinstance(refused.value, FileNotFoundError)
    assert rest.get(f"/sandboxes/{sandbox.id}/files", params={"path": "/no/such"}).status_code == 404


@pytest.mark.parametrize("by", ["session", "rest"])
@pytest.mark.parametrize("cwd", ["/no/such", "/etc/passwd", "no/such"])
def test_an_invalid_working_directory(stack: Stack, sandbox: Sandbox, rest: httpx.Client, by: str, cwd: str) -> None:
    with SandboxClient(stack.url, stack.key, transport=cast(Any, by)) as client:
        same = client.get_sandbox(sandbox.id)
        attempts: list[Callable[[], object]] = [lambda: same.exec("true", cwd=cwd), lambda: same.exec(["true"], cwd=cwd, user="daemon")]
        if by == "session":
            attempts += [lambda: same.start("true", cwd=cwd), lambda: same.shell(cwd=cwd), lambda: same.terminal(["true"], cwd=cwd)]
        for attempt in attempts:
            with pytest.raises(WorkingDirectoryError, match="working directory") as refused:
                attempt()
            is_clear(refused.value, "cwd_not_found")
    answer = rest.post(f"/sandboxes/{sandbox.id}/exec", json={"command": "true", "cwd": cwd, "wait": True})
    assert (answer.status_code, answer.json()["code"]) == (422, "cwd_not_found")


@pytest.mark.parametrize("by", ["session", "rest"])
@pytest.mark.parametrize("user", ["nobody-of-that-name", "daemon:no-such-group", "no-such:0", 2**31])
def test_an_unknown_user(stack: Stack, sandbox: Sandbox, rest: httpx.Client, by: str, user: str | int) -> None:
    with SandboxClient(stack.url, stack.key, transport=cast(Any, by)) as client:
        same = client.get_sandbox(sandbox.id)
        attempts: list[Callable[[], object]] = [lambda: same.exec("true", user=user)]
        if by == "session":
            attempts += [lambda: same.start("true", user=user), lambda: same.shell(user=user), lambda: same.terminal(["true"], user=user)]
        for attempt in attempts:
            with pytest.raises(UserNotFoundError) as refused:
                attempt()
            is_clear(refused.value, "user_not_found")
    answer = rest.post(f"/sandboxes/{sandbox.id}/exec", json={"command": "true", "user": user, "wait": True})
    assert (answer.status_code, answer.json()["code"]) == (422, "user_not_found")


def test_rest_requests_choose_a_user(sandbox: Sandbox, rest: httpx.Client) -> None:
    for user, expected in (("daemon", "1 1"), (1, "1 1"), ("1:0", "1 0"), ("daemon:root", "1 0")):
        answer = rest.post(f"/sandboxes/{sandbox.id}/exec", json={"command": "echo $(id -u) $(id -g)", "user": user, "wait": True}).json()
        assert answer.get("stdout") == f"{expected}\n", answer


def test_bad_user(sandbox: Sandbox) -> None:
    for user in ("nobody-of-that-name", -1, 2**40, ""):
        with pytest.raises(HoldfastError) as refused:
            sandbox.exec("true", user=user)
        is_clear(refused.value)


def test_unknown_command_and_conflicting_command(sandbox: Sandbox) -> None:
    with pytest.raises(NotFoundError) as refused:
        sandbox.follow("never-started").wait()
    is_clear(refused.value, "command_not_found")
    assert sandbox.exec("echo one", command_id="twice").stdout == "one\n"
    assert sandbox.exec("echo one", command_id="twice").stdout == "one\n"
    with pytest.raises(HoldfastError) as conflict:
        sandbox.exec("echo other", command_id="twice")
    is_clear(conflict.value, "command_conflict")


def test_a_text_that_is_no_patch(sandbox: Sandbox) -> None:
    try:
        result = sandbox.apply_patch("this is not a diff\n")
    except HoldfastError as refused:
        is_clear(refused)
    else:
        assert not result.success
        assert result.stderr


_WRONG: tuple[Any, ...] = (
    object(), 3, 3.5, -1, True, None, [], {}, b"\xff", "a\0b", "\udcff", "", math.nan, math.inf, "x" * 5000, ("a", 1), {1: 2}, {"a": 1},
)  # fmt: skip
_RIGHT: dict[str, Any] = {
    "command": ["true"], "path": "/tmp/wrong-types", "to": "/tmp/wrong-types-2", "data": b"d", "mode": 0o644, "command_id": "no-such",
    "diff": "x", "port": 80, "image": "host",
}  # fmt: skip
_OWN_SIDE = {"encoding", "errors", "local_host", "local_port", "self"}
"""Parameters that only this process's own libraries use."""


@pytest.mark.parametrize(
    "name",
    [
        "exec", "start", "shell", "terminal", "follow", "apply_patch", "tunnel",
        "files.read", "files.read_text", "files.write", "files.append", "files.list", "files.stat", "files.exists", "files.mkdir",
        "files.remove", "files.move", "files.chmod",
    ],
)  # fmt: skip
def test_wrong_types_for_every_parameter(sandbox: Sandbox, name: str) -> None:
    """Each wrong value is accepted, or refused with a HoldfastError; it causes no other exception and no endless wait."""
    method: Any = sandbox
    for part in name.split("."):
        method = getattr(method, part)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [one for one in inspect.signature(method).parameters.values() if one.kind not in several]
    needed = {one.name: _RIGHT[one.name] for one in parameters if one.default is inspect.Parameter.empty}
    for parameter in parameters:
        if parameter.name not in _OWN_SIDE:
            for value in _WRONG:
                _try(method, {**needed, parameter.name: value})


def test_wrong_types_for_every_parameter_of_create(client: SandboxClient) -> None:
    for parameter in inspect.signature(client.create_sandbox).parameters.values():
        for value in _WRONG:
            if type(value) in (object, list, dict, bytes, tuple) or value == "\udcff":
                _try(client.create_sandbox, {"image": "host", parameter.name: value}, close="delete")


def test_wrong_types_for_a_shell_and_a_process(sandbox: Sandbox) -> None:
    with sandbox.shell() as shell, sandbox.start("cat") as process:
        for parameter in inspect.signature(shell.run).parameters.values():
            for value in _WRONG:
                _try(shell.run, {"command": "true", parameter.name: value})
        for value in _WRONG:
            _try(shell.signal, {"name": value})
            _try(process.signal, {"name": value}) if value != "" else None
            _try(process.write, {"data": value})
        assert shell.run("echo on").stdout == "on\n"


def test_writing_a_number_is_refused_instead_of_writing_that_many_zero_bytes(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentError):
        sandbox.files.write("/tmp/seven", 7)  # type: ignore[arg-type]
    assert not sandbox.files.exists("/tmp/seven")


def _try(method: Callable[..., Any], arguments: dict[str, Any], close: str = "close") -> None:
    try:
        made = method(**arguments)
    except HoldfastError as refused:
        is_typed(refused)
    except Exception as unexpected:
        pytest.fail(f"{method.__name__}({arguments!r:.200}): {unexpected!r:.300}")
    else:
        if hasattr(made, close):
            getattr(made, close)()


def test_an_argument_too_long_for_the_kernel_is_the_callers_mistake(sandbox: Sandbox) -> None:
    """Linux accepts 128 KiB in one argument."""
    with pytest.raises(RequestTooLargeError, match="too long") as refused:
        sandbox.exec(["sh", "-c", "echo ${#1}", "_", "x" * 200_000])
    is_clear(refused.value)
