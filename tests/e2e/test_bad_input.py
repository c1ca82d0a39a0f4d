"""Bad input, through the SDK and over plain REST: each time one clear typed error (code, message, what to do), and nothing is lost.

"Nothing lost" is checked after every single case: the shell that was open before still knows its variable.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import secrets
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from holdfast import (
    AuthenticationError,
    ConfigurationError,
    HoldfastError,
    ImageNotFoundError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    RemoteFileNotFoundError,
    RequestTooLargeError,
    Sandbox,
    SandboxClient,
    SandboxLostError,
    SandboxNotFoundError,
    Shell,
)
from holdfast_wire.errors import TABLE

from tests.support.requires import requires
from tests.support.stack import Stack, running_stack
from tests.support.until import until

pytestmark = [requires("namespaces", "redis", "bash")]


@pytest.fixture(scope="module")
def living(sandbox: Sandbox) -> Iterator[Shell]:
    with sandbox.shell() as shell:
        shell.run("KEPT=kept; cd /usr")
        yield shell


@pytest.fixture(autouse=True)
def nothing_lost(living: Shell) -> Iterator[None]:
    yield
    result = living.run("echo $KEPT; pwd", timeout=10)
    assert (result.stdout, result.shell_restarted) == ("kept\n/usr\n", False)


def is_clear(error: HoldfastError, code: str | None = None) -> None:
    """It says what is wrong, whose fault it is and what to do, in words, without a traceback or a key."""
    assert error.code in TABLE
    assert code is None or error.code == code
    assert error.message
    assert error.message == error.message.strip()
    assert error.fault in ("caller", "workload", "infrastructure")
    # what an invalid argument must be instead is what its message says
    assert error.hint or any(word in error.message for word in (" is ", "must", "cannot", " maps ")), error
    assert "Traceback" not in str(error)
    assert "hf_" not in str(error)


# Who is asking, and where --------------------------------------------------------------------------------------------


def test_unknown_key(stack: Stack) -> None:
    for key in ("hf_" + "0" * 32, "nonsense", "x" * 5000):
        with SandboxClient(stack.url, key) as client, pytest.raises(AuthenticationError) as refused:
            client.list_sandboxes()
        is_clear(refused.value, "key_invalid")
        assert key not in str(refused.value)


def test_unknown_key_on_a_session(stack: Stack, sandbox: Sandbox) -> None:
    with SandboxClient(stack.url, "hf_" + "0" * 32) as client, pytest.raises(AuthenticationError) as refused:
        client.get_sandbox(sandbox.id).exec("true")
    is_clear(refused.value, "key_invalid")


def test_no_key(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_API_KEY", "SANDBOX_API_KEY", "HOLDFAST_URL", "SANDBOX_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="HOLDFAST_API_KEY"):
        SandboxClient(stack.url)
    with pytest.raises(ConfigurationError, match="HOLDFAST_URL"):
        SandboxClient()
    answer = httpx.get(f"{stack.url}/sandboxes")
    assert (answer.status_code, answer.json()["code"]) == (401, "key_missing")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "nonsense", "http://", "http://[::1", "http://127.0.0.1:99999", 7, ""])
def test_bad_address(url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_URL", "SANDBOX_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(HoldfastError) as refused:
        SandboxClient(url, "hf_" + "0" * 32).list_sandboxes()
    assert refused.value.message


def test_nobody_there(stack: Stack) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with (
            SandboxClient(url, stack.key, connect_timeout_s=0.5, request_timeout_s=0.5) as client,
            pytest.raises(HoldfastError) as refused,
        ):
            client.list_sandboxes()
    assert refused.value.retryable
    is_clear(refused.value)


# What is asked for ---------------------------------------------------------------------------------------------------


def test_unknown_image_without_the_fallback() -> None:
    with running_stack({"HOLDFAST_IMAGE_FALLBACK": ""}) as own, SandboxClient(own.url, own.key) as client:
        with pytest.raises(ImageNotFoundError) as refused:
            client.create_sandbox("no/such-image:1")
        is_clear(refused.value, "image_not_found")
        assert "no/such-image:1" in refused.value.message
        assert "image import" in refused.value.hint
        left = [(one.status, one.reason, one.fault) for one in client.list_sandboxes()]
        assert left == [("failed", "image-not-found", "caller")], "what became of it can be asked for"
        with pytest.raises(ImageNotFoundError):
            client.images.remove("no/such-image:1")
        assert client.create_sandbox("host").delete()


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": "many"},
        {"cpu": -1},
        {"cpu": 0},
        {"cpu": math.nan},
        {"cpu": "1e400"},
        {"memory": "lots"},
        {"memory": "4Gb"},
        {"memory": "-4Gi"},
        {"memory": 0},
        {"disk": "10 GB"},
        {"disk": True},
    ],
    ids=repr,
)
def test_bad_quantity(client: SandboxClient, rest: httpx.Client, wrong: dict[str, Any]) -> None:
    before = len(client.list_sandboxes())
    with pytest.raises(InvalidArgumentError) as refused:
        client.create_sandbox("host", **wrong)
    is_clear(refused.value, "invalid_quantity")
    assert next(iter(wrong)) in refused.value.message
    answer = rest.post("/sandboxes", content=json.dumps({"image": "host", **wrong}))
    assert answer.json()["code"] in ("invalid_quantity", "invalid_json")
    assert len(client.list_sandboxes()) == before


def test_more_than_the_machine_has(client: SandboxClient) -> None:
    """Whatever the service decides of a thousand cores, it is a sandbox or a typed refusal."""
    try:
        sandbox = client.create_sandbox("host", cpu=1000, memory="1Ti")
    except HoldfastError as refused:
        is_clear(refused)
    else:
        assert sandbox.delete()


@pytest.mark.parametrize("name", ["UPPER", "-dash", "a/b", "..", "a b", "ü", "a" * 64, "a\n"], ids=repr)
def test_bad_sandbox_id(client: SandboxClient, rest: httpx.Client, name: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        client.create_sandbox("host", sandbox_id=name)
    is_clear(refused.value)
    answer = rest.post("/sandboxes", json={"image": "host", "sandbox_id": name})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")


@pytest.mark.parametrize("name", ["../etc", "a/../../healthz", "%2e%2e", "x?y=z", "x#y", "\n"], ids=repr)
def test_an_id_is_no_path(client: SandboxClient, name: str) -> None:
    with pytest.raises((SandboxNotFoundError, InvalidArgumentError, NotFoundError)):
        client.get_sandbox(name).refresh()


def test_labels_and_environment_have_limits(client: SandboxClient, rest: httpx.Client) -> None:
    wrong: list[dict[str, Any]] = [
        {"labels": {f"l{number}": "x" for number in range(1000)}},
        {"labels": {"holdfast/mine": "x"}},
        {"labels": {"a b": "x"}},
        {"labels": {"a": "x" * 100_000}},
        {"labels": {"a": "x\0"}},
        {"env": {"HUGE": "x" * 500_000}},
        {"env": {f"V{number}": "x" * 100 for number in range(5000)}},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\0"}},
        {"env": {"": "x"}},
    ]
    for more in wrong:
        with pytest.raises(HoldfastError) as refused:
            client.create_sandbox("host", **more)
        is_clear(refused.value)
        answer = rest.post("/sandboxes", json={"image": "host", **more})
        assert answer.status_code in (413, 422), answer.text
        assert answer.json()["code"] in TABLE


def test_a_request_over_the_limit(rest: httpx.Client) -> None:
    answer = rest.post("/sandboxes", content=b" " * (9 << 20))
    assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")

    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 65536

    try:
        answer = rest.post("/sandboxes", content=endless())
    except httpx.WriteError:
        return  # the service hung up before all was sent, as it may
    assert answer.status_code == 413


# What is done in a sandbox -------------------------------------------------------------------------------------------


def test_too_large_for_one_message(sandbox: Sandbox, living: Shell) -> None:
    huge = "x" * 300_000
    attempts: list[Callable[[], object]] = [
        lambda: sandbox.exec(f": {huge}"),
        lambda: sandbox.exec(["true", huge]),
        lambda: sandbox.exec("true", env={"HUGE": huge}),
        lambda: sandbox.start(f": {huge}"),
        lambda: living.run(f": {huge}"),
        lambda: sandbox.shell(env={"HUGE": huge}),
        lambda: sandbox.terminal(["true", huge]),
    ]
    for attempt in attempts:
        with pytest.raises(RequestTooLargeError) as refused:
            attempt()
        is_clear(refused.value, "request_too_large")
        assert "files.write" in refused.value.hint
    assert sandbox.exec("wc -c", input=huge * 20).stdout == f"{20 * len(huge)}\n", "what the hint says works"


def test_too_much_for_an_exec_call_of_the_kernel(sandbox: Sandbox) -> None:
    """Linux takes 128 KiB in one argument: more is the shell's own 126, or a typed refusal."""
    try:
        result = sandbox.exec(["true", "x" * 200_000])
    except HoldfastError as refused:
        is_clear(refused)
    else:
        assert result.exit_code in (126, 1)


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


