"""``holdfast-docker`` and docker's options of ``holdfast``: what is understood, what is refused by name, and that `run -d --rm` ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast import SandboxClient, SandboxLostError
from holdfast.cli.command_line import UsageError
from holdfast.cli.commands import named
from holdfast.cli.docker import COMMANDS, translated

from tests.support.stack import Stack
from tests.support.until import until

BIN = Path(sys.executable).parent
Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run -d --name a -w / --rm python:3.12 sleep 2h", "run --network=bridge -d --name a -w / --rm python:3.12 sleep 2h"),
        ("run --network none i c", "run --network=none i c"),
        ("run --rm --net=host -e A=1 i c --network x", "run --network=host --rm -e A=1 i c --network x"),
        ("container inspect a", "inspect --docker a"),
        ("ps -a", "list --docker -a"),
        ("container ls", "list --docker"),
        ("images -q", "image list -q"),
        ("image ls", "image list"),
        ("image inspect a", "image inspect a"),
        ("commit -m x a b", "commit --docker -m x a b"),
        ("container commit a b", "commit --docker a b"),
        ("container pause a", "pause a"),
        ("unpause a", "unpause a"),
        ("tag a b", "image tag --docker a b"),
        ("image tag a b", "image tag --docker a b"),
        ("rmi a", "image rm a"),
        ("load -i x", "image import -i x"),
        ("pull a", "image pull a"),
        ("build -t a .", "build -t a ."),
        ("buildx build -t a .", "build -t a ."),
        ("image build -t a .", "build -t a ."),
        ("kill a", "stop a"),
        ("version --format {{.Server.Version}}", "version --docker --format {{.Server.Version}}"),
        ("--version", "version --docker"),
        ("exec -w /x c ls", "exec -w /x c ls"),
    ],
)
def test_translates(typed: str, meant: str) -> None:
    assert translated(typed.split()) == meant.split()


@pytest.mark.parametrize("typed", ["compose up", "network create x", "volume ls", "start a", "container start a", "frobnicate"])
def test_refuses_by_name(typed: str) -> None:
    with pytest.raises(UsageError, match=f"docker {typed.split(maxsplit=1)[0]}") as refused:
        translated(typed.split())
    assert refused.value.hint


def test_every_answered_command_is_one_of_holdfast() -> None:
    for name in COMMANDS:
        assert named(translated([name]))[0] is not None, name


@pytest.fixture
def typed(stack: Stack) -> Typed:
    def run(*words: str, program: str = "holdfast") -> subprocess.CompletedProcess[str]:
        return subprocess.run([BIN / program, *words], capture_output=True, text=True, env=stack.environment(), timeout=120)

    return run


@pytest.fixture
def docker(typed: Typed) -> Typed:
    return lambda *words: typed(*words, program="holdfast-docker")


def listed(stack: Stack) -> set[str]:
    with SandboxClient(stack.url, stack.key) as client:
        return {info.sandbox_id for info in client.list_sandboxes()}


def test_a_detached_run_with_rm_ends_with_its_command_whatever_else_runs(stack: Stack, typed: Typed) -> None:
    name = typed("run", "-d", "--rm", "host", "sh", "-c", "until test -e /tmp/go; do sleep 0.02; done; exit 7").stdout.strip()
    assert name
    with SandboxClient(stack.url, stack.key) as client:
        sandbox = client.get_sandbox(name)
        other = sandbox.start("sleep 600")
        sandbox.files.write("/tmp/go", b"")
        with pytest.raises(SandboxLostError) as ended:
            other.wait(60)
        assert ended.value.reason == "finished"
        assert not ended.value.is_infrastructure
    until(lambda: name not in listed(stack), deadline_s=60, what="the record to go, as with docker run --rm")
    late = typed("exec", name, "true")
    assert late.returncode == 125
    assert "command that the sandbox was created for has ended" in late.stderr


def test_a_detached_run_without_rm_stays(stack: Stack, typed: Typed) -> None:
    name = typed("run", "-d", "host", "true").stdout.strip()
    typed("logs", "-f", name)
    assert typed("exec", name, "echo", "there").stdout == "there\n"
    typed("rm", name)


def test_a_command_that_cannot_start_ends_it_too(stack: Stack, typed: Typed) -> None:
    result = typed("run", "-d", "--rm", "host", "no-such-program")
    assert result.returncode == 127
    until(lambda: result.stdout.strip() not in listed(stack), deadline_s=60, what="the sandbox to go")


def test_both_streams_in_one_place_keep_their_order(stack: Stack, typed: Typed) -> None:
    name = typed("create", "host").stdout.strip()
    words = [str(BIN / "holdfast"), "exec", name, "sh", "-c", "echo a; echo b >&2; echo c"]
    merged = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=stack.environment(), timeout=60)
    assert merged.stdout == "a\nb\nc\n"
    apart = typed(*words[1:])
    assert (apart.stdout, apart.stderr) == ("a\nc\n", "b\n")
    typed("rm", name)


def test_prints_docker_records(docker: Typed, typed: Typed) -> None:
    name = docker("run", "-d", "--name", "inspected", "--network", "none", "-m", "256m", "host", "sleep", "600").stdout.strip()
    assert name == "inspected"
    [record] = json.loads(docker("inspect", name).stdout)
    assert (record["Id"], record["State"]["Running"], record["HostConfig"]["Memory"]) == (name, True, 256 << 20)
    assert docker("inspect", "-f", "{{.State.Status}} {{.Config.Image}}", name).stdout == "running host\n"
    assert docker("ps", "--filter", "name=inspected", "--format", "table {{.Names}}\t{{.State}}").stdout.split() == [
        "NAMES",
        "STATE",
        name,
        "running",
    ]
    assert typed("inspect", "-f", "{{.status}}", name).stdout == "ready\n"
    [own] = json.loads(typed("inspect", name).stdout)
    assert "State" not in own
    assert docker("version", "--format", "{{.Server.Os}}").stdout == "linux\n"
    assert "Containers: " in docker("info").stdout
    assert docker("stop", "-t", "1", name).stdout == f"{name}\n"
    gone = docker("inspect", name)
    assert (gone.returncode, gone.stdout) == (1, "[]\n")


def test_images_are_inspected_and_not_pulled_where_that_is_refused(docker: Typed) -> None:
    [host] = json.loads(docker("image", "inspect", "host").stdout)
    assert host["RepoTags"] == ["host"]
    missing = docker("image", "inspect", "no-such-image")
    assert (missing.returncode, missing.stdout) == (1, "[]\n")
    assert "no image no-such-image" in docker("run", "--pull", "never", "--network", "none", "no-such-image", "true").stderr
    assert docker("run", "--rm", "--pull", "never", "--network", "none", "host", "true").returncode == 0


def test_wrong_formats_and_options_are_refused_before_any_request(docker: Typed) -> None:
    def refusal(*words: str) -> Any:
        result = docker(*words)
        assert result.returncode != 0
        return result.stderr

    assert "not understood" in refusal("ps", "--format", "{{range .}}")
    assert "must be one of none, bridge" in refusal("run", "--network", "host", "host", "true")
    assert "--cap-add" in refusal("run", "--cap-add", "ALL", "host", "true")
    began = time.monotonic()
    assert "holdfast image save" in refusal("build", "--push", ".")
    assert time.monotonic() - began < 60
