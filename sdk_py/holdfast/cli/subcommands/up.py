"""``up``: run the whole service on one machine; needs the extra ``server``. The process is replaced by ``python -m holdfast_server``."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec

from holdfast import UnsupportedError
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import report


def up(arguments: Arguments) -> int:
    """``holdfast up``. Returns only if it cannot start."""
    if find_spec("holdfast_server") is None:
        missing = UnsupportedError("the server is not installed here", hint="pip install 'holdfast[server]'")
        report(missing.to_map(), as_json=arguments.json)
        return 2  # as for every reason that prevents the start
    words = [sys.executable, "-m", "holdfast_server"]
    for name in ("port", "data", "procfile", "stop_grace", "with_parent", "no_ready", "json"):
        value = getattr(arguments, name)
        if value not in (None, False):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # blocked until the server can handle it
    return os.execv(sys.executable, words)
