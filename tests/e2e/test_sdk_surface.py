"""The public interface as users see it: the examples of the README and of the design, and all commands of the command line.

The examples run as separate programs that get only HOLDFAST_URL and HOLDFAST_API_KEY. Each command has its own tests in `tests/cli`;
here one user runs all of them.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = [requires("namespaces", "redis", "bash")]

TOP = Path(__file__).resolve().parents[2]

PRELUDE = """
ask = "import socket; socket.create_connection(('127.0.0.1', 8000))"
until_it_listens = f'until python3 -c "{ask}" 2>/dev/null; do sleep 0.02; done'
import pathlib
pathlib.Path("local").write_text("uploaded")
diff = "--- a/a\\n+++ b/a\\n@@ -1 +1 @@\\n-...\\n+patched\\n"
"""

SYNC = (
    PRELUDE
    + """
from holdfast import SandboxClient

with SandboxClient() as client:
    with client.create_sandbox("python:3.11-slim", cpu="2", memory="4Gi", env={}, labels={"run": "7"}, ready_timeout_s=120) as sandbox:
        shell = sandbox.shell()
        shell.run("cd /tmp && export N=41")
        result = shell.run("echo $((N + 1)); pwd >&2", timeout=30)
        assert (result.exit_code, result.stdout, result.stderr, result.stdout_bytes) == (0, "42\\n", "/tmp\\n", b"42\\n")
        assert 0 <= result.duration_s < 30 and (result.timed_out, result.truncated, result.cause) == (False, False, None)
        seen = b""
        shell.run("printf 'all:\\\\n\\\\techo made\\\\n' > Makefile")
        for chunk in shell.stream("command -v make >/dev/null && make -j2 || echo made"):
            seen += chunk.data
        assert b"made" in seen
        result = sandbox.exec(["python3", "-c", "print('hi')"], cwd="/tmp", env={"A": "1"}, input=b"", timeout=10)
        assert result.stdout == "hi\\n"
        assert sandbox.exec("echo $A", env={"A": "1"}).stdout == "1\\n"
        assert sandbox.exec("no-such-command-at-all").exit_code == 127
        with sandbox.start("cat") as process:
            process.write(b"x")
            process.close_stdin()
            assert process.wait().stdout == "x"
        with sandbox.start("sleep 60") as process:
            process.signal("TERM")
            assert process.wait().signal == "TERM"
        with sandbox.start("echo a; echo b") as process:
            assert b"".join(chunk.data for chunk in process) == b"a\\nb\\n"
        with sandbox.terminal("bash", rows=24, cols=80) as terminal:
            terminal.write("stty size; exit\\n")
            assert b"24 80" in b"".join(chunk.data for chunk in terminal)
        sandbox.files.write("/tmp/a", b"...\\n"), sandbox.files.read("/tmp/a"), sandbox.files.list("/tmp")
        sandbox.files.upload("local", "/tmp/remote")
        assert sandbox.files.read("/tmp/remote") == b"uploaded"
        assert sandbox.apply_patch(diff, cwd="/tmp").success
        assert sandbox.files.read("/tmp/a") == b"patched\\n"
        shell.run("python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &")
        shell.run(until_it_listens)
        with sandbox.tunnel(8000) as address:
            import urllib.request
            assert urllib.request.urlopen(f"http://{address}/a", timeout=10).read() == b"patched\\n"
    assert client.list_sandboxes({"run": "7"}) == []
print("as promised")
"""
)

ASYNC = (
    PRELUDE
    + """
import asyncio
from holdfast import AsyncSandboxClient

async def main():
    async with AsyncSandboxClient() as client:
        async with await client.create_sandbox("python:3.11-slim", memory="4Gi", env={}, labels={"run": "8"}) as sandbox:
            shell = await sandbox.shell()
            await shell.run("cd /tmp && export N=41")
            result = await shell.run("echo $((N + 1)); pwd >&2", timeout=30)
            assert (result.exit_code, result.stdout, result.stderr) == (0, "42\\n", "/tmp\\n")
            seen = b""
            async for chunk in shell.stream("echo made"):
                seen += chunk.data
            assert seen == b"made\\n"
            result = await sandbox.exec(["python3", "-c", "print('hi')"], cwd="/tmp", env={"A": "1"}, input=b"", timeout=10)
            assert result.stdout == "hi\\n"
            async with await sandbox.start("cat") as process:
                await process.write(b"x")
                await process.close_stdin()
                assert (await process.wait()).stdout == "x"
            async with await sandbox.terminal("bash", rows=24, cols=80) as terminal:
                await terminal.write("stty size; exit\\n")
                assert b"24 80" in b"".join([chunk.data async for chunk in terminal])
            await sandbox.files.write("/tmp/a", b"...\\n")
            await sandbox.files.upload("local", "/tmp/remote")
            assert await sandbox.files.read("/tmp/remote") == b"uploaded"
            assert {entry.name for entry in await sandbox.files.list("/tmp")} >= {"a", "remote"}
            assert (await sandbox.apply_patch(diff, cwd="/tmp")).success
            await shell.run("python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &")
            await shell.run(until_it_listens)
            async with await sandbox.tunnel(8000) as address:
                reader, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(b"GET /a HTTP/1.0\\r\\n\\r\\n")
                assert (await reader.read()).endswith(b"patched\\n")
                writer.close()
                await writer.wait_closed()
        assert await client.list_sandboxes({"run": "8"}) == []

