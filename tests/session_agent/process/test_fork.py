"""How a child process is started: by a stub, which reports failures, or by fork where no stub is possible."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.agent.output.pipes import waiting_bytes
from session_agent.agent.process import fork as forking
from session_agent.agent.process.crowding import Placement
from session_agent.agent.process.fork import Forker, Launch, Starting, Stdio
from session_agent.agent.process.privileges import CommandNamespace
from session_agent.agent.process.start_errors import CannotExecuteError
from session_agent.agent.process.stub import Call, Report, assemble, execs, supported
from tests.support.own_process import in_own_process

PATH = os.environ["PATH"]
LAUNCH = Launch("/", {"PATH": PATH})

pytestmark = pytest.mark.skipif(not supported(), reason="there are no stubs for this machine")


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "tasks", os.O_WRONLY | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def run(
    forker: Forker, argv: list[str], launch: Launch = LAUNCH, *, place: dict[int, int] | None = None
) -> tuple[int, bytes, Exception | None]:
    """Exit code, output, and the error of the start."""
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        pid, starting = forker.fork(argv, launch, Stdio(null, writer, writer), place=place)
    finally:
        os.close(writer)
        os.close(null)
    with open(reader, "rb") as file:
        output = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert starting is not None
    assert starting.read_report()
    starting.close()
    return code, output, starting.error()


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


@in_own_process
def test_a_stub_joins_its_control_group_and_becomes_the_command(tasks: int, tmp_path: Path) -> None:
    before = descriptors()
    code, output, error = run(
        Forker([tasks]), ["sh", "-c", 'pwd; echo $0 $#; echo "$A"; exit 3', "x", "y"], Launch("/tmp", {"PATH": PATH, "A": "é"})
    )
    assert (code, output, error) == (3, "/tmp\nx 1\né\n".encode(), None)
    assert (tmp_path / "tasks").read_text() == "0"
    assert descriptors() == before


def test_commands_with_the_same_descriptors_share_one_stub_image(tasks: int) -> None:
    forker = Forker([tasks], ulimits={"nofile": (64, 64)})
    forking._stub_image.cache_clear()
    for number in range(3):
        assert run(forker, ["sh", "-c", f"echo {number}; ulimit -n"])[:2] == (0, b"%d\n64\n" % number)
    assert forking._stub_image.cache_info()[:2] == (2, 1)
    held = os.open(os.devnull, os.O_RDONLY)  # takes the lowest free descriptor
    assert run(forker, ["sh", "-c", "echo other"])[:2] == (0, b"other\n")
    os.close(held)
    assert run(forker, ["sh", "-c", "echo again; exit 4"])[:2] == (4, b"again\n")
    assert run(forker, ["sh", "-c", "true"], Launch("/", {"PATH": "/nowhere:" * 100 + PATH}))[0] == 0
    assert forking._stub_image.cache_info().misses == 2  # an image with so long a PATH is not cached


def test_a_command_leads_a_session_and_inherits_nothing_from_the_agent(tasks: int) -> None:
    leak = os.dup(tasks)
    os.set_inheritable(leak, True)
    forker = Forker([tasks])
    forker.start()
    code, output, _ = run(
        forker, ["sh", "-c", "echo $$; cut -d' ' -f6 /proc/$$/stat; ls /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status"]
    )
    os.close(leak)
    pid, session, *rest = output.split()
    assert (code, pid) == (0, session)
    kept = sum(1 << number - 1 for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN)
    kept &= ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)  # signals ignored by the tests' parent process; an agent ignores none
    assert rest == [b"0", b"1", b"2", b"3", b"SigBlk:", b"0" * 16, b"SigIgn:", b"%016x" % kept]


def test_descriptors_get_the_requested_numbers(tasks: int) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"placed\n")
    os.close(writer)
    code, output, error = run(Forker([tasks]), ["sh", "-c", "cat <&9; cat <&8; ls /proc/self/fd"], place={9: reader, 8: reader})
    os.close(reader)
    assert (code, error) == (0, None)
    assert output.split() == [b"placed", b"0", b"1", b"2", b"3", b"8", b"9"]


@pytest.mark.parametrize("stub", [True, False], ids=["by a stub", "forked"])
@in_own_process
def test_placed_descriptors_may_exchange_their_numbers(tasks: int, stub: bool) -> None:
    with ExitStack() as files:
        one, two = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        for file, text in ((one, b"one"), (two, b"two")):
            file.write(text)
            file.seek(0)
        reader, writer = os.pipe()
        place = {one.fileno(): two.fileno(), two.fileno(): one.fileno()}
        before = descriptors()
        command = f"cat /proc/self/fd/{one.fileno()} /proc/self/fd/{two.fileno()}"
        pid, starting = Forker([tasks] if stub else []).fork(["sh", "-c", command], LAUNCH, Stdio(reader, writer, writer), place=place)
        if starting is not None:
            starting.close()
        assert descriptors() == before
        os.close(writer)
        with open(reader, "rb") as output:
            assert output.read() == b"twoone"
    assert os.waitpid(pid, 0)[1] == 0


@in_own_process
def test_a_child_that_may_open_fewer_descriptors_than_the_agent_has_open() -> None:
    forker = Forker(ulimits={"nofile": (64, 64)})
    forker._stubs = False
    reader, writer = os.pipe()
    held = [os.dup(reader) for _ in range(150)]
    place = dict.fromkeys(range(20, 24), reader)
    pid, _ = forker.fork(["sh", "-c", "ulimit -n"], LAUNCH, Stdio(reader, writer, writer), place=place)
    for descriptor in (writer, *held):
        os.close(descriptor)
    with open(reader, "rb") as output:
        assert output.read() == b"64\n"
    assert os.waitpid(pid, 0)[1] == 0


def test_low_descriptors_may_be_exchanged(tasks: int) -> None:
    pid, starting = Forker([tasks]).fork(["sh", "-c", "test -e /proc/self/fd/0 && test -e /proc/self/fd/2"], LAUNCH, Stdio(2, 0, 1))
    assert os.waitpid(pid, 0)[1] == 0
    assert starting is not None
    starting.close()


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [("no-such-program", 127, "command not found"), ("/no/such", 127, "command not found"), ("/etc/passwd", 126, "Permission denied"),
     ("BAD", 126, "the interpreter it names is missing"), ("TEXT", 126, "Exec format error"), ("denied", 126, "Permission denied")],
)  # fmt: skip
@in_own_process
def test_a_program_that_cannot_be_executed_is_reported(tasks: int, tmp_path: Path, program: str, code: int, message: str) -> None:
    (tmp_path / "bad").write_text("#!/no/such/interpreter\n")
    (tmp_path / "text").write_text("no program\n")
    (tmp_path / "denied").touch()
    for name in ("bad", "text"):
        (tmp_path / name).chmod(0o755)
    if program.isupper():
        program = str(tmp_path / program.lower())
    before = descriptors()
    status, _, error = run(Forker([tasks]), [program], Launch("/", {"PATH": f"/no/such:{tmp_path}:{PATH}"}))
    assert status == 127
    assert isinstance(error, CannotExecuteError)
    assert error.exit_code == code
    assert message in error.message
    assert descriptors() == before


def test_an_empty_program_name_is_not_found(tasks: int) -> None:
    with pytest.raises(CannotExecuteError, match="command not found") as refused:
        Forker([tasks]).fork(["", "a"], LAUNCH, Stdio(0, 1, 2))
    assert refused.value.exit_code == 127


@in_own_process
def test_errors_known_before_the_fork_are_raised_at_once(tasks: int) -> None:
    before = descriptors()
    for argv, launch, code in (
        (["true"], Launch("/no/such", LAUNCH.env), "cwd_not_found"),
        (["true"], Launch("/etc/passwd", LAUNCH.env), "cwd_not_found"),
        (["true", "x" * 200_000], LAUNCH, "arguments_too_long"),
        (["a\0b"], LAUNCH, "spawn_failed"),
    ):
        with pytest.raises(HoldfastError) as refused:
            Forker([tasks]).fork(argv, launch, Stdio(0, 1, 2))
        assert refused.value.code == code
    assert descriptors() == before


def test_a_failed_call_of_the_stub_is_reported(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "execs", lambda paths: [Call("ioctl", (0, 0, 0)), *execs(paths)])
    status, output, error = run(Forker([tasks]), ["echo", "ran"])
    assert (status, output) == (127, b"")
    assert isinstance(error, HoldfastError)
    assert (error.code, "ioctl" in error.message) == ("spawn_failed", True)


async def test_a_command_still_runs_when_the_sandbox_is_at_its_process_limit(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("commands", "rescue", "current", "max")]
    for file in files:
        file.touch()
    commands, rescue, *pids = [os.open(file, os.O_RDWR) for file in files]
    forker = Forker([commands], pids, rescue_fds=[rescue])
    for current, most, joins in (("5", "2048", True), ("2047", "2048", False), ("100", "max", True), ("50", "64", False)):
        for file, text in zip(files, ("", "", current, most), strict=True):
            file.write_text(text)
        assert run(forker, ["true"])[0] == 0
        assert [bool(file.read_text()) for file in files[:2]] == [joins, not joins]
    for descriptor in (commands, rescue, *pids):
        os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_a_command_runs_as_its_user(tasks: int) -> None:
    code, output, _ = run(Forker([tasks]), ["sh", "-c", "id -u; id -g; id -G"], Launch("/", LAUNCH.env, 65534, 65533, (65531, 65532)))
    assert (code, output.split()) == (0, [b"65534", b"65533", b"65533", b"65531", b"65532"])


@in_own_process
def test_if_no_file_in_memory_may_be_executed_the_command_is_forked(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forker = Forker([tasks])

    def refuse(*args: object, **options: object) -> int:
        raise PermissionError(errno.EACCES, "not here")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    before = descriptors()
    for _ in range(2):
        pid, starting = forker.fork(["sh", "-c", "exit 4"], LAUNCH, Stdio(0, 1, 2))
        assert starting is None
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    assert descriptors() == before


def test_if_no_file_in_memory_may_be_made_executable_the_command_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with vm.memfd_noexec=2 (memfd_create(2))."""

    def refuse(*args: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "memfd_create", refuse)
    forker = Forker(ulimits={"nofile": (64, 64)})
    before = descriptors()
    for _ in range(2):
        pid, starting = forker.fork(["sh", "-c", "test $(ulimit -n) = 64 && exit 4"], LAUNCH, Stdio(0, 1, 2))
        assert starting is None
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    with pytest.raises(HoldfastError, match="my-program") as refused:
        Forker(namespace=CommandNamespace(0, 1)).fork(["my-program"], LAUNCH, Stdio(0, 1, 2))
    assert "vm.memfd_noexec" in refused.value.hint
    assert descriptors() == before


