"""``logs --service``: the log of a process of `holdfast up`, from the files in the data folder of its stack.

Owns which files these are, and following one that is replaced when it is full. The stack need not run.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast import InvalidArgumentError, NotFoundError
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import print_json
from holdfast.cli.signals import raised_on_exit_signals

_PAUSE_S = 0.2


def service_logs(arguments: Arguments) -> int:
    """Raises ``InvalidArgumentError`` and ``NotFoundError``."""
    if arguments.sandbox:
        raise InvalidArgumentError("invalid_argument", "give a SANDBOX or --service, not both", hint="holdfast logs --service gateway")
    file = _file_of(Path(arguments.data or os.environ.get("HOLDFAST_DATA") or ".holdfast"), arguments.service)
    with raised_on_exit_signals():
        before = file.with_suffix(".log.1")
        content = (before.read_bytes() if before.exists() else b"") + file.read_bytes()
        lines = content.splitlines(keepends=True)
        if arguments.tail is not None:
            lines = lines[-arguments.tail :] if arguments.tail else []
        if arguments.json:
            print_json({"service": arguments.service, "lines": [line.decode("utf-8", "replace").rstrip("\n") for line in lines]})
            return 0
        _show(b"".join(lines))
        if arguments.follow:
            _follow(file)
    return 0


def _file_of(data: Path, service: str) -> Path:
    logs = data / "logs"
    known = sorted(path.stem for path in logs.glob("*.log"))
    if service in known:
        return logs / f"{service}.log"
    if not known:
        message, hint = f"{data} has no logs of a stack", "name its folder with --data or HOLDFAST_DATA, and run `holdfast up` first"
        raise NotFoundError("file_not_found", message, hint=hint)
    raise InvalidArgumentError("invalid_argument", f"there is no service {service[:40]!r}", hint=f"one of {', '.join(known)}")


def _follow(file: Path) -> None:
    """Show what is added, until a signal ends this program."""
    with file.open("rb") as opened:
        opened.seek(0, os.SEEK_END)
        followed = opened
        while True:
            if data := followed.read():
                _show(data)
            elif _was_replaced(file, followed.fileno()):
                followed.close()
                followed = file.open("rb")  # closed by the end of the program
            else:
                time.sleep(_PAUSE_S)


def _was_replaced(file: Path, descriptor: int) -> bool:
    try:
        return not os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:  # for a moment
        return False


def _show(data: bytes) -> None:
    """Without control characters, as on the screen of `holdfast up`."""
    sys.stdout.buffer.write(bytes(byte for byte in data if byte >= 32 or byte in b"\t\n\x1b"))
    sys.stdout.buffer.flush()
