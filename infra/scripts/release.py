"""Build a release from the commit that is checked out: everything up to the upload.

Owns the order: version and changelog in a clone, wheels and source archives, ``twine check``, checksums, their signature where a key is
given, and the notes. The working tree is not changed, and nothing is uploaded, tagged or pushed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
VERSION: Final = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)((a|b|rc)[0-9]+)?")
_VERSION_FILES: Final = ("sdk_py/holdfast/__init__.py", "sdk_py/holdfast_recipes/__init__.py")
_PACKAGES: Final = (".", "sdk_py/holdfast_recipes")
_VENDOR: Final = "gateway/faces/page/static/vendor"
_UNRELEASED: Final = "## Unreleased\n"
_TOOLS: Final = ("hatchling>=1.27", "twine>=6.1")


class ReleaseError(Exception):
    """Why no release was built."""


def next_version(text: str) -> str:
    """The version that the source announces: without ``.devN``."""
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise ReleaseError(f"{_VERSION_FILES[0]} has no __version__")
    return found[1].partition(".dev")[0]


def with_version(text: str, version: str) -> str:
    """A module with another ``__version__``."""
    changed, count = re.subn(r'^__version__ = "[^"]+"$', f'__version__ = "{version}"', text, flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError("a module must have one __version__")
    return changed


def released(changelog: str, version: str, day: str) -> tuple[str, str]:
    """The changelog with its unreleased part as that of ``version``, and that part alone, which is the notes."""
    if f"\n## {version} " in changelog:
        raise ReleaseError(f"the changelog already has a version {version}")
    before, found, rest = changelog.partition(_UNRELEASED)
    notes, following, older = rest.partition("\n## ")
    if not found or not notes.strip():
        raise ReleaseError("the changelog has no part 'Unreleased', or nothing in it")
    return f"{before}{_UNRELEASED}\n## {version} - {day}\n{notes}{following}{older}", notes.strip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="", help="default: what the source announces, without .dev")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="a folder VERSION is made in it (dist)")
    parser.add_argument("--key", default="", help="sign the checksums with this key of gpg")
    given = parser.parse_args()
    try:
        build(given.version, given.output, given.key)
    except ReleaseError as why:
        print(f"release: {why}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as why:
        print(f"release: {' '.join(map(str, why.cmd[:4]))} … failed with {why.returncode}", file=sys.stderr)
        return 1
    return 0


def build(version: str, output: Path, key: str) -> Path:
    """Build into a new folder, and return it. Raises ``ReleaseError``, ``subprocess.CalledProcessError``."""
    version = version or next_version((ROOT / _VERSION_FILES[0]).read_text())
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version such as 0.1.0 or 0.2.0rc1")
    if _output("git", "status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed")
    target = output / version
    if target.exists():
        raise ReleaseError(f"{target} exists: remove it, or choose another version")
    commit, moment = _output("git", "rev-parse", "HEAD"), _output("git", "log", "-1", "--format=%ct")
    day = datetime.fromtimestamp(int(moment), UTC).date().isoformat()
    with tempfile.TemporaryDirectory(prefix="holdfast-release-") as folder:
        clone, tools, made = Path(folder) / "source", Path(folder) / "tools", Path(folder) / "made"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
        notes = _prepare(clone, version, day)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", "install"]
        subprocess.run([*pip, "--target", str(tools), *_TOOLS], check=True)
        # The same commit gives the same bytes: archives take their times from the commit.
        environment = {**os.environ, "PYTHONPATH": str(tools), "SOURCE_DATE_EPOCH": moment}
        for package in _PACKAGES:
            command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(made)]
            subprocess.run(command, cwd=clone / package, env=environment, check=True, stdout=subprocess.DEVNULL)
        archives = sorted(path for path in made.iterdir())
        _check(archives, version)
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *archives], env=environment, check=True)
        (made / "NOTES.md").write_text(f"# Holdfast {version}\n\nCommit {commit}.\n\n{notes}")
        shutil.copy(clone / "CHANGELOG.md", made / "CHANGELOG.md")
        files = sorted(path.name for path in made.iterdir())
        sums = "".join(f"{hashlib.sha256((made / name).read_bytes()).hexdigest()}  {name}\n" for name in files)
        (made / "SHA256SUMS").write_text(sums)
        if key:
            subprocess.run(["gpg", "--batch", "--local-user", key, "--armor", "--detach-sign", made / "SHA256SUMS"], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, target)
    print(f"{sums}\n{target} has the release {version} of {commit[:12]}. What is left, in this order:")
    print(f"  the version and {target / 'CHANGELOG.md'} in a commit; git tag v{version}; twine upload {target}/*.whl {target}/*.tar.gz")
    print(f"  make images TAG={version} ARGS=--push")
    return target


def _prepare(clone: Path, version: str, day: str) -> str:
    """Set version and changelog in the clone; returns the notes."""
    for name in _VERSION_FILES:
        path = clone / name
        path.write_text(with_version(path.read_text(), version))
    changelog, notes = released((clone / "CHANGELOG.md").read_text(), version, day)
    (clone / "CHANGELOG.md").write_text(changelog)
    if not (ROOT / _VENDOR).is_dir():
        raise ReleaseError("the page has no terminal yet: infra/scripts/page brings it")
    shutil.copytree(ROOT / _VENDOR, clone / _VENDOR)
    return notes


def _check(archives: list[Path], version: str) -> None:
    """Whether everything was built that is to be uploaded."""
    names = {path.name for path in archives}
    wanted = {f"{name}-{version}{end}" for name in ("holdfast", "holdfast_recipes") for end in ("-py3-none-any.whl", ".tar.gz")}
    if names != wanted:
        raise ReleaseError(f"built {sorted(names)}, not {sorted(wanted)}")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
