"""Runs the tests that failed in the last run of pytest once more, one after another, and fails if one of them fails again.

Owns what continuous integration does about a test that failed while other workers loaded the machine. As with the runner of CPython's own
tests, a test that passes alone does not fail the run; its first failure stays in the output, and it is listed here as unstable. A run with
more than a few failures is not repeated. Called by ``.ci/run``, by the Python of the tests' environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_TOP = Path(__file__).resolve().parents[2]
_MOST = 5
"""With more failures than this the change is at fault, or the machine."""
_LONGEST_S = 900
"""A test that left a thread behind which waits for ever would keep pytest from ending."""
_SOME_FAILED = 1
"""Exit status of pytest. ``tests/conftest.py`` records it, because ``make`` gives a failed test and an aborted run the same one."""


def main(top: Path = _TOP, python: str = sys.executable) -> int:
    """The exit status: 0 if a few tests had failed and each of them passes now."""
    failed: list[str] = sorted(_recorded(top, "cache/lastfailed") or ())
    if _recorded(top, "holdfast/exitstatus") != _SOME_FAILED:  # all tests ran, and some failed
        print("not run again: the run was aborted, or there was none", file=sys.stderr)
        return 1
    if len(failed) > _MOST:
        print(f"not run again: {len(failed)} tests failed, more than {_MOST}", file=sys.stderr)
        return 1
    print(f"\n== {len(failed)} tests failed beside others and run again alone", *failed, sep="\n   ", flush=True)
    options = ["-q", "-p", "no:xdist", "--last-failed", "--last-failed-no-failures", "none"]
    try:
        code = subprocess.run([python, "-m", "pytest", *options], cwd=top, check=False, timeout=_LONGEST_S).returncode
    except subprocess.TimeoutExpired:
        print(f"\n== not finished after {_LONGEST_S} s", file=sys.stderr)
        return 1
    if code == 0:
        print("\n== unstable: failed beside others, passed alone; find out why", *failed, sep="\n   ", flush=True)
    return code


def _recorded(top: Path, name: str) -> Any:
    """What the last run of pytest wrote to its cache, None if it wrote nothing."""
    try:
        return json.loads((top / ".pytest_cache/v" / name).read_text())
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
