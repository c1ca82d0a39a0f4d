"""The synchronous Python SDK: create, run, stream, files, errors, kill."""

from __future__ import annotations

import uuid

from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    TimeoutException,
)


def raises(kind: type[BaseException], call: object, *arguments: object, **named: object) -> BaseException:
    try:
        call(*arguments, **named)  # type: ignore[operator]
    except kind as error:
        return error
    raise AssertionError(f"{call} raised no {kind.__name__}")


def commands(sandbox: Sandbox) -> None:
    done = sandbox.commands.run("echo out; echo err >&2; id -un; pwd; echo $HOME; echo $ONE", envs={"ONE": "1"})
    assert (done.exit_code, done.stderr, done.error) == (0, "err\n", None)
    assert done.stdout == "out\nuser\n/home/user\n/home/user\n1\n", done.stdout
    assert sandbox.commands.run("id -un; pwd", user="root").stdout == "root\n/root\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    failed = raises(CommandExitException, sandbox.commands.run, "echo bad >&2; exit 3")
    assert isinstance(failed, CommandExitException)
    assert (failed.exit_code, failed.stderr) == (3, "bad\n")
    lines: list[str] = []
    sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", on_stdout=lines.append)
    assert "".join(lines) == "1\n2\n3\n"
    assert len(lines) > 1, "the output came in pieces, as it was written"
    raises(TimeoutException, sandbox.commands.run, "sleep 60", timeout=1)
    raises(AuthenticationException, sandbox.commands.run, "true", user="nobody-of-this-name")
    raises(InvalidArgumentException, sandbox.commands.run, "true", cwd="/no/such/directory")


def replay(sandbox: Sandbox) -> None:
    """What E2B loses: the output before a client connects again, and the end of a process that nobody waited for."""
    started = sandbox.commands.run("echo first; sleep 0.3; echo second", background=True)
    pid = started.pid
    started.disconnect()
    assert pid in [one.pid for one in sandbox.commands.list()]
    assert sandbox.commands.connect(pid).wait().stdout == "first\nsecond\n"
    assert sandbox.commands.connect(pid).wait().stdout == "first\nsecond\n", "also after its end"
    raises(NotFoundException, sandbox.commands.connect, 999_999)
    assert not sandbox.commands.kill(999_999)
    sleeping = sandbox.commands.run("sleep 100", background=True)
    assert sandbox.commands.kill(sleeping.pid)
    assert isinstance(raises(CommandExitException, sleeping.wait), CommandExitException)
    assert sleeping.pid not in [one.pid for one in sandbox.commands.list()]
    assert not sandbox.commands.kill(sleeping.pid)


def files(sandbox: Sandbox) -> None:
    written = sandbox.files.write("note.txt", "one\n")
    assert (written.path, written.name) == ("/home/user/note.txt", "note.txt")
    assert sandbox.files.read("note.txt") == "one\n"
    assert sandbox.files.read("/home/user/note.txt", format="bytes") == b"one\n"
    assert sandbox.commands.run("stat -c '%U %G %a' note.txt").stdout == "user user 644\n"
    large = bytes(range(256)) * 20_000
    sandbox.files.write("/opt/made/here/large.bin", large)
    assert b"".join(sandbox.files.read("/opt/made/here/large.bin", format="stream")) == large
    sandbox.files.write("zipped", "z" * 100_000, gzip=True)
    assert sandbox.files.read("zipped", gzip=True) == "z" * 100_000
    sandbox.files.write("octets", large, use_octet_stream=True)
    assert sandbox.files.read("octets", format="bytes") == large
    sandbox.files.write("marked", "x", metadata={"author": "ada", "run": "7"})
    assert sandbox.files.get_info("marked").metadata == {"author": "ada", "run": "7"}
    sandbox.files.write("marked", "x", metadata={"run": "8"})
    assert [one.metadata for one in sandbox.files.list(".") if one.name == "marked"] == [{"run": "8"}]
    both = sandbox.files.write_files([{"path": "a/x", "data": "x"}, {"path": "a/y", "data": b"y"}])
    assert [one.path for one in both] == ["/home/user/a/x", "/home/user/a/y"]
    assert [(one.name, one.type) for one in sandbox.files.list("a")] == [("x", FileType.FILE), ("y", FileType.FILE)]
    assert sandbox.files.make_dir("b/c")
    assert not sandbox.files.make_dir("b/c")
    info = sandbox.files.get_info("b/c")
    assert (info.path, info.type, info.owner, info.permissions) == ("/home/user/b/c", FileType.DIR, "user", "drwxr-xr-x")
    assert sandbox.files.rename("a/x", "b/moved").path == "/home/user/b/moved"
    assert sandbox.files.exists("b/moved")
    assert not sandbox.files.exists("a/x")
    sandbox.files.remove("b")
    assert not sandbox.files.exists("b")
    sandbox.files.write("/root/of-root", "r", user="root")
    assert sandbox.files.read("/root/of-root", user="root") == "r"
    raises(FileNotFoundException, sandbox.files.read, "missing")
    raises(InvalidArgumentException, sandbox.files.read, "/home")
    raises(AuthenticationException, sandbox.files.read, "note.txt", user="nobody-of-this-name")


def control(sandbox: Sandbox, mark: str) -> None:
    info = sandbox.get_info()
    assert (info.sandbox_id, info.template_id, info.metadata) == (sandbox.sandbox_id, "base", {"mark": mark})
    found = Sandbox.list(query=SandboxQuery(metadata={"mark": mark})).next_items()
    assert [one.sandbox_id for one in found] == [sandbox.sandbox_id]
    same = Sandbox.connect(sandbox.sandbox_id)
    assert same.commands.run("echo same").stdout == "same\n"
    sandbox.set_timeout(600)
    left_s = (sandbox.get_info().end_at - sandbox.get_info().started_at).total_seconds()
    assert 590 < left_s < 660, left_s
    assert sandbox.is_running()
    assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    raises(SandboxException, sandbox.commands.run, "true")
    raises(NotFoundException, Sandbox.connect, sandbox.sandbox_id)
    raises(AuthenticationException, Sandbox.create, "base", api_key="hf_" + "0" * 32)
    refused = raises(SandboxException, Sandbox.create, "base", metadata={"": "x"})
    assert "label" in str(refused), refused


def main() -> None:
    mark = uuid.uuid4().hex
    sandbox = Sandbox.create("base", timeout=120, metadata={"mark": mark}, envs={"OF_ALL": "all"})
    assert sandbox.commands.run("echo $OF_ALL").stdout == "all\n"
    commands(sandbox)
    replay(sandbox)
    files(sandbox)
    control(sandbox, mark)


main()
