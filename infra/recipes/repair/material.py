"""Gets the library that is broken and repaired: one source distribution, by pip, when it is first needed.

Owns which release and what its bytes must be. toolz is pure Python and its distribution carries its tests, which are plain functions.
Nothing of it is kept in this repository.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

PROJECT, VERSION = "toolz", "1.0.0"
SHA256 = "2c86e3d9a04798ac556793bced838816296a2f085017664e4995cb40a1047a02"
MODULE, TESTS = "toolz/itertoolz.py", "toolz/tests/test_itertoolz.py"


class MaterialError(RuntimeError):
    """The library cannot be had."""


@dataclass(frozen=True, slots=True)
class Library:
    """The package's files by their path, with the module that is broken among them."""

    files: dict[str, bytes]

    @property
    def source(self) -> str:
        return self.files[MODULE].decode()


def fetch(cache: Path) -> Library:
    """Download what is not in ``cache`` yet. Raises MaterialError when the registry cannot be reached or gives other bytes."""
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{PROJECT}-{VERSION}.tar.gz"
    if not path.exists():
        wanted = cache / "toolz.txt"
        wanted.write_text(f"{PROJECT}=={VERSION} --hash=sha256:{SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
        command += ["--no-binary", ":all:", "--require-hashes", "--dest", str(cache), "--requirement", str(wanted)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0 or not path.exists():
            raise MaterialError(f"pip could not download {PROJECT} {VERSION}:\n{result.stderr.strip()}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise MaterialError(f"{path} is not the {PROJECT} {VERSION} that this was written for; delete it")
    files: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            name = member.name.partition("/")[2]
            needed = TESTS.rpartition("/")[0] not in name or name in (TESTS, f"{PROJECT}/tests/__init__.py")
            if member.isfile() and name.startswith(f"{PROJECT}/") and name.endswith(".py") and needed:
                content = archive.extractfile(member)
                assert content is not None
                files[name] = content.read()
    return Library(files)
