"""`make fuzz`: parsers with randomly damaged input, then every property test of the tree with new seeds, for FUZZ_SECONDS (600).

Owns the rounds and prints how to repeat one. A round runs all tests that draw examples, the models of the store included,
with one seed and ten times the examples where a test does not say how many. `make fuzz FUZZ_SEED=7` runs the round of seed 7 and no
other; ARGS narrows it to a test. Called by the Makefile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

_PARSERS = 2
"""How many parsers `test_fuzz_agent_parsers` has; each one runs for its own share of the time."""


def main(arguments: list[str]) -> int:
    seconds = float(os.environ.get("FUZZ_SECONDS", "600"))
    given = os.environ.get("FUZZ_SEED", "")
    workers = os.environ.get("WORKERS", "2")
    end = time.monotonic() + seconds
    failed = []
    if not given and not arguments and _run(["tests/fuzz"], HOLDFAST_FUZZ_SECONDS=str(seconds / 5 / _PARSERS)):
        failed.append(
            "the parsers under damage: the assertion names HOLDFAST_FUZZ_SEED; set it, with HOLDFAST_FUZZ_SECONDS=0, to repeat it"
        )
    first = int(given or time.time_ns() & 0xFFFFFFFF)
    seed = first
    while seed == first or (not given and time.monotonic() < end):
        print(f"fuzz: seed {seed}, {max(0, end - time.monotonic()):.0f} s left", flush=True)
        if _run(["-n", workers, "-m", "hypothesis", f"--hypothesis-seed={seed}", *arguments], HOLDFAST_FUZZ="1"):
            failed.append(f'again: make fuzz FUZZ_SEED={seed} ARGS="the/file.py::the_test"')
        seed += 1
    print(f"fuzz: {seed - first} rounds, seeds {first} to {seed - 1}, {len(failed)} with failures", *failed, sep="\n  ")
    return 1 if failed else 0


def _run(arguments: list[str], **environment: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-o", "timeout=900", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
