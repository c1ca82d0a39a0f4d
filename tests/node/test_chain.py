"""Isolation, users and limits of commands that the real agent runs, through gateway and SDK."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from holdfast import InvalidArgumentError, SandboxClient

from tests.node.harness import REPOSITORY
from tests.node.leftovers import first_process
from tests.node.ociimages import directory, file, oci_layout, symlink, tar
from tests.package.roots import debian
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = requires("namespaces", "redis")


def test_every_attempt_of_the_probe_fails_under_the_real_agent(stack: Stack) -> None:
    probe = (REPOSITORY / "tests/node/probe.py").read_bytes()
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", ready_timeout_s=60) as sandbox:
        alone = sandbox.exec(["/usr/bin/python3", "-"], input=probe, timeout=120)
        assert alone.exit_code == 0, alone.stderr
        results = json.loads(alone.stdout)
        assert len(results) >= 70
        assert {name: result for name, result in results.items() if result is not None} == {}
        sandbox.files.write("/tmp/probe.py", probe)
        within = sandbox.shell().run("/usr/bin/python3 /tmp/probe.py < /dev/null", timeout=120)
        results_within = json.loads(within.stdout)
        assert results_within.keys() == results.keys()
        seen = {name: result for name, result in results_within.items() if result is not None}
        assert seen.keys() <= {"other processes"}, seen  # the shell may be visible as well


@requires("cgroups")
def test_a_session_survives_a_command_out_of_memory(stack: Stack) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="128Mi", ready_timeout_s=60) as sandbox:
        shell = sandbox.shell()
        shell.run("export KEPT=yes")
        eater = "python3 -c 'x = [b\"1\" * (1 << 20) for _ in range(2000)]'"
        assert sandbox.exec(f"{eater}; echo $?").stdout.split()[-1:] in (["137"], [])
        assert shell.run(f"{eater}").exit_code == 137
        assert shell.run("echo $KEPT").stdout == "yes\n"


def test_the_working_directory_of_an_image_is_created(stack: Stack, tmp_path: Path) -> None:
    layout = oci_layout(tmp_path / "layout", [tar([directory("etc")])], {"WorkingDir": "/made/here", "User": "4000:5000"})
    with SandboxClient(stack.url, stack.key) as client:
        client.images.import_(layout, "with-a-directory")
        with client.create_sandbox("with-a-directory", ready_timeout_s=60) as sandbox:
            assert sandbox.files.stat("/made/here").is_dir
            assert sandbox.exec(["/no/such"]).exit_code == 127


@requires("root")
def test_commands_run_as_the_images_user_with_its_home(stack: Stack, tmp_path: Path) -> None:
    root = debian(tmp_path / "root")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nbob:x:1234:1234::/home/bob:/bin/sh\n")
    layer = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
    with SandboxClient(stack.url, stack.key) as client:
        for name, user, expected in (
            ("with-bob", "bob", "1234 /home/bob"),
            ("with-root", "", "0 /root"),
            ("with-home", "bob", "1234 /srv"),
        ):
            env = {"Env": ["HOME=/srv"]} if expected.endswith("srv") else {}
            client.images.import_(oci_layout(tmp_path / name, [layer], {"User": user, **env}), name)
            with client.create_sandbox(name, ready_timeout_s=60) as sandbox:
                assert sandbox.exec("echo $(id -u) $HOME").stdout == f"{expected}\n"
                assert sandbox.shell().run("echo $(id -u) $HOME").stdout == f"{expected}\n"


DIRECTORIES = {
    "none": ({}, [], "/workspace", "777 0:0"),
    "root": ({"WorkingDir": "/"}, [], "/", "755 0:0"),
    "root beside a workspace": ({"WorkingDir": "/"}, [directory("workspace")], "/", "755 0:0"),
    "an existing one": ({"WorkingDir": "/srv/app"}, [directory("srv/app", 0o705, uid=33, gid=33)], "/srv/app", "705 33:33"),
    "a missing one": ({"WorkingDir": "/not/yet", "User": "bob"}, [], "/not/yet", "755 0:0"),
    "a relative one": ({"WorkingDir": "app"}, [], "/app", "755 0:0"),
    "an existing workspace": ({}, [directory("workspace", 0o705, uid=33, gid=33)], "/workspace", "705 33:33"),
    "a workspace that is a link": ({}, [directory("srv/code", 0o755), symlink("workspace", "srv/code")], "/srv/code", "755 0:0"),
    "a workspace that is a link, configured": (
        {"WorkingDir": "/workspace"}, [directory("srv/code", 0o755), symlink("workspace", "srv/code")], "/srv/code", "755 0:0",
    ),
    "a workspace that is a file": ({}, [file("workspace", "")], "/", "755 0:0"),
}  # fmt: skip


@requires("root")
@pytest.mark.parametrize("case", DIRECTORIES)
def test_where_commands_start(stack: Stack, tmp_path: Path, layer: bytes, case: str) -> None:
    config, members, where, owned = DIRECTORIES[case]
    name = f"where-{list(DIRECTORIES).index(case)}"
    with SandboxClient(stack.url, stack.key) as client:
        client.images.import_(oci_layout(tmp_path / "layout", [layer, tar(members)], config), name)
        with client.create_sandbox(name, ready_timeout_s=60) as sandbox:
            output = sandbox.exec("pwd -P; stat -c '%a %u:%g' .").stdout
            assert output == f"{where}\n{owned}\n"
            assert sandbox.shell().run("pwd -P").stdout == f"{where}\n"
            assert sandbox.exec("pwd", cwd="usr" if where == "/" else None).ok
            assert sandbox.exec("pwd", cwd="/usr").stdout == "/usr\n"
            if where != "/workspace":
                assert sandbox.exec("ls -d /workspace").ok is any("workspace" in str(getattr(one, "name", one)) for one in members)


@requires("root")
def test_user_and_groups_of_commands(stack: Stack, tmp_path: Path, layer: bytes) -> None:
    """As with `docker run --user`: a user of the image has its groups, a number that the image does not know has root's group."""
    who = "echo $(id -u) $(id -g) $(id -G) $HOME"
    cases = {
        "bob": "1234 1234 1234 77 /home/bob", "1234": "1234 1234 1234 77 /home/bob", "bob:extra": "1234 77 77 /home/bob",
        "bob:0": "1234 0 0 /home/bob", "4321": "4321 0 0 /", "4321:77": "4321 77 77 /", "root": "0 0 0 88 /root",
        "root:extra": "0 77 77 /root",
    }  # fmt: skip
    with SandboxClient(stack.url, stack.key) as client:
        client.images.import_(oci_layout(tmp_path / "plain", [layer]), "who")
        with client.create_sandbox("who", ready_timeout_s=60) as sandbox:
            found = {user: sandbox.exec(who, user=user).stdout.strip() for user in cases}
            assert {user: set(text.split()) for user, text in found.items()} == {user: set(text.split()) for user, text in cases.items()}
            assert {user: text.split()[:2] for user, text in found.items()} == {user: text.split()[:2] for user, text in cases.items()}
            assert sandbox.exec("echo $HOME", user="bob", env={"HOME": "/own"}).stdout == "/own\n"
        client.images.import_(oci_layout(tmp_path / "home", [layer], {"User": "bob:extra", "Env": ["HOME=/srv"]}), "who-home")
        with client.create_sandbox("who-home", ready_timeout_s=60) as sandbox:
            assert sandbox.exec("echo $(id -u) $(id -g) $HOME").stdout == "1234 77 /srv\n"
            assert sandbox.exec("echo $(id -u) $HOME", user="root").stdout == "0 /srv\n"


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = debian(tmp_path_factory.mktemp("debian") / "root")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nbob:x:1234:1234::/home/bob:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nbob:x:1234:\nextra:x:77:bob\ndisk:x:88:root\n")
    return subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout


