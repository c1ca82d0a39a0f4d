"""A process of its own for a test that counts what its process has: descriptors, threads, children.

Owns ``in_own_process``. The process that runs the suite also has what earlier tests left open, and threads of theirs may close some of it
at any moment. A fork has no such threads, and in it the garbage collector does not touch what it inherited.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any


def in_own_process(test: Callable[..., Any]) -> Callable[..., None]:
    """Run ``test``, also one that is a coroutine function, in a fork; an exception there fails the test here. It must not call ``skip``."""

    @functools.wraps(test)
    def forked(*arguments: Any, **fixtures: Any) -> None:
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _run(test, arguments, fixtures, writer)
        os.close(writer)
        try:
            with open(reader, "rb") as file:
                report = file.read()
        except BaseException:  # the time limit of the test
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            raise AssertionError(report.decode(errors="replace") or f"the process of the test ended with {code}")

    return forked


def _run(test: Callable[..., Any], arguments: tuple[Any, ...], fixtures: dict[str, Any], writer: int) -> None:
    """Run the test and end this process."""
    gc.freeze()
    code = 1
    try:
        answer = test(*arguments, **fixtures)
        if inspect.iscoroutine(answer):
            asyncio.run(answer)
        code = 0
    except BaseException:  # the fork must not run the rest of the suite
        os.write(writer, traceback.format_exc().encode(errors="replace"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
