"""Builds a bundle from interpreter, libraries, loader, modules, agent and manifest.

Owns the layout (described in ``infra/decisions/0011``), stripping and the size budget. ``imports`` and ``libraries`` compute the contents.
The folder is created under a temporary name and renamed, so that an incomplete bundle is never visible. Called by ``__main__``.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from holdfast_wire import PROTOCOL_VERSION
from holdfast_wire.bundle import MOUNT

from . import compiling, manifest, store
from .imports import Module, closure
from .libraries import MissingLibraryError, libraries_of, loader

BUDGET_BYTES = 45 * 1024 * 1024
"""Limit of the unpacked size."""
TIME_S = 1_577_836_800
"""The modification time of every file: 2020-01-01, because some tools reject 0."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's name of an architecture → the name that images use."""
ENTRY = Path(__file__).with_name("entry.py")


class BuildError(Exception):
    """No bundle can be built from this interpreter, or it would be too large."""


class Bundle(NamedTuple):
    """A bundle that was built."""

    folder: Path
    manifest: dict[str, Any]


def build(output: Path) -> Bundle:
    """Build into ``output``; an existing bundle is replaced. Raises ``BuildError``."""
    output = output.absolute()
    if output.exists() and not (output / manifest.NAME).is_file() and any(output.iterdir()):
        raise BuildError(f"{output} exists and is not a bundle: it is left alone")
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        facts = _assemble(folder, strip=shutil.which("strip") is not None)
        made = manifest.write(folder, facts)
        if made["size_bytes"] > BUDGET_BYTES:
            largest = sorted(made["files"], key=lambda file: -int(file["size_bytes"]))[:8]
            listed = ", ".join(f"{file['path']} {file['size_bytes']}" for file in largest)
            raise BuildError(f"the bundle has {made['size_bytes']} bytes, its budget is {BUDGET_BYTES}; the largest: {listed}")
        manifest.settle(folder, TIME_S)
        if output.exists():
            shutil.rmtree(output)
        folder.rename(output)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Bundle(output, made)


def _assemble(folder: Path, *, strip: bool) -> dict[str, Any]:
    interpreter = Path(sys.executable).resolve()
    if sys.implementation.name != "cpython" or "t" in sys.abiflags:  # other folders, other code objects, other extensions
        raise BuildError("a bundle needs CPython with its global interpreter lock: name another interpreter")
    glibc = loader()
    if glibc is None:
        raise BuildError("a bundle needs an interpreter on glibc, linked dynamically")
    standard = f"{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}"
    modules = closure()
    extensions = [module for module in modules if module.is_extension]
    try:
        libraries = libraries_of([interpreter, *(module.file for module in extensions)], glibc)
    except (MissingLibraryError, OSError) as error:
        raise BuildError(str(error)) from None
    _copy(interpreter, folder / "bin/python3", strip=strip, executable=True)
    _copy(glibc, folder / "lib/ld.so", strip=strip, executable=True)
    for name, file in libraries.items():
        _copy(file, folder / "lib" / name, strip=strip)
    for module in extensions:
        _copy(module.file, folder / _place(module, standard), strip=strip)
    (folder / standard / "lib-dynload").mkdir(parents=True, exist_ok=True)  # the landmark of the platform's half
    _compile(folder, [module for module in modules if not module.is_extension], standard)
    store.write(folder, [(module.name, _place(module, standard)) for module in store.modules()])
    return {
        "agent_version": metadata.version("holdfast"),
        "protocol_version": PROTOCOL_VERSION,
        "architecture": _MACHINES.get(platform.machine(), platform.machine()),
        "python": platform.python_version(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "packages": {name: metadata.version(name) for name in ("msgpack", "websockets")},
        "libraries": ["ld.so", *libraries],
        "stripped": strip,
        "modules": [module.name for module in modules],
    }


def _place(module: Module, standard: str) -> str:
    parts = module.name.split(".")
    if module.is_extension:
        return f"{standard}/lib-dynload/{module.file.name}" if module.is_standard else "/".join(["agent", *parts[:-1], module.file.name])
    name = "/".join(parts) + ("/__init__" if module.is_package else "")
    return f"{standard if module.is_standard else 'agent'}/{name}.pyc"


def _copy(source: Path, target: Path, *, strip: bool, executable: bool = False) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if strip:
        subprocess.run(["strip", "--strip-unneeded", "--remove-section=.comment", str(target)], check=True, capture_output=True)
    target.chmod(0o755 if executable else 0o644)


def _compile(folder: Path, modules: list[Module], standard: str) -> None:
    jobs = [[f"{MOUNT}/agent/main.py", ENTRY.read_text(), 0, str(folder / "agent/main.pyc")]]
    for module in modules:
        place = _place(module, standard)
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        text = module.file.read_text(encoding="utf-8")
        ours = module.name.startswith(("session_agent", "holdfast_wire"))
        jobs.append([f"{MOUNT}/{place.removesuffix('c')}", text, 0 if ours else 1, str(target)])  # ours keeps its assertions
    program = [sys.executable, "-S", "-s", "-P", "-B", "-X", "no_debug_ranges", compiling.__file__]
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    subprocess.run(program, input=json.dumps(jobs).encode(), env=environment, cwd=os.sep, check=True)
