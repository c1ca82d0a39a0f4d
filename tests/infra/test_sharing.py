"""How the suite goes on after a worker ended or hung, in a run of pytest with a few files of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_TOP = Path(__file__).resolve().parents[2]
_FILES, _TESTS = 8, 3
_CRASHES = """
def test_it():
    import os
    os._exit(3)
"""
_HANGS = """
import asyncio
import pytest

@pytest.mark.timeout(1)
def test_it():
    async def busy():  # a task that takes the exception of the time limit for its own
        while True:
            await asyncio.sleep(0)

    async def hang():
        while True:
            await asyncio.wait([asyncio.create_task(busy())], timeout=0)

    asyncio.run(hang())
"""
_CLEAN_UP_HANGS = """
import subprocess, threading
import pytest

@pytest.mark.timeout(1)
def test_it():
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE) as silent:
        reader = threading.Thread(target=silent.stdout.readline)
        reader.start()
        reader.join()
"""


@pytest.mark.parametrize("bad", [_CRASHES, _HANGS, _CLEAN_UP_HANGS], ids=["crash", "hang", "clean-up hangs"])
def test_a_worker_that_ends_or_hangs_fails_one_test_and_the_rest_runs(tmp_path: Path, bad: str) -> None:
    for number in range(_FILES):
        (tmp_path / f"test_{number:02}.py").write_text("".join(f"def test_{each}(): pass\n" for each in range(_TESTS)))
    with (tmp_path / f"test_{_FILES // 2:02}.py").open("a") as file:
        file.write(bad)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.support.sharing", "--rootdir", str(tmp_path), "-c", os.devnull]
    environment = {**os.environ, "PYTHONPATH": str(_TOP)}
    run = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=160, check=False)
    assert f"1 failed, {_FILES * _TESTS} passed" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 1
