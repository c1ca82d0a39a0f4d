"""Processes and transfers in cases that would surprise a user of ``subprocess``, ``scp`` or ``docker cp``."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from holdfast import (
    InputClosedError,
    InvalidArgumentError,
    QuotaError,
    RemoteIsADirectoryError,
    Sandbox,
    SandboxClient,
    UnsupportedError,
    WaitTimeoutError,
)

from tests.support.stack import Stack


def test_input_that_no_process_can_read_is_refused(sandbox: Sandbox) -> None:
    with sandbox.start("true") as ended:
        ended.wait()
        with pytest.raises(InputClosedError) as refused:
            ended.write(b"x")
        ended.close_stdin()
    assert isinstance(refused.value, BrokenPipeError)
    assert (refused.value.code, refused.value.fault) == ("input_closed", "workload")
    with sandbox.start("cat") as process:
        process.write("é")
        process.close_stdin()
        process.close_stdin()
        with pytest.raises(InputClosedError, match="was closed"):
            process.write(b"lost?")
        assert process.wait(30).stdout == "é"
    with sandbox.start("cat", stdin=False) as process, pytest.raises(InputClosedError, match="stdin=False"):
        process.write(b"x")


@pytest.mark.parametrize(("name", "status"), [("INT", 130), ("sigterm", 143), ("9", 137), (15, 143), (signal.SIGHUP, 129)])
def test_signals_by_name_number_and_member(sandbox: Sandbox, name: Any, status: int) -> None:
    with sandbox.start("exec sleep 60") as process:
        process.signal(name)
        assert process.wait(30).exit_code == status


@pytest.mark.parametrize("size", [(0, 0), (-1, 80), (24, 10_001), ("a", 80), (24.0, 80), (None, 80), (True, 80)])
def test_an_invalid_terminal_size_is_refused_and_the_session_continues(sandbox: Sandbox, size: Any) -> None:
    with sandbox.shell() as shell, sandbox.terminal("cat") as terminal:
        with pytest.raises(InvalidArgumentError, match="rows and cols"):
            terminal.resize(*size)
        terminal.resize(24, 80)
        assert shell.run("echo on").stdout == "on\n"


@pytest.mark.parametrize("name", ["FOO", "", "0", "99", 0, -9, True, None, b"INT", 9.0])
def test_an_unknown_signal_is_refused(sandbox: Sandbox, name: Any) -> None:
    with sandbox.shell() as shell, sandbox.start("exec sleep 60") as process:
        for target in (shell, process):
            with pytest.raises(InvalidArgumentError, match="no signal"):
                target.signal(name)


def test_delete_returns_whether_the_sandbox_existed(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host")
    assert sandbox.delete() is True
    assert sandbox.delete() is False
    assert client.get_sandbox("sb-never-there").delete() is False


def test_a_file_is_uploaded_into_a_directory_as_with_cp(sandbox: Sandbox, tmp_path: Path) -> None:
    local = tmp_path / "script"
    local.write_text("echo hi")
    local.chmod(0o755)
    sandbox.files.mkdir("/tmp/into")
    for target in ("/tmp/into", "/tmp/into/"):
        sandbox.files.upload(local, target)
        assert sandbox.exec(["/bin/sh", "-c", "/tmp/into/script; rm /tmp/into/script"]).stdout == "hi\n"
    sandbox.files.mkdir("/tmp/into/script")
    with pytest.raises(RemoteIsADirectoryError):
        sandbox.files.upload(local, "/tmp/into")


def test_a_download_keeps_the_mode_and_makes_directories(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.files.write("/tmp/run-me", "#!/bin/sh\n", mode=0o755)
    sandbox.files.write("/tmp/secret", "x", mode=0o600)
    sandbox.files.download("/tmp/run-me", tmp_path / "a" / "b" / "run-me")
    sandbox.files.download("/tmp/secret", tmp_path)
    assert (tmp_path / "a" / "b" / "run-me").stat().st_mode & 0o700 == 0o700
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_search_excludes_one_name(sandbox: Sandbox) -> None:
    sandbox.exec("mkdir -p /tmp/seek/s /tmp/seek/sub; touch /tmp/seek/s/x /tmp/seek/sub/x").check()
    assert [match.path for match in sandbox.files.search("/tmp/seek", glob="x", exclude="sub")] == ["/tmp/seek/s/x"]
    for wrong in (3, [3], b"sub"):
        with pytest.raises(InvalidArgumentError, match="exclude"):
            sandbox.files.search("/tmp/seek", exclude=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("program", "expected"), [("/tmp/round", "symbolic links"), ("x" * 5000, "too long"), ("/tmp", "denied")])
def test_the_exit_code_of_an_invalid_program_is_126(sandbox: Sandbox, program: str, expected: str) -> None:
    sandbox.exec("ln -sfn round /tmp/round").check()
    result = sandbox.exec([program])
    assert (result.exit_code, result.cause) == (126, None)
    assert expected in result.stderr
    assert len(result.stderr) < 1000


def test_a_diff_that_is_no_text_is_refused(sandbox: Sandbox) -> None:
    for wrong in (None, 3, ["--- a"]):
        with pytest.raises(InvalidArgumentError, match="a diff"):
            sandbox.apply_patch(wrong)  # type: ignore[arg-type]


def test_a_command_that_is_a_dict_or_a_set_is_refused(sandbox: Sandbox) -> None:
    for wrong in ({"echo": 1}, {"echo"}):
        with pytest.raises(InvalidArgumentError):
            sandbox.exec(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), 1e300, "1", True])
def test_an_invalid_timeout_of_a_wait_is_refused(sandbox: Sandbox, timeout_s: Any) -> None:
    with sandbox.start("sleep 60") as process, sandbox.terminal("cat") as terminal:
        for wait in (process.wait, process.read, terminal.wait, terminal.read):
            with pytest.raises(InvalidArgumentError, match="number of seconds"):
                wait(timeout_s)
        with pytest.raises(WaitTimeoutError):
            process.read(0)


def test_a_size_that_the_sandbox_would_ignore_is_refused_by_the_client(sandbox: Sandbox) -> None:
    with sandbox.terminal("cat") as terminal:
        terminal.resize(4096, 4096)
        with pytest.raises(InvalidArgumentError, match="4096"):
            terminal.resize(4097, 80)


def test_a_directory_whose_name_is_not_valid_utf8(sandbox: Sandbox) -> None:
    name = b"/tmp/odd-\xff"
    sandbox.files.mkdir(name)
    sandbox.files.write(name + b"/inside", "x")
    assert sandbox.exec('ls; printf %s "$PWD"', cwd=name).check().stdout_bytes == b"inside\n" + name
    with sandbox.shell(cwd=name) as shell:
        result = shell.run("ls")
        assert (result.stdout, result.exit_code) == ("inside\n", 0)
    with sandbox.terminal(["ls"], cwd=name) as terminal:
        assert terminal.wait().stdout.strip() == "inside"


def test_operations_that_rest_lacks_are_refused_and_not_ignored(stack: Stack, sandbox: Sandbox) -> None:
    with SandboxClient(stack.url, stack.key, transport="rest") as client:
        by_rest = client.get_sandbox(sandbox.id)
        with pytest.raises(UnsupportedError, match="REST"):
            by_rest.exec("true", input="data")
        with pytest.raises(UnsupportedError, match="REST"):
            by_rest.files.list("/etc", recursive=True)
        by_rest.files.write("/tmp/ten", b"0123456789")
        assert by_rest.files.read("/tmp/ten", offset=3, length=2) == b"34"
        for offset, length in ((-1, None), (0, -1), (1.5, None), (0, True)):
            for files in (by_rest.files, sandbox.files):
                with pytest.raises(InvalidArgumentError):
                    files.read("/tmp/ten", offset=offset, length=length)  # type: ignore[arg-type]
        cut = by_rest.exec("echo 0123; echo 4 >&2", max_output_bytes=2)
        assert (cut.stdout, cut.stderr, cut.truncated) == ("01", "4\n", True)


def test_the_limit_of_open_channels_raises_quota_error(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.exec("true").check()
    monkeypatch.setattr("holdfast_wire.session.client_session.CHANNELS", 0)
    with pytest.raises(QuotaError, match="open channels"):
        sandbox.exec("true")
