"""Command lines that are nearly right: groups of commands, copies between sandboxes, invalid sizes and times."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.cli.app import run
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import variables


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_API_KEY", "key")


@pytest.mark.parametrize("typed", ["image --help", "image -h", "help image"])
def test_a_group_of_commands_has_help(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed.split()) == 0
    output = capsys.readouterr().out
    assert output.startswith("usage: holdfast image COMMAND")
    assert "image pull NAME" in output
    assert "exec" not in output


@pytest.mark.parametrize(
    ("typed", "first", "second"),
    [
        ("image", "holdfast image: image needs a command", "usage: holdfast image COMMAND"),
        ("sandbox", "holdfast sandbox: sandbox needs a command", "usage: holdfast sandbox COMMAND"),
        ("container crate host", "there is no command crate; did you mean `holdfast create`?", "usage"),
        ("cp a:/x b:/y", "cp cannot copy from one sandbox to another", "holdfast cp SANDBOX:/path - | holdfast cp - OTHER:/path"),
        ("cp x y", "either SOURCE or TARGET must be SANDBOX:PATH", "holdfast cp LOCAL SANDBOX:/path"),
        ("create host --shm-size x", "--shm-size must be a size, not 'x'", "512m"),
        ("create host --ready-timeout 0", "--ready-timeout must be a number of seconds above 0", "leave it out to wait for an hour"),
        ("create host --lifetime -5", "--lifetime SECONDS must be a number from 0 to 999999999, not '-5'", "usage: holdfast create"),
        ("logs sb -n abc", "-n LINES must be a number from 0", "usage: holdfast logs"),
        ("create host --name=", "--id (--name) must be 1 to 128 printable characters", "correct the argument"),
        ("create host --disk 0", "--disk must be a size in bytes", "write it as '512Mi', '4Gi' or a number of bytes"),
        ("create host --lifetime 0", "--lifetime must be a number of seconds above 0", "leave it out for the service's default"),
        ("run --timeout 0 host true", "timeout must be a number of seconds above 0", "leave it out for no limit"),
        ("run --cwd= host true", "a path must be 1 to 4096 bytes", "give a path"),
        ("run host echo \udcff", "commands, names and variables must be valid UTF-8", "write them to a file"),
    ],
)
def test_the_error_names_the_correct_form(typed: str, first: str, second: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert first in lines[0]
    assert second in lines[1]


def test_a_file_of_variables_may_be_indented_and_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "env").write_bytes(b"\xef\xbb\xbfA=1\r\n  B= 2 \n\t# no variable\n \n")
    assert variables(Arguments(env=[], env_file=[str(tmp_path / "env")])) == {"A": "1", "B": " 2 "}
