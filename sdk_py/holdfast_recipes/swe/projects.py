"""The libraries that tasks are made from: pure Python, tests in the source distribution, a suite of seconds (E1).

Owns the list of releases with the SHA-256 of their bytes, the module and tests of each target, and fetching them with pip when tasks are
made. No part of them is stored in this repository. Two are held out. One of the others is not used with images whose Python contains it.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class FetchError(Exception):
    """pip could not download a release, or got other bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """A module to mutate and the test files that test it, as paths in the distribution. ``without`` names, as pytest's ``-k`` takes them,
    tests that take seconds."""

    module: str
    tests: tuple[str, ...]
    without: str = ""


@dataclass(frozen=True, slots=True)
class Project:
    """A release of a library. ``source`` is what goes on the import path; ``licence`` is the one it states."""

    name: str
    version: str
    sha256: str
    licence: str
    targets: tuple[Target, ...]
    source: str = "."
    split: str = "train"

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def _targets(module: str, tests: str, *names: str) -> tuple[Target, ...]:
    return tuple(Target(module.format(name), (tests.format(name),)) for name in names)


PROJECTS: tuple[Project, ...] = (
    Project(
        "inflection",
        "0.5.1",
        "1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417",
        "MIT",
        (Target("inflection/__init__.py", ("test_inflection.py",)),),
    ),
    Project(
        "toolz",
        "1.2.0",
        "9667a038e9d6ecba37995e26cb2f59ec6420b6ad8dd9677de59db9b956b08490",
        "BSD-3-Clause",
        _targets("toolz/{}.py", "toolz/tests/test_{}.py", "itertoolz", "dicttoolz", "functoolz"),
    ),
    Project(
        "boltons",
        "26.2.0",
        "d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c",
        "BSD-3-Clause",
        _targets(
            "boltons/{}.py", "tests/test_{}.py", "iterutils", "strutils", "dictutils", "setutils", "mathutils", "listutils", "cacheutils"
        ),
    ),
    Project(
        "more-itertools",
        "11.2.1",
        "cbf08fd0af284dc69718b9b76a8e6203df624d70209ea511e4219d350c856f63",
        "MIT",
        (
            Target(
                "more_itertools/recipes.py",
                ("tests/test_recipes.py",),
                "PrimeFunctionTests or test_large or test_vs_statistics_median or test_cross_check or Random",
            ),
        ),
    ),
    Project(
        "webcolors",
        "25.10.0",
        "62abae86504f66d0f6364c2a8520de4a0c47b80c03fc3a5f1815fedbef7c19bf",
        "BSD-3-Clause",
        (
            Target("src/webcolors/_normalization.py", ("tests/test_normalization.py",)),
            Target("src/webcolors/_conversion.py", ("tests/test_conversion.py",)),
            Target("src/webcolors/_html5.py", ("tests/test_html5.py",)),
        ),
        source="src",
    ),
    Project(
        "jsonpointer",
        "3.12",
        "7a3dcc11b64053eaa9c549e85e413f8d40a075215f793a331bed9182a14251ae",
        "BSD-3-Clause",
        (Target("jsonpointer.py", ("tests.py",), "CommandLineTests"),),
    ),
    Project(
        "funcy",
        "2.1",
        "8979feb3de7120afd1d00e5a8eae810c1942e4bfbc91697151e9ee1e49f79284",
        "BSD-3-Clause",
        _targets("funcy/{}.py", "tests/test_{}.py", "calc", "flow", "strings", "decorators", "debug", "objects"),
    ),
    Project(
        "parse",
        "1.22.4",
        "706d458feed5a81b02768d3156e8070baf6cee7d150a3a3c0cd43101a875c3b5",
        "MIT",
        (Target("parse/__init__.py", ("tests",)),),
        split="held_out",
    ),
    Project(
        "semver",
        "3.1.1",
        "149b26cabada6f63212f97e94505d21578cb1d280cf714827f328d5e70765fea",
        "BSD-3-Clause",
        (Target("src/semver/version.py", ("tests",)),),
        source="src",
        split="held_out",
    ),
)

TEST_RUNNER: tuple[str, ...] = (
    "pytest==8.3.5 --hash=sha256:c69214aa47deac29fad6c2a4f590b9c4a9fdb16a403176fe154b79c0b4d4d820",
    "pluggy==1.5.0 --hash=sha256:44e1ad92c8ca002de6377e165f3e0f1be63266ab4d554740532335b9d75ea669",
    "iniconfig==2.0.0 --hash=sha256:b6a85871a79d2e3b22d2d1b94ac2824226a63c6b741c88f7ae975f18b6778374",
    "packaging==24.2 --hash=sha256:09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759",
)
"""pytest and what it imports: wheels, for images that have none. The last release that needs no highlighter."""


def project(name: str) -> Project:
    """The project of that name. Raises ValueError."""
    found = next((each for each in PROJECTS if each.name == name), None)
    if found is None:
        raise ValueError(f"no project {name!r}; there are {', '.join(each.name for each in PROJECTS)}")
    return found


def sdist(path: Path, module: str, tests: tuple[str, ...], source: str = ".") -> Project:
    """A project of a file of one's own, for one module. Raises OSError."""
    name, _, version = path.name.removesuffix(".tar.gz").removesuffix(".tgz").rpartition("-")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Project(name or path.name, version or "0", digest, "unknown", (Target(module, tests),), source)


async def fetch(each: Project, folder: Path) -> Path:
    """The source distribution, downloaded unless the folder has it. Raises FetchError."""
    if (found := _with_digest(folder, each.sha256, "*.t*gz")) is None:
        await _download([each.requirement], folder, "--no-binary", ":all:")
        found = _with_digest(folder, each.sha256, "*.t*gz")
    if found is None:
        raise FetchError(f"pip has put no {each.name} {each.version} into {folder}")
    return found


async def fetch_test_runner(folder: Path) -> list[Path]:
    """The wheels of pytest, downloaded unless the folder has them. Raises FetchError."""
    digests = [line.rpartition(":")[2] for line in TEST_RUNNER]
    if any(_with_digest(folder, digest, "*.whl") is None for digest in digests):
        await _download(TEST_RUNNER, folder, "--only-binary", ":all:")
    found = [path for digest in digests if (path := _with_digest(folder, digest, "*.whl")) is not None]
    if len(found) < len(digests):
        raise FetchError(f"pip has not put all of pytest into {folder}")
    return found


async def _download(requirements: Sequence[str], folder: Path, *options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / f"{hashlib.sha256(repr(requirements).encode()).hexdigest()[:12]}.txt"
    listed.write_text("".join(f"{line}\n" for line in requirements))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += [*options, "--require-hashes", "--dest", str(folder), "--requirement", str(listed)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    _, stderr = await process.communicate()
    if process.returncode != 0:
        names = ", ".join(line.split()[0] for line in requirements)
        raise FetchError(f"pip could not download {names}:\n{stderr.decode()[-1000:].strip()}")


def _with_digest(folder: Path, sha256: str, pattern: str) -> Path | None:
    return next((path for path in folder.glob(pattern) if hashlib.sha256(path.read_bytes()).hexdigest() == sha256), None)
