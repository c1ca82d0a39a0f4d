"""``holdfast exec`` writes to files and pipes byte for byte; a terminal gets no control sequences except colours."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from holdfast import SandboxClient
from holdfast.cli.output import TerminalFilter

from tests.cli.test_cli import environment as fake_environment
from tests.sdk.support.fake_agent import FakeAgent
from tests.support.requires import requires

needs_stack = requires("namespaces", "redis")


def cli(environment: dict[str, str], *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "holdfast.cli", *words], env=environment, timeout=120, **options)


@needs_stack
def test_an_archive_arrives_byte_for_byte(stack: Any, tmp_path: Path) -> None:
    environment = stack.environment()
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="256Mi") as sandbox:
        content = bytes(range(256)) * 64 + b"\x1b[31m\x9b\x1b\x1b" * 500 + os.urandom(500_000)
        sandbox.files.write("/tmp/tree/binary", content)
        archive, errors = tmp_path / "x.tgz", tmp_path / "err"
        with archive.open("wb") as out, errors.open("wb") as err:
            done = cli(environment, "exec", sandbox.id, "tar", "czf", "-", "-C", "/tmp", "tree", stdout=out, stderr=err)
        assert (done.returncode, errors.read_bytes()) == (0, b"")
        with tarfile.open(archive) as opened:
            member = opened.extractfile("tree/binary")
            assert member is not None
            assert member.read() == content
        expected = hashlib.sha256(content).hexdigest()
        for words in (["exec"], ["exec", "--raw"], ["exec", "-i"], ["exec", "-t"]):
            if words[-1] == "-t":  # a terminal changes nothing except line feeds to CR LF
                done = cli(environment, *words, sandbox.id, "printf", "\\033[1mx\\033", capture_output=True, stdin=subprocess.DEVNULL)
                assert done.stdout == b"\x1b[1mx\x1b"
                continue
            done = cli(environment, *words, sandbox.id, "cat", "/tmp/tree/binary", capture_output=True, stdin=subprocess.DEVNULL)
            assert hashlib.sha256(done.stdout).hexdigest() == expected
        done = cli(environment, "exec", sandbox.id, "sh", "-c", "cat /tmp/tree/binary >&2", capture_output=True)
        assert hashlib.sha256(done.stderr).hexdigest() == expected
        done = cli(environment, "shell", sandbox.id, input=b"cat /tmp/tree/binary\n", capture_output=True)
        assert hashlib.sha256(done.stdout).hexdigest() == expected


@pytest.fixture
def agent() -> Any:
    with FakeAgent() as running:
        yield running


def test_standard_input_is_not_read_without_the_option(agent: FakeAgent) -> None:
    done = cli(fake_environment(agent.url), "exec", "sb", "-c", "true", input=b"unread", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def on_terminal(agent: FakeAgent, *words: str) -> bytes:
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *words], env=fake_environment(agent.url), stdin=slave, stdout=slave
    ) as running:
        os.close(slave)
        seen = b""
        try:
            while data := os.read(master, 4096):
                seen += data
        except OSError:  # how Linux reports the end of a terminal
            pass
        running.wait(60)
    os.close(master)
    return seen


def test_a_terminal_gets_colours_but_no_other_control_sequences(agent: FakeAgent) -> None:
    hostile = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[6n"
    assert on_terminal(agent, "exec", "sb", "-c", f"echo {hostile}") == b"\x1b[31mred\x1b[0m \\x1b]0;title\x07 \\x1b[6n\r\n"
    assert on_terminal(agent, "exec", "sb", "--raw", "-c", f"echo {hostile}") == hostile.encode() + b"\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_split_sequence_is_filtered_as_a_whole_one(size: int) -> None:
    data = b"a\x1b[1;31mb\x1b[2J\x1b[Kc\x1b\x1b[0md\x1b" + b"[" * 40 + b"\x1b[3"
    filter_ = TerminalFilter()
    got = b"".join(filter_.feed(data[at : at + size]) for at in range(0, len(data), size)) + filter_.end()
    assert got == b"a\x1b[1;31mb\\x1b[2J\x1b[Kc\\x1b\x1b[0md\\x1b" + b"[" * 40 + b"\\x1b[3"


@pytest.mark.parametrize("piece", [1, 2, 3, 1000])
def test_control_characters_above_ascii_are_shown_as_text(piece: int) -> None:
    """U+009B is a CSI: xterm and others obey it, in UTF-8 and as a single byte."""
    harmless = "é À ß €\u00a0 日本語 😀 \x1b[31mred\x1b[0m".encode()
    data = harmless + b" \xc2\x9b2J \x9b2J \xc2\x9d0;title\x07 \x1bc \xff\xe2\x82 \xf0\x9f\x98"
    filter_ = TerminalFilter()
    shown = b"".join(filter_.feed(data[at : at + piece]) for at in range(0, len(data), piece)) + filter_.end()
    assert shown.startswith(harmless)
    rest = shown[len(harmless) :]
    assert rest.startswith(b" \\x9b2J \\x9b2J \\x9d0;title\x07 \\x1bc \xff\xe2")
    assert b"\x1b" not in rest
    assert not re.search("[\x80-\x9f]", shown.decode("utf-8", "replace"))
    assert not re.search(rb"(?<![\xc0-\xf4\x80-\xbf])[\x80-\x9f]", shown)
