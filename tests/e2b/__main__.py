"""``make test-facade``: E2B's own tests of its Python SDK, sync and async, against a stack here; prints a table by file.

``python -m tests.e2b CLONE`` takes a clone of github.com/e2b-dev/E2B, of which only the tests are used: the SDK is the one of
``infra/scripts/e2b_venv``. The sandboxes are of an image of Debian packages with the account that E2B's templates have, which is built in
build/e2b (root, debootstrap and a Debian mirror are needed). Exit status 1 if a test failed that is not in ``suite_reasons``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree

from holdfast import SandboxClient

from tests.e2b.conftest import DOMAIN, TEMPLATE, TOP, Facade, python
from tests.e2b.suite_reasons import reason_of
from tests.support.mirror import mirror
from tests.support.stack import Stack, running_stack

FOLDERS = ("sync/sandbox_sync", "async/sandbox_async", "sync/api_sync", "async/api_async")
_PACKAGES = "bash,ca-certificates,curl,git,iproute2,iputils-ping,procps,python3,sudo"
_ACCOUNT = (
    "useradd --create-home --user-group --shell /bin/bash user && echo 'user ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/user "
    "&& chmod 440 /etc/sudoers.d/user"
)
_LIMIT_S = 3600


def image_folder() -> Path:
    """The root file system of the template; made once, in some minutes."""
    folder = TOP / "build" / "e2b"
    root, done = folder / "root", folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", root, mirror()],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run(["chroot", root, "sh", "-c", _ACCOUNT], check=True)
        shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
        done.touch()
    return root


def run_suite(stack: Stack, clone: Path, words: list[str]) -> ElementTree.Element:
    """The results of E2B's tests."""
    with tempfile.TemporaryDirectory(prefix="e2b-suite-") as name:
        folder = Path(name)  # without the SDK of the clone beside the tests, which Python would take in place of the installed one
        shutil.copytree(clone / "packages/python-sdk/tests", folder / "tests")
        shutil.copy(clone / "packages/python-sdk/pytest.ini", folder / "pytest.ini")
        command = [str(python()), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60", "-n", "2"]
        command += [f"--junitxml={folder}/results.xml", *words, *(f"tests/{one}" for one in FOLDERS)]
        environment = Facade(stack).environment | {"HOME": name}
        log = TOP / "build" / "e2b" / "suite.log"
        with log.open("wb") as output:
            subprocess.run(command, cwd=folder, env=environment, check=False, stdout=output, stderr=subprocess.STDOUT, timeout=_LIMIT_S)
        return ElementTree.parse(folder / "results.xml").getroot()


def report(results: ElementTree.Element) -> int:
    """Print the table and the reasons; how many tests failed without a reason."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, list[str]] = defaultdict(list)
    unexplained: list[str] = []
    for case in results.iter("testcase"):
        module = (case.get("classname") or "").removeprefix("tests.")
        test = f"{module}::{case.get('name')}"
        outcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
            reason = reason_of(test)
            if reason:
                reasons[reason].append(test)
            else:
                unexplained.append(test)
        elif case.find("skipped") is not None:
            outcome = "skipped"
        rows[module][outcome] += 1
    print("| tests | passed | failed | skipped |\n|---|---|---|---|")
    for module in sorted(rows):
        print(f"| {module} | {rows[module]['passed']} | {rows[module]['failed']} | {rows[module]['skipped']} |")
    total = sum(rows.values(), Counter[str]())
    print(f"| all | {total['passed']} | {total['failed']} | {total['skipped']} |\n\n| failed | reason |\n|---|---|")
    for reason, tests in sorted(reasons.items()):
        print(f"| {len(tests)} | {reason} |")
    for test in unexplained:
        print(f"| 1 | **not explained**: {test} |")
    return len(unexplained)


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2b", description=__doc__)
    parser.add_argument("clone", type=Path, help="a clone of github.com/e2b-dev/E2B")
    parser.add_argument("words", nargs="*", help="further arguments of pytest")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "-C", arguments.clone, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    root, began = image_folder(), time.monotonic()
    with running_stack({"HOLDFAST_PREVIEW_DOMAIN": DOMAIN}) as stack:
        with SandboxClient(stack.url, stack.key) as client:
            client.images.import_(root, TEMPLATE)
        unexplained = report(run_suite(stack, arguments.clone, arguments.words))
    print(f"\nE2B's tests at {commit}, {time.monotonic() - began:.0f} s, {os.cpu_count()} processors")
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
