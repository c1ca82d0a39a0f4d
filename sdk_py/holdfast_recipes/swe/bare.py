"""The bare machine as a ``Machine``: a folder of its own and plain subprocesses, with the environment that a sandbox gives.

Owns running commands there, for one purpose: showing that the same agent gets the same reward outside Holdfast and in it. There is no
isolation; it is for agents of one's own that follow a script.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from holdfast import CommandResult

from holdfast_recipes.harness.machine import ExecOptions

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class BareMachine:
    """Absolute directories given as ``cwd`` lie below the machine's own folder; commands themselves are not translated."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="hf-bare-"))
        self.id = self._root.name
        (self._root / "root").mkdir()

    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> CommandResult:
        """Output is neither bounded nor cut, and everything runs as the caller's user."""
        given, stderr = options.get("input"), options.get("stderr", "pipe")
        words = ["bash", "-c", command] if isinstance(command, str) else self._mapped(command)
        data = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=self._root / (options.get("cwd") or "/").lstrip("/"),
            env={**_ENVIRONMENT, "HOME": str(self._root / "root"), **(options.get("env") or {})},
            stdin=asyncio.subprocess.DEVNULL if data is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if stderr == "stdout" else asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        timed_out = False
        talking = asyncio.ensure_future(process.communicate(data))
        done, _ = await asyncio.wait({talking}, timeout=options.get("timeout"))
        if not done:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
        out, err = await talking
        code = 124 if timed_out else process.returncode or 0
        return CommandResult(code if code >= 0 else 128 - code, out, err or b"", time.monotonic() - started, timed_out=timed_out)

    async def delete(self) -> bool:
        shutil.rmtree(self._root, ignore_errors=True)
        return True

    def _mapped(self, words: Sequence[str]) -> list[str]:
        """``tar -x -C /`` unpacks into the folder."""
        if list(words[:3]) != ["tar", "-x", "-C"]:
            return list(words)
        return [*words[:3], str(self._root) + words[3], *words[4:]]