def test_at_the_process_limit_no_other_way_is_tried(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "no room")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with pytest.raises(HoldfastError) as refused:
        Forker([tasks]).fork(["true"], LAUNCH, Stdio(0, 1, 2))
    assert refused.value.code == "spawn_failed"


def test_without_groups_there_are_no_stubs() -> None:
    pid, starting = Forker().fork(["true"], LAUNCH, Stdio(0, 1, 2))
    assert starting is None
    os.waitpid(pid, 0)


def test_a_start_is_over_when_the_stub_closes_its_pipe() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    calls = execs([b"/a/x", b"/b/x"])
    starting = Starting(reader, calls, "x", LAUNCH)
    assert not starting.read_report()
    os.write(writer, record(0, errno.EACCES) + record(1, errno.ENOENT))
    assert not starting.read_report()
    os.close(writer)
    assert starting.read_report()
    error = starting.error()
    assert isinstance(error, CannotExecuteError)
    assert error.exit_code == 126, "the first error other than a missing file, as in execvp"
    starting.close()


def test_a_report_that_another_process_writes_is_read_in_parts() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    flood = bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20))
    os.write(writer, flood)
    starting = Starting(reader, execs([b"/a/x"]), "x", LAUNCH)
    assert not starting.read_report()
    assert waiting_bytes(reader) > len(flood) / 2
    starting.close()
    os.close(writer)


