"""`python -m tests.docker`: runs cases by name and prints both sides, for work on single cases.

--case NAME (part of a name; may be repeated), --list, --all (only the table), --json FILE.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from tests.docker.cases import load_cases
from tests.docker.run import running
from tests.docker.table import describe, records


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docker")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="a case, or all cases whose name contains this")
    parser.add_argument("--all", action="store_true", help="every case; prints what differs")
    parser.add_argument("--list", action="store_true", help="the names")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--podman", action="store_true", help="compare with rootless podman, as an ordinary user (see podman.py)")
    options = parser.parse_args()
    cases = {name: case for name, case in load_cases().items() if options.all or any(part in name for part in options.case)}
    if options.list:
        print("\n".join(load_cases()))
        return 0
    if not cases:
        parser.error("no such case: --list shows their names")
    started = time.monotonic()
    with running(cases, options.workers, podman=options.podman) as futures:
        outcomes = {name: future.result() for name, future in futures.items()}
    for name, outcome in outcomes.items():
        if options.case or outcome.invalid or not outcome.equal:
            print(f"\n=== {name}: {'equal' if outcome.equal else 'DIFFERS'}{'; ' + outcome.invalid if outcome.invalid else ''}")
            print(outcome.report())
    print(f"\n{describe(outcomes)}\n{time.monotonic() - started:.0f} s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(records(outcomes), file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
