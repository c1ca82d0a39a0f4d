"""``cp``: a file or a directory, in or out. The remote side is written ``SANDBOX:PATH``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import SandboxClient, TransferResult
from holdfast._arguments import bad
from holdfast.cli.output import say_json

if TYPE_CHECKING:
    from holdfast._sync.files import Files


def copy(arguments: argparse.Namespace) -> None:
    source, target = remote(arguments.source), remote(arguments.target)
    if (source is None) == (target is None):
        raise bad("exactly one side is remote", hint="holdfast cp LOCAL SANDBOX:/path, or holdfast cp SANDBOX:/path LOCAL")
    if arguments.json and arguments.target == "-":
        raise bad("standard output cannot take the file and JSON at once", hint="leave out --json, or copy to a file")
    with SandboxClient() as client:
        sandbox = client.get_sandbox((source or target or ("", ""))[0])
        try:
            if target is not None:
                moved = _upload(sandbox.files, arguments.source, target[1])
            else:
                assert source is not None
                if arguments.target == "-":
                    _to_output(sandbox.files, source[1])
                    return
                moved = sandbox.files.download(source[1], arguments.target)
        finally:
            sandbox.close()
    if arguments.json:
        say_json({"size_bytes": moved.size_bytes, "entries": moved.entries, "sha256": moved.sha256})


def _to_output(files: Files, path: str) -> None:
    """Byte for byte, as it comes; a check that fails at the end is an error all the same."""
    for piece in files.stream(path):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _upload(files: Files, local: str, path: str) -> TransferResult:
    if local == "-":
        if path.endswith("/"):
            raise bad("standard input has no name: give the whole path of the file", hint=f"holdfast cp - SANDBOX:{path}NAME")
        return files.write(path, sys.stdin.buffer)
    if path.endswith("/") and not Path(local).is_dir():
        path += Path(local).name
    return files.upload(local, path)


def remote(word: str) -> tuple[str, str] | None:
    """(sandbox, path) of ``SANDBOX:PATH``; None for a local path. ``./a:b`` and ``/a:b`` are local."""
    sandbox, separator, path = word.partition(":")
    if not separator or not sandbox or "/" in sandbox or sandbox == ".":
        return None
    return sandbox, path or "."
