"""An operator's commands on a real stack: keys, projects, limits, everybody's sandboxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "bash")


def holdfast(stack: Stack, *words: str, key: str = "", status: int = 0) -> str:
    """Standard output of one command; of one that fails, its standard error."""
    environment = {**os.environ, "HOLDFAST_URL": stack.url, "HOLDFAST_API_KEY": key or stack.key}
    done = subprocess.run([sys.executable, "-m", "holdfast.cli", *words], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (words, done.stdout, done.stderr)
    return (done.stderr if status else done.stdout).strip()


def test_keys_projects_limits_and_everybodys_sandboxes(stack: Stack) -> None:
    assert holdfast(stack, "project", "create", "cli-lab", "--member", "ada") == "cli-lab"
    assert holdfast(stack, "project", "members", "cli-lab", "--add", "bob") == "ada\nbob"
    key = holdfast(
        stack, "key", "create", "--owner", "ada", "--project", "cli-lab", "--scopes", "read,create,exec,files", "--expires", "30d"
    )
    assert key.startswith("hfk_"), "the key alone is on standard output"
    assert key not in holdfast(stack, "key", "list")
    (row,) = json.loads(holdfast(stack, "key", "list", "--owner", "ada", "--json"))
    assert (row["project"], row["scopes"], row["valid"]) == ("cli-lab", ["read", "create", "exec", "files"], True)
    holdfast(stack, "limits", "project:cli-lab", "--set", "sandboxes=1", "--set", "creates_per_minute=60")
    sandbox = holdfast(stack, "create", "host", "--name", "of-ada", key=key)
    try:
        assert holdfast(stack, "exec", sandbox, "hostname", key=key) == "of-ada"
        assert "of-ada" not in holdfast(stack, "ps")
        everybody = [line.split()[:3] for line in holdfast(stack, "ps", "--all-owners").splitlines()]
        assert ["ada", "cli-lab", "of-ada"] in everybody
        held = [line.split()[:4] for line in holdfast(stack, "limits", key=key).splitlines()]
        assert ["project:cli-lab", "sandboxes", "1", "1"] in held
        refused = holdfast(stack, "create", "host", "--ready-timeout", "3", key=key, status=125)
        assert "holdfast: waiting: with this sandbox the project cli-lab would have 2 sandboxes, and its quota is 1 sandboxes" in refused
        assert "scope" in holdfast(stack, "key", "list", key=key, status=125)
        assert "in_use" in holdfast(stack, "--json", "project", "delete", "cli-lab", status=125)
    finally:
        assert holdfast(stack, "rm", "--owner", "ada", "--project", "cli-lab") == "of-ada"
    rotated = holdfast(stack, "key", "rotate", row["key_id"])
    assert "key_invalid" in holdfast(stack, "--json", "ps", key=key, status=125)
    assert holdfast(stack, "ps", "-q", key=rotated) == ""
    (latest,) = json.loads(holdfast(stack, "key", "list", "--owner", "ada", "--json"))
    assert holdfast(stack, "key", "revoke", latest["key_id"]) == latest["key_id"]
    assert "key_invalid" in holdfast(stack, "--json", "ps", key=rotated, status=125)
    assert holdfast(stack, "project", "delete", "cli-lab") == "cli-lab"
    assert "unsupported" in holdfast(stack, "--json", "audit", status=125), "this stack keeps no audit log"


@pytest.mark.parametrize("words", [("key", "create"), ("limits", "--set", "sandboxes=1"), ("limits", "owner:x", "--set", "sandboxes=many")])
def test_wrong_commands_say_what_to_write(stack: Stack, words: tuple[str, ...]) -> None:
    holdfast(stack, *words, status=2)