@pytest.mark.parametrize(
    "written", [b"\xff" * 4096, b"junk", struct.pack("<qQ", -2, 0), struct.pack("<qQ", 1 << 62, 0x400180), struct.pack("<qQ", -5, 1 << 63)]
)
def test_what_no_stub_writes_is_ignored(written: bytes) -> None:
    report = Report(execs([b"/bin/true"]))
    report.feed(written)
    assert report.failed is None


def record(index: int, number: int) -> bytes:
    return struct.pack("<qQ", -number, 0x400180 + 48 * index)


def test_failures_of_inessential_calls_are_ignored() -> None:
    report = Report([Call("write", (5, b"0", 1), essential=False), *execs([b"/bin/true"])])
    report.feed(record(0, errno.EACCES))
    assert report.failed is None


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_images_of_both_machines_have_the_layout_that_the_kernel_requires(machine: str) -> None:
    calls = [Call("write", (70, b"0", 1), essential=False), *execs([b"/usr/bin/true", b"/bin/true"])]
    image = assemble(calls, 71, machine)
    magic, kind, number, _, entry = struct.unpack_from("<4s12xHHIQ", image)
    assert (magic, kind, number) == (b"\x7fELF", 2, {"x86_64": 62, "aarch64": 183}[machine])
    assert struct.unpack_from("<IIQQQQQ", image, 64)[:6] == (1, 5, 0, 0x400000, 0x400000, len(image))
    assert entry == 0x400000 + 64 + 112
    rows = [struct.unpack_from("<QqqqqQ", image, 0x180 + 48 * index) for index in range(3)]
    assert [row[5] for row in rows] == [0x400180 + 48, 0x400180 + 96, 0]
    for row, text in zip(rows, (b"0", b"/usr/bin/true", b"/bin/true"), strict=True):
        at = (row[2] if row[0] in (1, 64) else row[1]) - 0x400000
        assert image[at : image.index(b"\0", at)] == text


