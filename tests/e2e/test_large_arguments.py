"""Arguments and variables up to the kernel's limits: 128 KiB in one, 2 MiB in all. More raises a specific error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from holdfast import ArgumentsTooLongError, ConflictError, HoldfastError, RequestTooLargeError, Sandbox, SandboxClient, Shell
from holdfast.cli.subcommands.execute import leave
from holdfast_wire.limits import PARAMS_BYTES, WINDOW_BYTES

from tests.e2e.error_checks import is_clear
from tests.faults.proxy import FaultProxy
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "bash")

SHOW = "import hashlib,json,os,sys; d=lambda t: hashlib.sha256(t.encode()).hexdigest()\n"
SHOW += "print(json.dumps([len(sys.argv[1:]), d('|'.join(sys.argv[1:])), d(os.environ.get('LARGE0', ''))]))"
WORDS = {
    "a few long ones": [chr(97 + number) * 125_000 for number in range(15)],
    "very many": [f"file-{number:06}.txt" for number in range(75_000)],
    "odd ones": ["", "é" * 60_000, "\n" * 120_000, *(str(number) for number in range(17_000))],
}


OPTIONS: dict[str, Any] = {"cwd": None, "user": None, "timeout": None, "login": False}
"""Options that the command line sets for every command."""


def expected(words: list[str], variable: str = "") -> list[object]:
    return [len(words), hashlib.sha256("|".join(words).encode()).hexdigest(), hashlib.sha256(variable.encode()).hexdigest()]


@pytest.mark.parametrize("case", WORDS)
def test_large_arguments_arrive_unchanged(stack: Stack, sandbox: Sandbox, rest: httpx.Client, case: str) -> None:
    argv = ["python3", "-S", "-c", SHOW, *WORDS[case]]
    digests = expected(WORDS[case])
    assert json.loads(sandbox.exec(argv).check().stdout) == digests
    with sandbox.start(argv, stdin=False) as process:
        assert json.loads(process.wait().stdout) == digests
    with sandbox.terminal(argv) as terminal:
        assert json.loads(terminal.wait().stdout) == digests
    with SandboxClient(stack.url, stack.key, transport="rest") as client:
        assert json.loads(client.get_sandbox(sandbox.id).exec(argv).check().stdout) == digests
    answer = rest.post(f"/sandboxes/{sandbox.id}/exec", json={"command": argv, "wait": True}).raise_for_status()
    assert json.loads(answer.json()["stdout"]) == digests


def test_empty_input_ends_after_arguments_larger_than_the_credit_window(sandbox: Sandbox) -> None:
    words = WORDS["a few long ones"]
    assert sum(map(len, words)) > WINDOW_BYTES
    result = sandbox.exec(["sh", "-c", "wc -c", *words], input=b"", timeout=60)
    assert (result.exit_code, result.stdout.strip()) == (0, "0")


def test_a_detached_command_accepts_large_arguments(sandbox: Sandbox) -> None:
    words = WORDS["a few long ones"]
    process, status = leave(sandbox, ["sh", "-c", "echo $#", "sh", *words], OPTIONS, None)
    assert status == 0
    assert sandbox.follow(process.command_id).wait(60).stdout == f"{len(words)}\n"


def test_large_variables_and_input_with_large_arguments(sandbox: Sandbox) -> None:
    env = {f"LARGE{number}": chr(97 + number) * 120_000 for number in range(8)}
    words = WORDS["a few long ones"][:7]
    show = SHOW + "\nprint(d(sys.stdin.read()))"
    data = "input " * 500_000
    result = sandbox.exec(["python3", "-S", "-c", show, *words], env=env, input=data).check()
    first, second = result.stdout.splitlines()
    assert json.loads(first) == expected(words, env["LARGE0"])
    assert second == hashlib.sha256(data.encode()).hexdigest()
    with sandbox.shell(env=env) as shell:
        assert shell.run("echo ${#LARGE0} ${#LARGE7}").stdout == "120000 120000\n"
        assert sandbox.exec(f"echo {'x' * 120_000} | wc -c").stdout == "120001\n"


@pytest.mark.parametrize("by", ["session", "rest"])
def test_too_long_arguments_raise_arguments_too_long_error(stack: Stack, sandbox: Sandbox, by: str) -> None:
    long, many = "x" * 131_072, ["x" * 100_000] * 30
    huge = ["x" * 100_000] * (PARAMS_BYTES // 100_000 + 1)
    with SandboxClient(stack.url, stack.key, transport=by) as client:  # type: ignore[arg-type]
        same = client.get_sandbox(sandbox.id)
        attempts: list[Callable[[], object]] = [
            lambda: same.exec(["true", long]),
            lambda: same.exec(["true", *many]),
            lambda: same.exec(f": {long}"),
            lambda: same.exec("true", env={"LONG": long}),
            lambda: same.exec(["true", *huge]),
            lambda: same.exec(["true", *["x"] * 140_000]),
        ]
        if by == "session":
            attempts += [
                lambda: same.start(["true", *many]), lambda: same.terminal(["true", *many]), lambda: same.shell(env={"LONG": long}),
            ]  # fmt: skip
        for attempt in attempts:
            with pytest.raises(ArgumentsTooLongError) as refused:
                attempt()
            is_clear(refused.value, "arguments_too_long")
    assert sandbox.exec(["true", "x" * 131_000]).ok


def test_large_arguments_belong_to_the_identity_of_a_command(sandbox: Sandbox) -> None:
    """The same id and parameters attach to the command that runs or ran; other parameters are a conflict."""
    words = WORDS["a few long ones"]
    argv = ["sh", "-c", "echo run >> /tmp/runs; echo done", *words]
    results = [sandbox.exec(argv, command_id="large-once") for _ in range(3)]
    assert [result.stdout for result in results] == ["done\n"] * 3
    assert sandbox.files.read("/tmp/runs") == b"run\n"
    with pytest.raises(ConflictError):
        sandbox.exec([*argv[:-1], "other"], command_id="large-once")


def test_a_shells_script_has_the_limit_of_a_message(sandbox: Sandbox) -> None:
    with sandbox.shell() as shell:
        with pytest.raises(RequestTooLargeError) as refused:
            shell.run(f": {'x' * 300_000}")
        is_clear(refused.value, "request_too_large")
        assert _runs(shell)


def _runs(shell: Shell) -> bool:
    try:
        return shell.run(f": {'x' * 200_000}; echo ran").stdout == "ran\n"
    except HoldfastError:
        return False


@pytest.mark.parametrize("cuts", [(300_000,), (700_000, 400_000), (700_000, 400_000, 300_000)])
def test_a_connection_that_breaks_while_arguments_are_sent(stack: Stack, sandbox: Sandbox, cuts: tuple[int, ...]) -> None:
    """The rest of the parameters is sent over the next connection; the command runs only then, and once."""
    words = WORDS["a few long ones"]
    with FaultProxy(stack.url.replace("http://", "tcp://"), seed=3) as proxy, SandboxClient(proxy.url, stack.key) as client:
        proxy.cut_next(*cuts)
        through = client.get_sandbox(sandbox.id)
        mark = f"/tmp/cut-{len(cuts)}"
        script = f"import sys\nopen({mark!r}, 'a').write('run ')\n{SHOW}"
        assert json.loads(through.exec(["python3", "-S", "-c", script, *words], timeout=60).check().stdout) == expected(words)
        assert sandbox.files.read(mark) == b"run "
        assert proxy.faults.cuts == len(cuts)