asyncio.run(main())
print("as promised")
"""
)


def run_example(stack: Stack, folder: Path, code: str) -> str:
    """Run ``code`` as a user's own file and return its output."""
    file = folder / "example.py"
    file.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "default::ResourceWarning", str(file)],
        cwd=folder, env=stack.environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return done.stdout


def test_the_example_of_the_design(stack: Stack, tmp_path: Path) -> None:
    assert run_example(stack, tmp_path, SYNC) == "as promised\n"


def test_the_asynchronous_example(stack: Stack, tmp_path: Path) -> None:
    assert run_example(stack, tmp_path, ASYNC) == "as promised\n"


BRANCHES = "sandbox.branch("
"""In the block of the guide that needs root."""


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (TOP / page).read_text(), re.DOTALL)


@requires("root")
def test_the_guides_episode_of_thirty_turns_in_sixty_four_branches(stack: Stack, tmp_path: Path) -> None:
    (block,) = (block for block in python_blocks("sdk_py/README.md") if BRANCHES in block)
    assert run_example(stack, tmp_path, block).split() == ["64", "30", "20"]


@pytest.mark.parametrize(
    ("page", "expected"),
    [("README.md", [["0", "42", "/tmp"]]), ("sdk_py/README.md", [["0", "42", "/tmp", "a", "b", "c", "42"], ["50"], ["deleted", "caller"]])],
)
def test_every_python_block_of_the_pages_runs(stack: Stack, tmp_path: Path, page: str, expected: list[list[str]]) -> None:
    blocks = [block for block in python_blocks(page) if BRANCHES not in block]
    for block, output in zip(blocks, expected, strict=True):
        assert run_example(stack, tmp_path, textwrap.dedent(block)).split() == output


# The command line ----------------------------------------------------------------------------------------------------


class Cli:
    """`holdfast` as an installed program."""

    def __init__(self, stack: Stack) -> None:
        self.environment = {**stack.environment(), "TERM": "xterm"}
        self.program = shutil.which("holdfast", path=str(Path(sys.executable).parent)) or "holdfast"

    def __call__(self, *words: str, status: int = 0, **more: Any) -> str:
        done = subprocess.run([self.program, *words], env=self.environment, capture_output=True, text=True, timeout=120, **more)
        output: str = done.stdout
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return output

    def json(self, *words: str) -> Any:
        answer: Any = json.loads(self(*words))
        return answer


@pytest.fixture(scope="module")
def holdfast(stack: Stack) -> Cli:
    return Cli(stack)


@pytest.fixture(scope="module")
def box(holdfast: Cli) -> Iterator[str]:
    made = holdfast.json("create", "host", "--json", "--cpu", "1", "--memory", "512Mi", "-e", "WHO=cli", "-l", "surface=yes")
    assert (made["status"], made["labels"]) == ("ready", {"surface": "yes"})
    yield made["sandbox_id"]
    assert holdfast.json("rm", "--json", made["sandbox_id"]) == {"removed": [made["sandbox_id"]], "missing": []}
    assert holdfast.json("list", "--json", "-l", "surface=yes") == []


def test_list(holdfast: Cli, box: str) -> None:
    assert [one["sandbox_id"] for one in holdfast.json("list", "--json", "-l", "surface=yes")] == [box]
    assert holdfast("list", "-q", "-l", "surface=yes") == f"{box}\n"
    assert box in holdfast("list")


def test_exec(holdfast: Cli, box: str) -> None:
    assert holdfast("exec", box, "--", "echo", "a  b") == "a  b\n"
    assert holdfast("exec", box, "-c", "echo $WHO; exit 7", status=7) == "cli\n"
    assert holdfast("exec", box, "-i", "--", "wc", "-c", input="12345") == "5\n"
    assert holdfast("exec", box, "--", "no-such-program", status=127) == ""
    assert holdfast("exec", box, "--timeout", "0.2", "--", "sleep", "60", status=124) == ""
    result = holdfast.json("exec", box, "--json", "-c", "echo out; echo err >&2; true")
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("out\n", "err\n", 0)