def test_a_user_that_no_sandbox_can_have_is_refused(stack: Stack) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", ready_timeout_s=60) as sandbox:
        for attempt in (lambda: sandbox.exec(["true"], user="99999999"), lambda: sandbox.terminal("sh", user="1:99999999")):
            with pytest.raises(InvalidArgumentError, match="99999999") as refused:
                attempt()
            assert (refused.value.code, bool(refused.value.hint)) == ("user_not_found", True)


@requires("cgroups", "root")
def test_a_one_off_command_is_in_the_control_group_of_commands(stack: Stack) -> None:
    """It starts in that group, so that the limits of commands apply to it and the agent keeps its reserve."""
    if not Path("/sys/fs/cgroup/cpu/tasks").exists():
        pytest.skip("only control groups of version 1 separate one-off commands from the agent, and this machine has none")
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", ready_timeout_s=60) as sandbox:
        agent = first_process(stack.data, sandbox.id)
        sandbox.shell().run("true")
        with sandbox.start(["sleep", "60"]) as process:
            commands: list[int] = []

            def executed() -> bool:
                commands[:] = [pid for pid in _tree(agent) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
                return bool(commands)

            until(executed, deadline_s=60, what="the command to execute its program")
            (command,) = commands
            for controller in ("cpu", "memory", "pids"):
                assert _group(command, controller) == f"{_group(agent, controller).removesuffix('/agent')}/commands"
            process.kill()


def _tree(agent: int) -> list[int]:
    threads = Path(f"/proc/{agent}/task").iterdir()
    return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]


def _group(pid: int, controller: str) -> str:
    rows = [row.split(":", 2) for row in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    return next(path for _, names, path in rows if controller in names.split(","))


def test_shared_memory_has_the_requested_size(stack: Stack) -> None:
    """As with docker's --shm-size; also in a spare that was created with the default size."""
    size = "df -B1 --output=size /dev/shm | tail -1"
    with SandboxClient(stack.url, stack.key) as client:
        with client.create_sandbox("host") as sandbox:
            assert int(sandbox.exec(size).stdout) == 64 << 20
        with client.create_sandbox("host", shm_size="128m") as sandbox:
            assert int(sandbox.exec(size).stdout) == 128 << 20
            assert sandbox.exec("head -c 100M /dev/zero > /dev/shm/a && stat -c %a /dev/shm").stdout == "1777\n"
        with pytest.raises(InvalidArgumentError, match="shm_size"):
            client.create_sandbox("host", shm_size="much")
