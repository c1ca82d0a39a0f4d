"""The table of guesses: what a user of docker, Modal or E2B tries first works, or the first line of its error names the right way."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from holdfast import HoldfastError, Sandbox, SandboxClient

from tests.e2e.guesses import COMMAND_LINE, SDK, Guess
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis")


def name_of(guess: Guess) -> str:
    return guess.typed[:60]


@pytest.fixture
def new_name(client: SandboxClient) -> Iterator[str]:
    name = f"guess-{os.urandom(4).hex()}"
    yield name
    client.get_sandbox(name).delete()


@pytest.mark.parametrize("guess", COMMAND_LINE, ids=name_of)
def test_a_guess_on_the_command_line(stack: Stack, sandbox: Sandbox, new_name: str, guess: Guess) -> None:
    words = [word.replace("SB", sandbox.id).replace("NEW", new_name) for word in shlex.split(guess.typed)]
    command = [sys.executable, "-m", "holdfast.cli", *words]
    done = subprocess.run(
        command, env=stack.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    if guess.works is not None:
        assert done.returncode == 0, done.stderr
        assert guess.works.replace("SB", sandbox.id).replace("NEW", new_name) in done.stdout
    else:
        assert done.returncode != 0
        assert guess.says is not None
        assert guess.says in done.stderr.splitlines()[0]


@pytest.mark.parametrize("guess", SDK, ids=name_of)
def test_a_guess_in_python(client: SandboxClient, sandbox: Sandbox, guess: Guess) -> None:
    variables = {"client": client, "sandbox": sandbox}
    if guess.works is not None:
        assert guess.works in repr(eval(guess.typed, variables))
        return
    with pytest.raises(HoldfastError) as refused:
        eval(guess.typed, variables)
    assert guess.says is not None
    assert guess.says in refused.value.message.splitlines()[0]


def test_there_are_forty_purposes_and_each_row_has_one_expectation() -> None:
    rows = [*COMMAND_LINE, *SDK]
    assert len({guess.purpose for guess in rows}) >= 40
    assert all((guess.works is None) != (guess.says is None) for guess in rows)