def test_cp_both_ways(holdfast: Cli, box: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(bytes(range(256)) * 5000)
    (tree / "run").write_text("#!/bin/sh\necho ran\n")
    (tree / "run").chmod(0o755)
    assert holdfast.json("cp", "--json", str(tree), f"{box}:/tmp/tree")["entries"] >= 3
    assert holdfast("exec", box, "--", "/tmp/tree/run") == "ran\n"
    holdfast("cp", f"{box}:/tmp/tree", str(tmp_path / "back"))
    assert (tmp_path / "back" / "deep" / "file").read_bytes() == (tree / "deep" / "file").read_bytes()
    assert os.access(tmp_path / "back" / "run", os.X_OK)
    holdfast("cp", str(tree / "run"), f"{box}:/tmp/one")
    holdfast("cp", f"{box}:/tmp/one", str(tmp_path / "one"))
    assert (tmp_path / "one").read_text() == (tree / "run").read_text()
    holdfast("cp", f"{box}:/no/such", str(tmp_path / "x"), status=125)


def test_shell_on_a_terminal(holdfast: Cli, box: str) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [holdfast.program, "shell", box], env=holdfast.environment, stdin=child, stdout=child, stderr=child, start_new_session=True
    )
    os.close(child)
    try:
        type_line(parent, b"", until=rb"[#$] ")  # keys typed before the prompt are discarded, as by ssh
        type_line(parent, b"export TYPED=1; cd /usr\r", until=rb"[#$] ")
        type_line(parent, b"echo [$TYPED:$WHO:$PWD:$(tty)]\r", until=rb"\[1:cli:/usr:/dev/pts/\d+\]")
        # printed by the program to be interrupted: a Ctrl-C that arrives between bash reading a line and running it may be lost
        type_line(parent, b"sh -c 'echo a\"\"sleep; exec sleep 600'\r", until=rb"asleep\r")
        type_line(parent, b"\x03", until=rb"\^C")
        type_line(parent, b"exit 5\r", until=rb"exit")
        assert process.wait(60) == 5
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def type_line(terminal: int, keys: bytes, until: bytes | None = None) -> None:
    """Type ``keys``, and read until ``until`` appears."""
    os.write(terminal, keys)
    seen, end = b"", time.monotonic() + 60
    while until is not None and not re.search(until, seen):
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)


def test_an_image_from_a_root_directory(holdfast: Cli, tmp_path: Path) -> None:
    root = tmp_path / "root"
    minimal_root(root)
    assert holdfast.json("image", "import", "--json", str(root), "surface/minimal:1")["name"] == "surface/minimal:1"
    assert "surface/minimal:1" in {one["name"] for one in holdfast.json("image", "list", "--json")}
    made = holdfast.json("create", "--json", "surface/minimal:1")["sandbox_id"]
    try:
        assert (
            holdfast("exec", made, "-c", "echo $BASH_VERSION > /tmp/v; read x < /tmp/v; echo ${x:+here}; type python3", status=1)
            == "here\n"
        )
        assert set(os.listdir(root)) <= set(holdfast("exec", made, "--", "/bin/bash", "-c", "cd /; echo *").split())
        assert "sandboxes are using" in refused(holdfast, "image", "rm", "surface/minimal:1")
    finally:
        holdfast("rm", made)
    assert holdfast.json("image", "rm", "--json", "surface/minimal:1") == {"removed": ["surface/minimal:1"]}
    assert "surface/minimal:1" not in {one["name"] for one in holdfast.json("image", "list", "--json")}


def refused(holdfast: Cli, *words: str) -> str:
    done = subprocess.run([holdfast.program, *words], env=holdfast.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    return done.stderr


def minimal_root(root: Path) -> None:
    """bash and the libraries that it is linked with: no coreutils, no Python."""
    for name in ("bin", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/bash", root / "bin" / "bash")
    (root / "bin" / "sh").symlink_to("bash")
    for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


def test_doctor(holdfast: Cli) -> None:
    done = subprocess.run([holdfast.program, "doctor", "--json"], env=holdfast.environment, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    assert report["checks"]
    assert all({"name", "ok", "detail", "fix"} <= set(row) for row in report["checks"])
    assert (done.returncode == 0) is report["ok"]
    assert report["ok"] is all(row["ok"] for row in report["checks"] if row.get("required", True))


def test_rm_of_a_missing_sandbox(holdfast: Cli) -> None:
    assert holdfast.json("rm", "--json", "-f", "sb-never") == {"removed": [], "missing": ["sb-never"]}
    assert holdfast("rm", "sb-never", status=125) == ""
