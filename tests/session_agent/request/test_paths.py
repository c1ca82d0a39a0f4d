"""Paths: which values are valid, which code an errno becomes, and resolution that cannot leave a directory."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_wire.archives.safe_path import SafeRoot
from holdfast_wire.errors import TABLE, HoldfastError
from holdfast_wire.paths import shown
from hypothesis import given
from hypothesis import strategies as st

from session_agent.agent.request.paths import _CODES, os_failure, path_fields, path_param
from tests.support.own_process import in_own_process


def opened_by_the_kernel(root: int, path: str) -> int:
    """The reference: ``openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)``."""
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, 0x08 | 0x02)
    arguments = (ctypes.c_long(437), ctypes.c_int(root), ctypes.c_char_p(os.fsencode(path)), how, ctypes.c_size_t(ctypes.sizeof(how)))
    answer = int(ctypes.CDLL(None, use_errno=True).syscall(*arguments))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return answer


@given(st.one_of(st.text(), st.binary(), st.integers(), st.none(), st.lists(st.text())))
def test_any_param_is_a_path_or_one_typed_error(value: object) -> None:
    try:
        path = path_param({"path": value})
    except HoldfastError as error:
        code, path = error.code, ""
    else:
        code = ""
    assert bool(path) is not (code == "invalid_path")
    assert "\0" not in path
    fields = path_fields("path", path)
    str(fields["path"]).encode()
    assert os.fsencode(fields.get("raw_path", fields["path"])) == os.fsencode(path)


@given(st.binary(max_size=50).map(os.fsdecode))
def test_paths_in_messages_are_printable_and_encodable(path: str) -> None:
    assert shown(path).isprintable()
    shown(path).encode()


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_errno_becomes_a_known_code(number: int) -> None:
    error = os_failure(OSError(number, "whatever"), "/some/path")
    assert error.code in TABLE
    assert "/some/path" in error.message
    assert error.code == _CODES.get(number, "io_error")


def build(root: Path) -> None:
    """Make a directory `in` with links of every kind, and around it files that must not be reached."""
    inside = root / "in"
    (inside / "a/b").mkdir(parents=True)
    (inside / "a/b/file").write_text("good")
    (root / "file").write_text("secret")
    (root / "out").mkdir()
    (inside / "down").symlink_to("a/b")
    (inside / "a/b/up").symlink_to("../..")
    (inside / "escape").symlink_to("..")
    (inside / "absolute").symlink_to(root)
    (inside / "absolute-in").symlink_to(inside / "a")
    (inside / "loop").symlink_to("loop")
    (inside / "proc").symlink_to("/proc/self/root")
    (inside / "file-out").symlink_to("../file")
    (inside / "dangling").symlink_to("not-yet")


def attempt(root: SafeRoot, path: str) -> str:
    """The result of entering `path`: the content of the file there, `dir` if there is none, or the name of the errno."""
    return result(lambda: root._walk(path, None))


def result(entering: Callable[[], int]) -> str:
    try:
        directory = entering()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    try:
        return Path(f"/proc/self/fd/{directory}/file").read_text()
    except FileNotFoundError:
        return "dir"
    finally:
        os.close(directory)


CASES = {
    "a/b": "good",
    "./a//b/.": "good",
    "down": "good",
    "down/": "good",
    "down/up/down": "good",
    "a/b/up/a/b": "good",
    "a/../a/b": "good",
    "a": "dir",
    "a/b/up": "dir",
    "": "dir",
    ".": "dir",
    "..": "EXDEV",
    "../in/a": "EXDEV",
    "a/../../out": "EXDEV",
    "escape": "EXDEV",
    "escape/out": "EXDEV",
    "absolute": "EXDEV",
    "absolute/out": "EXDEV",
    "absolute-in": "EXDEV",
    "file-out": "EXDEV",
    "proc": "EXDEV",
    "/etc": "EXDEV",
    "a/b/up/../out": "EXDEV",
    "loop": "ELOOP",
    "dangling": "ENOENT",
    "missing": "ENOENT",
    "a/b/file": "ENOTDIR",
    "a/b/file/x": "ENOTDIR",
    "n" * 300: "ENAMETOOLONG",
}


@pytest.mark.parametrize(("path", "expected"), CASES.items())
def test_resolution(tmp_path: Path, path: str, expected: str) -> None:
    build(tmp_path)
    root = SafeRoot(str(tmp_path / "in"))
    try:
        assert attempt(root, path) == expected
    finally:
        root.close()


@given(parts=st.lists(st.sampled_from(["a", "b", "..", ".", "up", "down", "escape", "absolute", "file", "file-out", "loop"]), max_size=8))
def test_the_kernel_resolves_every_path_alike(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    base = tmp_path_factory.getbasetemp() / "agree"
    if not base.exists():
        base.mkdir()
        build(base)
    root, path = SafeRoot(str(base / "in")), "/".join(parts) or "."
    try:
        kernel = result(lambda: opened_by_the_kernel(root._root, path))
        if kernel in ("ENOSYS", "EPERM"):
            pytest.skip("this kernel has no openat2")
        assert attempt(root, path) == kernel
        assert kernel != "secret"
    finally:
        root.close()


def test_missing_parents_are_made_below_the_root(tmp_path: Path) -> None:
    build(tmp_path)
    root = SafeRoot(str(tmp_path / "in"))
    made: list[int] = []
    try:
        descriptor, name = root.parent("x/y/z/name", made.append)
        assert (name, os.path.samestat(os.fstat(descriptor), os.stat(tmp_path / "in/x/y/z"))) == ("name", True)
        assert len(made) == 3
        root.parent("down/new/name", made.append)
        assert (tmp_path / "in/a/b/new").is_dir()
        for path in ("escape/new/name", "absolute/new/name"):
            with pytest.raises(OSError, match=r"\[Errno 18\]"):
                root.parent(path, made.append)
        with pytest.raises(HoldfastError):
            root.parent("../new/name", made.append)
        with pytest.raises(FileNotFoundError):
            root.parent("never/made")
        assert sorted(os.listdir(tmp_path)) == ["file", "in", "out"]
        assert not os.listdir(tmp_path / "out")
    finally:
        root.close()


def test_swapped_links_never_lead_out(tmp_path: Path) -> None:
    """A directory that turns into a link and back while it is resolved: the classic race."""
    inside = tmp_path / "in"
    (inside / "d").mkdir(parents=True)
    (inside / "d/file").write_text("good")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("secret")
    (inside / "link").symlink_to("../out")
    swap = """if True:
        import os
        while True:
            for source, target in (("d", "d.kept"), ("link", "d"), ("d", "link"), ("d.kept", "d")):
                os.rename(source, target)
    """
    root = SafeRoot(str(inside))
    swapping = subprocess.Popen([sys.executable, "-I", "-c", swap], cwd=inside)
    seen: set[str] = set()
    tries, end = 0, time.monotonic() + 60
    try:
        while (tries < 5000 or not {"good", "EXDEV"} <= seen) and time.monotonic() < end:
            seen.add(attempt(root, "d"))
            tries += 1
    finally:
        swapping.kill()
        swapping.wait()
        root.close()
    assert "secret" not in seen
    assert {"good", "EXDEV"} <= seen


@in_own_process
def test_the_depth_of_a_path_is_limited_by_its_length_alone(tmp_path: Path) -> None:
    """A descriptor for each of its directories would exceed the limit of a process."""
    root = SafeRoot(str(tmp_path))
    try:
        before = len(os.listdir("/proc/self/fd"))
        descriptor, name = root.parent("d/" * 1500 + "x", lambda _: None)
        assert (os.listdir(f"/proc/self/fd/{descriptor}"), name, len(os.listdir("/proc/self/fd"))) == ([], "x", before + 1)
        with pytest.raises(OSError, match="File name too long"):
            root.parent("d/" * 3000 + "x", lambda _: None)
    finally:
        root.close()
        subprocess.run(["rm", "-rf", "d"], cwd=tmp_path, check=True)


@in_own_process
def test_no_descriptor_is_left(tmp_path: Path) -> None:
    build(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    root = SafeRoot(str(tmp_path / "in"))
    for path in CASES:
        attempt(root, path)
    root.parent("p/q/r", lambda _: None)
    root.close()
    assert len(os.listdir("/proc/self/fd")) == before