def test_paths_that_are_not_there(sandbox: Sandbox, rest: httpx.Client) -> None:
    for attempt in (sandbox.files.read, sandbox.files.list, sandbox.files.stat, sandbox.files.remove):
        with pytest.raises(RemoteFileNotFoundError) as refused:
            attempt("/no/such/file")
        assert refused.value.filename == "/no/such/file"
        assert isinstance(refused.value, FileNotFoundError)
    with pytest.raises(HoldfastError, match="working directory"):
        sandbox.exec("true", cwd="/no/such")
    assert rest.get(f"/sandboxes/{sandbox.id}/files", params={"path": "/no/such"}).status_code == 404


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


def test_a_patch_that_is_none(sandbox: Sandbox) -> None:
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
"""Parameters that only this process's own libraries see."""


@pytest.mark.parametrize(
    "name",
    [
        "exec", "start", "shell", "terminal", "follow", "apply_patch", "tunnel",
        "files.read", "files.read_text", "files.write", "files.append", "files.list", "files.stat", "files.exists", "files.mkdir",
        "files.remove", "files.move", "files.chmod",
    ],
)  # fmt: skip
def test_wrong_types_for_every_parameter(sandbox: Sandbox, name: str) -> None:
    """Each wrong value is taken, or refused as a HoldfastError; never by an accident further in, and never by a wait."""
    method: Any = sandbox
    for part in name.split("."):
        method = getattr(method, part)
    parameters = inspect.signature(method).parameters.values()
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


