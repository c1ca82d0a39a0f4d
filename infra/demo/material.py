"""Gets the library that the episode repairs: two source distributions, by pip, when the demo runs.

Owns which library, which releases and what their bytes must be. more-itertools 9.0.0 has a bug that 9.1.0 fixed:
`split_after` with `maxsplit` yields an empty list after the last split. Nothing of it is kept in this repository.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

PROJECT = "more-itertools"
BROKEN = "9.0.0"
FIXED = "9.1.0"

# Of the source distributions on the package registry: the episode is about these bytes and no others.
_SHA256 = {
    BROKEN: "5a6257e40878ef0520b1803990e3e22303a41b5714006c32a3fd8304b26ea1ab",
    FIXED: "cabaa341ad0389ea83c17a94566a53ae4c9d07349861ecb14dc6d0345cf9ac5d",
}


class DemoError(Exception):
    """The demo itself cannot continue, as opposed to the service; `hint` is the remedy."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Material:
    """`source`: the release with the bug. `tests`: the test module of the release after it."""

    source: Path
    tests: bytes


def fetch(cache: Path) -> Material:
    """Download what is not in `cache` yet. Raises DemoError when the registry cannot be reached."""
    cache.mkdir(parents=True, exist_ok=True)
    source, successor = (_sdist(cache, version) for version in (BROKEN, FIXED))
    with tarfile.open(successor) as archive:
        member = archive.extractfile(f"{PROJECT}-{FIXED}/tests/test_more.py")
        assert member is not None
        return Material(source, member.read())


def _sdist(cache: Path, version: str) -> Path:
    path = cache / f"{PROJECT}-{version}.tar.gz"
    if path.exists() and _digest(path) == _SHA256[version]:
        return path
    requirement = cache / f"{version}.txt"
    requirement.write_text(f"{PROJECT}=={version} --hash=sha256:{_SHA256[version]}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += ["--no-binary", ":all:", "--require-hashes", "--dest", str(cache), "--requirement", str(requirement)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0 or not path.exists():
        raise DemoError(
            f"pip could not download {PROJECT} {version}:\n{result.stderr.strip()}",
            hint=f"the demo needs the package registry once; the downloaded files are kept in {cache}",
        )
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