async def test_the_usual_names_are_looked_up_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they count in the agent's memory, and a command beside a fork bomb finds them. Not without groups, and not beside a bomb."""
    looked_up: list[str] = []
    files = {name: os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("commands", "rescue", "current", "max")}
    os.write(files["max"], b"2048")
    monkeypatch.setattr("session_agent.agent.process.known_names.os.stat", looked_up.append)
    now = [1000.0]
    monkeypatch.setattr("session_agent.agent.process.known_names.time.monotonic", lambda: now[0])
    pids = (files["current"], files["max"])
    Placement((files["commands"],), pids).choose("/opt/bin")
    crowded = Placement((files["commands"],), pids, (files["rescue"],))
    os.pwrite(files["current"], b"2040", 0)
    assert crowded.choose("/opt/bin") == (files["rescue"],)
    assert looked_up == []
    os.ftruncate(files["current"], 0)
    os.pwrite(files["current"], b"5", 0)
    for _ in range(3):
        assert crowded.choose("/opt/bin:relative") == (files["commands"],)
    assert looked_up == []
    await asyncio.sleep(0)
    assert {"/opt/bin/sh", "/etc/ld.so.preload"} <= set(looked_up)
    assert not any("relative" in name for name in looked_up)
    assert len(looked_up) == len(set(looked_up))
    now[0] += 61.0
    crowded.choose("/opt/bin")
    await asyncio.sleep(0)
    assert looked_up.count("/opt/bin/sh") == 2
    for descriptor in files.values():
        os.close(descriptor)
