"""The command line as a real process against the scripted agent. Lifecycle is tested with a real stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from holdfast.cli.app import parse
from holdfast.cli.output import escape, escape_bytes
from holdfast.cli.subcommands.cp import remote

from tests.sdk.support.fake_agent import FakeAgent
from tests.support.until import until


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    with FakeAgent() as running:
        yield running


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "HOLDFAST_URL": url, "HOLDFAST_API_KEY": "secret-test-key"}


def holdfast(agent: FakeAgent, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli", *words]
    return subprocess.run(command, env=environment(agent.url), capture_output=True, text=True, timeout=120, **options)


def test_exec_passes_arguments_output_and_exit_code(agent: FakeAgent) -> None:
    done = holdfast(agent, "exec", "sb", "--", "echo", "-n", "--json", "--", "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "-n --json -- x\n", "")
    assert agent.opened[0].params["argv"] == ["echo", "-n", "--json", "--", "x"]
    done = holdfast(agent, "exec", "sb", "-c", "exit 7")
    assert (done.returncode, agent.opened[1].params["script"]) == (7, "exit 7")
    done = holdfast(agent, "exec", "sb", "-c", "both")
    assert (done.stdout, done.stderr) == ("out", "err")


def test_exec_passes_options_on(agent: FakeAgent) -> None:
    holdfast(agent, "exec", "sb", "-w", "/tmp", "-e", "A=1", "-e", "B=x=y", "-u", "1000", "--timeout", "5", "--", "true")
    params = agent.opened[0].params
    assert (params["cwd"], params["env"], params["user"], params["timeout_s"]) == ("/tmp", {"A": "1", "B": "x=y"}, 1000, 5.0)


def test_exec_passes_standard_input_on(agent: FakeAgent) -> None:
    assert holdfast(agent, "exec", "sb", "-i", "-c", "cat", input="through").stdout == "through"
    holdfast(agent, "exec", "sb", "-c", "true")
    assert "stdin" not in agent.opened[1].params


def test_nonblocking_standard_input_is_passed_on_whole(agent: FakeAgent) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    command = [sys.executable, "-m", "holdfast.cli", "exec", "sb", "-i", "-c", "cat"]
    with subprocess.Popen(command, env=environment(agent.url), stdin=read_end, stdout=subprocess.PIPE) as process:
        os.close(read_end)
        until(lambda: len(agent.opened) == 1, deadline_s=60, what="the command to start")
        os.write(write_end, b"late")
        os.close(write_end)
        try:
            assert process.communicate(timeout=60)[0] == b"late"
        finally:
            process.kill()


def test_exec_as_json(agent: FakeAgent) -> None:
    done = holdfast(agent, "exec", "sb", "--json", "-c", "both")
    body = json.loads(done.stdout)
    assert (body["stdout"], body["stderr"], body["exit_code"], body["timed_out"]) == ("out", "err", 0, False)


def test_escapes_are_written_to_pipes_unchanged(agent: FakeAgent) -> None:
    assert holdfast(agent, "exec", "sb", "-c", "echo \x1b[2J").stdout == "\x1b[2J\n"
    assert holdfast(agent, "exec", "sb", "--raw", "-c", "echo \x1b[2J").stdout == "\x1b[2J\n"


def test_errors_have_a_hint_and_never_contain_the_key(agent: FakeAgent) -> None:
    agent.refuse_with("sandbox_gone", reason="oom")
    done = holdfast(agent, "exec", "sb", "--", "true")
    assert done.returncode == 125
    assert done.stderr == "holdfast: refused: sandbox_gone\n  create a new sandbox; the reason states why this one ended\n"
    agent.refuse_with("key_invalid")
    done = holdfast(agent, "exec", "--json", "sb", "--", "true")
    assert json.loads(done.stderr)["error"]["code"] == "key_invalid"
    assert "secret-test-key" not in done.stderr


def test_hostile_messages_are_escaped(agent: FakeAgent) -> None:
    body = {"code": "sandbox_gone", "detail": "gone \x1b]0;owned\x07"}
    agent.refuse.append((410, {"Content-Type": "application/problem+json"}, json.dumps(body).encode()))
    assert "\x1b" not in holdfast(agent, "exec", "sb", "--", "true").stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["exec"],
        ["exec", "sb"],
        ["exec", "sb", "-c", "x", "--", "y"],
        ["exec", "sb", "-e", "novalue", "--", "x"],
        ["cp", "a", "b"],
        ["cp", "sb:/a", "sb:/b"],
        ["port", "sb", "x"],
        ["port", "--reverse", "sb", "x"],
        ["port", "--reverse", "sb", "0"],
        ["port", "--reverse", "sb", "80:host:"],
        ["create", "img", "--cpu", "many"],
    ],
)
def test_wrong_usage_exits_with_2(agent: FakeAgent, words: list[str]) -> None:
    done = holdfast(agent, *words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["create", "--json"],
        ["--json", "create"],
        ["create", "img", "--json", "--memory", "-5Mi"],
        ["list", "--json", "extra"],
        ["--json", "nonsense"],
        ["image", "rm", "--json"],
        ["exec", "--json", "--timeout", "abc", "sb", "true"],
        ["create", "img", "--json", "-e", "novalue"],
        ["cp", "--json", "/no/such", "sb:/tmp"],
        ["cp", "--json", "-", "sb:/tmp/"],
        ["port", "sb", "x", "--json"],
        ["port", "sb", "70000", "--json"],
    ],
)
def test_wrong_usage_is_reported_as_json_with_json(agent: FakeAgent, words: list[str]) -> None:
    done = holdfast(agent, *words)
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "invalid_argument"
    assert error["message"]
    assert error["hint"], "an error has a hint"


def test_an_interrupt_during_the_start_exits_with_130() -> None:
    code = """