def test_a_number_is_not_that_many_bytes(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentError):
        sandbox.files.write("/tmp/seven", 7)  # type: ignore[arg-type]
    assert not sandbox.files.exists("/tmp/seven")


def _try(method: Callable[..., Any], arguments: dict[str, Any], close: str = "close") -> None:
    try:
        made = method(**arguments)
    except HoldfastError as refused:
        is_typed(refused)
    except Exception as accident:
        pytest.fail(f"{method.__name__}({arguments!r:.200}): {accident!r:.300}")
    else:
        if hasattr(made, close):
            getattr(made, close)()


def is_typed(error: HoldfastError) -> None:
    assert error.code in TABLE
    assert error.message


# REST bodies ---------------------------------------------------------------------------------------------------------

_BODIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "create": ("POST", "/sandboxes", {"image": "host"}),
    "exec": ("POST", "/sandboxes/{id}/exec", {"command": "true", "wait": True, "timeout": 5}),
    "write": ("POST", "/sandboxes/{id}/files", {"path": "/tmp/rest", "content": "x"}),
    "patch": ("POST", "/sandboxes/{id}/apply_patch", {"patch": "x", "diff": "x"}),
}


@pytest.mark.parametrize("route", _BODIES)
def test_rest_bodies_of_the_wrong_type(sandbox: Sandbox, rest: httpx.Client, route: str) -> None:
    method, path, body = _BODIES[route]
    url = path.format(id=sandbox.id)
    for raw in (b"{", b"[]", b"7", b'"x"', b"null", b"\xff\xfe", b'{"image": NaN}', b"[" * 100_000):
        answer = rest.request(method, url, content=raw)
        assert answer.status_code in (400, 413, 422), (raw[:20], answer.text)
        assert_problem(answer)
    names = {*body, "cpu", "memory", "env", "labels", "timeout", "cwd", "user", "wait", "lifetime_s", "block_network", "sandbox_id"}
    made = []
    for name in sorted(names):
        for value in ([], {}, 7.5, -1, True, "a\0b", "x" * 20_000, ["x", 1], {"a": 1}):
            answer = rest.request(method, url, json={**body, name: value})
            assert answer.status_code < 500, (name, str(value)[:30], answer.text)
            if answer.status_code >= 400:
                assert_problem(answer)
            elif route == "create":
                made.append(answer.json()["sandbox_id"])
    for one in made:
        assert rest.delete(f"/sandboxes/{one}").status_code == 200


def assert_problem(answer: httpx.Response) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["code"] in TABLE
    assert body["status"] == answer.status_code
    assert body["detail"]
    assert {"type", "title", "hint", "retryable", "fault"} <= set(body)


def test_routes_and_methods_that_are_not_there(rest: httpx.Client, sandbox: Sandbox) -> None:
    for method, path, code in (
        ("GET", "/nowhere", "not_found"),
        ("PUT", "/sandboxes", "method_not_allowed"),
        ("GET", f"/sandboxes/{sandbox.id}/nowhere", "not_found"),
        ("GET", "/jobs/none", None),
    ):
        answer = rest.request(method, path)
        assert answer.status_code in (404, 405)
        assert_problem(answer)
        assert code is None or answer.json()["code"] == code


