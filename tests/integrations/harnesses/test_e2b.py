"""E2B's unmodified Python SDK, synchronous and asynchronous, in an environment of its own. What it does is in ``tests/e2b/programs``.

E2B's own tests run by ``make test-facade``, which needs a clone of its repository and an image of Debian's packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast import SandboxClient

PROGRAMS = Path(__file__).resolve().parents[2] / "e2b" / "programs"
ACCOUNT = "id -u user >/dev/null 2>&1 || useradd --create-home --user-group --shell /bin/bash user"


@pytest.fixture(scope="module", autouse=True)
def template() -> None:
    """The template ``base``: the machine's own system with the account that E2B's templates have."""
    with SandboxClient() as client, client.create_sandbox("host") as sandbox:
        sandbox.exec(ACCOUNT).check()
        sandbox.snapshot("base")


@pytest.mark.parametrize("program", ["sync", "asynchronous", "interactive"])
def test_the_sdk(program: str) -> None:
    url = os.environ["HOLDFAST_URL"]
    settings = {"E2B_API_URL": f"{url}/e2b", "E2B_SANDBOX_URL": f"{url}/e2b", "E2B_API_KEY": os.environ["HOLDFAST_API_KEY"]}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "HOLDFAST_"))} | settings
    done = subprocess.run(
        [sys.executable, PROGRAMS / f"{program}.py"], env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