import sys, holdfast.cli
class Interrupting:
    def find_spec(self, name, *_):
        if name == "holdfast.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
holdfast.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_no_service_configured(tmp_path: Any) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "SANDBOX"))}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "list"], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "HOLDFAST_URL" in done.stderr


def test_interrupt_ends_the_remote_command(agent: FakeAgent) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "exec", "sb", "-c", "greet"]
    with subprocess.Popen(command, env=environment(agent.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hello\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert len(agent.records) == 1
    assert agent.signals == ["INT"]


def test_an_interrupt_before_the_command_is_known_to_run_ends_it(agent: FakeAgent) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "exec", "sb", "-c", "quiet"]
    with subprocess.Popen(command, env=environment(agent.url), stderr=subprocess.PIPE) as process:
        until(lambda: agent.opened, deadline_s=60, what="the command to be requested")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert agent.closes


def test_a_closed_pipe_causes_no_traceback(agent: FakeAgent) -> None:
    command = f"{sys.executable} -m holdfast.cli exec sb -c 'flood 9000000' | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environment(agent.url), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (141, "")


def test_every_command_has_help_and_the_option_json() -> None:
    for words in (
        ["create"],
        ["list"],
        ["rm"],
        ["exec"],
        ["shell"],
        ["cp"],
        ["port"],
        ["doctor"],
        *(["image", w] for w in ("list", "import", "pull", "rm")),
    ):
        with pytest.raises(SystemExit) as ended:
            parse([*words, "--help"])
        assert ended.value.code == 0
    assert parse(["list", "--json"]).json is True


def test_arguments_after_the_dashes_belong_to_the_remote_command() -> None:
    assert parse(["exec", "sb", "--", "a", "--", "b"]).argv == ["a", "--", "b"]
    assert parse(["list"]).argv is None


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("sb:/a", ("sb", "/a")),
        ("sb:a:b", ("sb", "a:b")),
        ("sb:", ("sb", ".")),
        ("/a:b", None),
        ("./a:b", None),
        ("plain", None),
        (":x", None),
    ],
)
def test_remote_paths(word: str, expected: tuple[str, str] | None) -> None:
    assert remote(word) == expected


def test_escaping() -> None:
    assert escape("a\tb\nüñ") == "a\tb\nüñ"
    assert escape("\x1b[31m\r\x07\x9b") == "\\x1b[31m\\r\\x07\\x9b"
    assert escape_bytes(b"\x00\x1b\xff") == b"\x00\\x1b\xff"