def test_queries_of_the_wrong_type(rest: httpx.Client, sandbox: Sandbox) -> None:
    for path in (
        "/sandboxes?limit=many", "/sandboxes?limit=0", "/sandboxes?limit=1000000", "/sandboxes?label=novalue", "/sandboxes?cursor=%00",
        f"/sandboxes/{sandbox.id}/wait?timeout=-1", f"/sandboxes/{sandbox.id}/wait?timeout=nan", f"/sandboxes/{sandbox.id}/files",
        f"/sandboxes/{sandbox.id}/files/list?path=" + urllib.parse.quote("a\0b"),
    ):  # fmt: skip
        answer = rest.get(path)
        assert answer.status_code in (200, 422), (path, answer.text)
        if answer.status_code != 200:
            assert_problem(answer)


def test_plain_http_on_the_session_route(rest: httpx.Client, sandbox: Sandbox) -> None:
    answer = rest.get(f"/sandboxes/{sandbox.id}/session")
    assert 400 <= answer.status_code < 500
    assert_problem(answer)


# A sandbox that is gone ----------------------------------------------------------------------------------------------


def uses(sandbox: Sandbox) -> list[Callable[[], object]]:
    return [
        sandbox.refresh,
        lambda: sandbox.exec("true"),
        sandbox.shell,
        lambda: sandbox.files.read("/etc/hostname"),
        lambda: sandbox.files.write("/tmp/x", b""),
        lambda: sandbox.apply_patch("x"),
        sandbox.keep_alive,
        lambda: sandbox.start("true"),
        sandbox.terminal,
        lambda: sandbox.tunnel(80),
    ]


def is_gone(client: SandboxClient, held: Sandbox, reason: str, fault: str) -> None:
    """Every use says why, whoever asks: who held it, and who comes later."""
    for sandbox in (held, client.get_sandbox(held.id)):
        for use in uses(sandbox):
            with pytest.raises(SandboxLostError) as gone:
                use()
            is_clear(gone.value)
            assert (gone.value.reason, gone.value.fault) == (reason, fault), gone.value
    assert held.id not in {one.sandbox_id for one in client.list_sandboxes()}
    assert held.delete() in (True, False), "deleting what is gone is no error"


def test_deleted(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host")
    with sandbox.start("sleep 60") as process:
        assert client.get_sandbox(sandbox.id).delete()
        with pytest.raises(SandboxLostError) as gone:
            process.wait()
    assert (gone.value.reason, gone.value.started) == ("deleted", True)
    is_gone(client, sandbox, "deleted", "caller")


def test_never_there(client: SandboxClient) -> None:
    for use in uses(client.get_sandbox("sb-never")):
        with pytest.raises(SandboxNotFoundError) as missing:
            use()
        is_clear(missing.value, "sandbox_not_found")


@requires("root")
def test_killed(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host")
    with sandbox.start("sleep 60") as process:
        os.kill(first_process(sandbox), 9)
        with pytest.raises(SandboxLostError) as gone:
            process.wait()
    assert gone.value.started is True
    assert gone.value.fault == "infrastructure"
    until(lambda: _gone(client, sandbox), deadline_s=60, what="the record to say so")
    with pytest.raises(SandboxLostError) as later:
        sandbox.exec("true")
    assert later.value.fault == "infrastructure"
    assert later.value.reason == gone.value.reason
    sandbox.delete()


def _gone(client: SandboxClient, sandbox: Sandbox) -> bool:
    try:
        return client.get_sandbox(sandbox.id).refresh().status == "failed"
    except SandboxLostError:
        return True


def first_process(sandbox: Sandbox) -> int:
    """The pid, out here, of the sandbox's agent: the parent of a process that was started there and can be told by its name."""
    name = f"54321.{secrets.randbelow(10**9)}"
    with sandbox.start(["sleep", name]):
        until(lambda: _parents(name), deadline_s=60, what="the sandbox's process to be seen from here")
        return _parents(name)[0]


def _parents(name: str) -> list[int]:
    """Who started the processes with this argument."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and f"sleep\0{name}\0".encode() == Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("limit", "reason"), [({"lifetime_s": 0.5}, "ttl"), ({"idle_timeout_s": 0.5}, "idle")])
def test_expired(client: SandboxClient, limit: dict[str, float], reason: str) -> None:
    sandbox = client.create_sandbox("host", **limit)  # type: ignore[arg-type]
    until(lambda: _gone(client, sandbox), deadline_s=60, what=f"{reason} to end it")
    for use in uses(client.get_sandbox(sandbox.id)):
        with pytest.raises(SandboxLostError) as gone:
            use()
        assert gone.value.reason == reason, gone.value
        is_clear(gone.value)


def test_an_argument_too_long_for_the_kernel_is_the_callers_mistake(sandbox: Sandbox) -> None:
    with pytest.raises(RequestTooLargeError, match="too long"):
        sandbox.exec(["sh", "-c", "echo ${#1}", "_", "x" * 200_000])
