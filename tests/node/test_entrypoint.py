"""Entrypoints and limits of processes that a create requests, on the real stack."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import Any

import httpx
import pytest
from holdfast import InvalidArgumentError, Sandbox, SandboxClient

from tests.node.ociimages import oci_layout
from tests.package.roots import debian
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = requires("namespaces", "redis", "root")

SERVER = "echo started as $(id -u) in $(pwd) with $GIVEN $OWN \"$@\"; echo err >&2; touch /tmp/up; trap 'echo asked; exit 3' TERM; "
SERVER += "while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = debian(tmp_path_factory.mktemp("debian") / "root")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nbob:x:1234:1234::/home/bob:/bin/sh\n")
    return subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def images(stack: Stack, layer: bytes, tmp_path_factory: pytest.TempPathFactory) -> SandboxClient:
    settings: dict[str, dict[str, Any]] = {
        "both": {
            "Entrypoint": ["sh", "-c", SERVER, "sh"],
            "Cmd": ["a b", "c"],
            "User": "bob",
            "WorkingDir": "/srv",
            "Env": ["GIVEN=image"],
        },
        "command": {"Cmd": ["sh", "-c", "echo once; exit 5"]},
        "neither": {"Entrypoint": None, "Cmd": []},
        "missing": {"Entrypoint": ["/no/such/program"]},
    }
    client = SandboxClient(stack.url, stack.key)
    for name, config in settings.items():
        client.images.import_(oci_layout(tmp_path_factory.mktemp(name) / "layout", [layer], config), f"starts-{name}")
    return client


def test_the_entrypoint_runs_as_the_image_configures(images: SandboxClient, stack: Stack) -> None:
    with images.create_sandbox("starts-both", entrypoint=True, env={"OWN": "creator"}, ready_timeout_s=60) as sandbox:
        until(lambda: sandbox.files.exists("/tmp/up"), deadline_s=60, what="the entrypoint to be up")
        entrypoint = sandbox.follow("entrypoint")
        seen = b"".join(chunk.data for chunk in _first(entrypoint, 2))
        assert set(seen.decode().splitlines()) == {"started as 1234 in /srv with image creator a b c", "err"}
        sleeping = partial(sandbox.exec, "cat /proc/*/comm | grep -c '^sleep$'")  # none runs between two iterations of its loop
        until(lambda: sleeping().stdout.strip() == "1", deadline_s=60, what="its own sleep to be seen")
        entrypoint.detach()
        sandbox.exec(["sh", "-c", f"kill -TERM {entrypoint.pid}"]).check()
        result = sandbox.follow("entrypoint").wait()  # its whole output again
        assert (result.exit_code, result.stdout.splitlines()[-1], result.stderr) == (3, "asked", "err\n")
        assert sandbox.exec("echo lives on").stdout == "lives on\n"
        assert sandbox.follow("entrypoint").wait().stdout == result.stdout
        with httpx.Client(base_url=stack.url, headers={"X-API-Key": stack.key}) as rest:
            job = rest.get(f"/jobs/{sandbox.id}.entrypoint").raise_for_status().json()
        assert (job["status"], job["exit_code"], job["stdout"], job["stderr"]) == ("failed", 3, result.stdout, "err\n")


def _first(process: Any, lines: int) -> list[Any]:
    chunks = []
    for chunk in process:
        chunks.append(chunk)
        if b"".join(one.data for one in chunks).count(b"\n") >= lines:
            break
    return chunks


def test_no_entrypoint_is_started_without_a_request(images: SandboxClient) -> None:
    with images.create_sandbox("starts-both", ready_timeout_s=60) as sandbox:
        assert not sandbox.files.exists("/tmp/up")
        assert sandbox.exec("echo mine", command_id="entrypoint").stdout == "mine\n"


def test_an_image_with_only_a_command_that_has_ended(images: SandboxClient) -> None:
    with images.create_sandbox("starts-command", entrypoint=True, ready_timeout_s=60) as sandbox:
        result = sandbox.follow("entrypoint").wait()
        assert (result.exit_code, result.stdout) == (5, "once\n")


def test_a_create_may_give_another_entrypoint(images: SandboxClient) -> None:
    words = ["sh", "-c", 'echo "$0 $1" $(id -u) $(pwd)', "é x", "$HOME"]
    with images.create_sandbox("starts-both", entrypoint=words, ready_timeout_s=60) as sandbox:
        assert sandbox.follow("entrypoint").wait().stdout == "é x $HOME 1234 /srv\n"


def test_entrypoints_that_cannot_be_started(images: SandboxClient) -> None:
    with images.create_sandbox("starts-missing", entrypoint=True, ready_timeout_s=60) as sandbox:
        result = sandbox.follow("entrypoint").wait()
        assert (result.exit_code, "not found" in result.stderr) == (127, True)
        assert sandbox.exec("true").ok
    with pytest.raises(InvalidArgumentError, match="neither ENTRYPOINT nor CMD"):
        images.create_sandbox("starts-neither", entrypoint=True, ready_timeout_s=60)
    for wrong in ("nginx", [], [1], 5):
        with pytest.raises(InvalidArgumentError):
            images.create_sandbox("starts-both", entrypoint=wrong, ready_timeout_s=60)  # type: ignore[arg-type]


def test_rest_refuses_invalid_entrypoints_and_limits(images: SandboxClient, stack: Stack) -> None:
    bodies: list[dict[str, Any]] = [
        {"entrypoint": "nginx"}, {"entrypoint": []}, {"entrypoint": [""]}, {"entrypoint": ["a\0"]}, {"ulimits": {"files": 1}},
        {"ulimits": []},
        {"ulimits": {"nofile": [2, 1]}}, {"ulimits": {"nofile": "1"}}, {"ulimits": {"nofile": [1, 2, 3]}}, {"ulimits": {"nofile": -2}},
        {"ulimits": {"rttime": 5}},
    ]  # fmt: skip
    with httpx.Client(base_url=stack.url, headers={"X-API-Key": stack.key}) as rest:
        for body in bodies:
            answer = rest.post("/sandboxes", json={"image": "starts-both", **body})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument"), body


SHOW = "cat /proc/self/limits"
LIMITS: dict[str, int | tuple[int, int]] = {"nofile": (100, 200), "core": 0, "fsize": (1 << 20, -1), "nproc": 100}
EXPECTED = {
    "Max open files": ["100", "200"], "Max core file size": ["0", "0"], "Max file size": ["1048576", "unlimited"],
    "Max processes": ["100", "100"],
}  # fmt: skip


@pytest.mark.parametrize("user", [None, "bob"])
def test_limits_apply_to_every_kind_of_process(images: SandboxClient, user: str | None) -> None:
    def read(text: str) -> dict[str, list[str]]:
        rows = {row[:26].strip(): row[26:].split()[:2] for row in text.splitlines()}
        return {name: rows[name] for name in EXPECTED}

    def limits(sandbox: Sandbox) -> list[dict[str, list[str]]]:
        with sandbox.shell(user=user, shell="sh") as shell:
            outputs = [sandbox.exec(SHOW, user=user).stdout, shell.run(SHOW).stdout]
        outputs.append(sandbox.terminal(["sh", "-c", SHOW], user=user).wait().stdout.replace("\r", ""))
        return [read(output) for output in outputs]

    words = ["sh", "-c", SHOW]
    with images.create_sandbox("starts-command", ulimits=LIMITS, entrypoint=words, ready_timeout_s=60) as sandbox:
        assert limits(sandbox) == [EXPECTED] * 3
        assert read(sandbox.follow("entrypoint").wait().stdout) == EXPECTED
        assert sandbox.exec("ulimit -n 50; ulimit -n").stdout == "50\n"
        assert sandbox.exec("sleep 60", timeout=0.5).timed_out


def test_a_hard_limit_above_that_of_the_service_is_refused(images: SandboxClient) -> None:
    with images.create_sandbox("starts-command", ready_timeout_s=60) as sandbox:
        most = int(sandbox.exec("ulimit -Hn").stdout)
    with images.create_sandbox("starts-command", ulimits={"nofile": (512, most)}, ready_timeout_s=60) as sandbox:
        assert sandbox.exec("ulimit -Sn; ulimit -Hn").stdout.split() == ["512", str(most)]
    with pytest.raises(InvalidArgumentError, match=r"ulimits\.nofile"):
        images.create_sandbox("starts-command", ulimits={"nofile": (1024, 1 << 62)}, ready_timeout_s=60)
