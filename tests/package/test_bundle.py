"""The bundle's build: reproducible, within its size budget, without unneeded files; as a folder and as an image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from holdfast_wire.bundle import MOUNT, agent_command, copy_command

from session_agent.bundle import build as building
from session_agent.bundle import imports, manifest, store
from session_agent.bundle.__main__ import main
from session_agent.bundle.build import BUDGET_BYTES, BuildError, Bundle, build
from session_agent.bundle.libraries import MissingLibraryError, libraries_of, loader, needed
from session_agent.bundle.oci import write_archive
from session_agent.node.images.formats import open_image
from session_agent.node.images.layers import LayerLimits

pytestmark = pytest.mark.timeout(120)


def glibc() -> Path:
    found = loader()
    assert found is not None
    return found


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Path → mode, time and content of everything in a folder."""
    found = {}
    for path in folder.rglob("*"):
        status = path.stat()
        found[str(path.relative_to(folder))] = (status.st_mode, int(status.st_mtime), path.read_bytes() if path.is_file() else b"")
    return found


def interpreter(bundle: Path, *arguments: str, **environment: str) -> str:
    """The output of the bundle's Python."""
    command = agent_command(str(bundle))
    program = [*command[: command.index("-I")], *arguments]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=True, cwd="/").stdout


def test_two_builds_are_identical(bundle: Bundle, tmp_path: Path) -> None:
    again = tmp_path / "somewhere-else" / "named differently"
    arguments = ["-m", "session_agent.bundle", "--output", str(again)]
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    printed = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True).stdout
    assert bundle.manifest["digest"] in printed
    assert tree(again) == tree(bundle.folder)


def test_the_bundle_is_within_its_budget_and_lists_its_contents(bundle: Bundle) -> None:
    facts = bundle.manifest
    assert json.loads((bundle.folder / manifest.NAME).read_text()) == facts
    sizes = {str(path.relative_to(bundle.folder)): path.stat().st_size for path in bundle.folder.rglob("*") if path.is_file()}
    assert sum(sizes.values()) - sizes[manifest.NAME] == facts["size_bytes"] < BUDGET_BYTES
    assert manifest.digest_of(manifest.entries_of(bundle.folder)) == facts["digest"]
    assert {file["path"]: file["size_bytes"] for file in facts["files"]} == {
        name: size for name, size in sizes.items() if name != manifest.NAME
    }
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["libc"].startswith("glibc 2.")


def test_the_bundle_contains_nothing_unneeded(bundle: Bundle) -> None:
    names = set(bundle.manifest["modules"])
    assert {
        "session_agent.agent.startup.server",
        "session_agent.agent.startup.install",
        "holdfast_wire.session.agent_session",
        "msgpack._cmsgpack",
        "websockets.speedups",
    } <= names
    for unwanted in (
        "session_agent.node",
        "session_agent.bundle",
        "ssl",
        "unittest",
        "tkinter",
        "websockets.asyncio",
        "pip",
        "email.parser",
    ):
        assert not [name for name in names if name == unwanted or name.startswith(f"{unwanted}.")], unwanted
    assert not list(bundle.folder.rglob("*.py"))
    assert not list(bundle.folder.rglob("__pycache__"))
    for path in bundle.folder.rglob("*"):
        assert path.stat().st_mode & 0o222 == (0o200 if path.is_dir() else 0), path
        assert path.stat().st_mode & 0o444 == 0o444, path


def test_the_bundle_loads_only_its_own_libraries(bundle: Bundle) -> None:
    shipped = {path.name for path in (bundle.folder / "lib").iterdir()}
    for path in bundle.folder.rglob("*"):
        if path.is_file() and path.name != "ld.so" and path.read_bytes().startswith(b"\x7fELF"):
            assert {name for name in needed(path, bundle.folder / "lib/ld.so") if not name.startswith("/")} <= shipped, path
    maps = interpreter(bundle.folder, "-I", "-S", "-c", "import ctypes, hashlib, select, socket; print(open('/proc/self/maps').read())")
    files = {line.split()[-1] for line in maps.splitlines() if "/" in line}
    assert len(files) > 5
    # tables of a locale may be the image's: they are data, and glibc checks their format
    assert {file for file in files if not file.startswith((str(bundle.folder), "/usr/lib/locale/")) and ".so" in file} == set()


def test_the_interpreter_uses_only_the_bundle_and_ignores_the_environment(bundle: Bundle, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    bundle.folder.rename(moved)
    try:
        code = "import sys, os; print(sys.prefix, sys.exec_prefix, *sys.path); print(sys.flags.utf8_mode)"
        hostile = {"PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere", "LD_LIBRARY_PATH": "/nowhere", "LANG": "ja_JP.eucJP"}
        lines = interpreter(moved, "-I", "-S", "-B", "-X", "utf8", "-c", code, **hostile).splitlines()
        assert all(path.startswith(str(moved)) for path in lines[0].split()), lines
        assert lines[1] == "1"
    finally:
        moved.rename(bundle.folder)


def test_every_module_of_the_agent_can_be_imported(bundle: Bundle) -> None:
    """Modules that were left out are imported only where their absence is expected."""
    ours = [name for name in bundle.manifest["modules"] if name.startswith(("session_agent", "holdfast_wire")) and "__main__" not in name]
    assert len(ours) > 50
    code = f"import sys; sys.path.insert(0, sys.prefix + '/agent'); [__import__(name) for name in {ours!r}]; print(*sys.modules)"
    assert set(ours) <= set(interpreter(bundle.folder, "-I", "-S", "-c", code).split())


def test_the_store_contains_the_same_code_as_the_files(bundle: Bundle) -> None:
    data = (bundle.folder / store.NAME).read_bytes()
    later, *lines = data[8 : 8 + int(data[:8])].decode().splitlines()
    assert set(later.split()) <= set(bundle.manifest["modules"])
    end, stored = 8 + int(data[:8]), 0
    for line in lines:
        name, offset, size, file = line.split(" ", 3)
        assert name in bundle.manifest["modules"]
        assert int(offset) == end
        assert int(size) == 0 or data[end : end + int(size)] == (bundle.folder / file).read_bytes()[16:]
        assert (bundle.folder / file).is_file()
        end += int(size)
        stored += bool(int(size))
    assert end == len(data)
    assert stored > 50
    assert end == len(data)


_DESCRIBE = """
import marshal, sys
if STORED:
    sys.argv = ["agent", "no", "command"]
    with open(f"{sys.prefix}/agent/main.pyc", "rb") as file:
        code = marshal.loads(file.read()[16:])
    try:
        exec(code, {})
    except SystemExit:
        pass
else:
    sys.path.insert(0, sys.prefix + "/agent")
import importlib
for name in ("session_agent.agent.files", "session_agent.agent.shell.shell", "asyncio", "queue", "_ctypes"):
    module = importlib.import_module(name)
    spec = module.__spec__
    print(name, module.__file__, getattr(module, "__cached__", None), module.__package__, getattr(module, "__path__", None))
    print(spec.name, spec.origin, spec.cached, spec.parent, spec.submodule_search_locations, spec.has_location, spec.loader.path)
import queue
try:
    queue.Queue().get(timeout=-1)
except ValueError as error:
    print(error.__traceback__.tb_next.tb_frame.f_code.co_filename, error.__traceback__.tb_next.tb_lineno)
print(importlib.reload(queue) is queue, queue.__spec__.origin)
"""


def test_a_stored_module_looks_like_one_from_its_file(bundle: Bundle) -> None:
    """It has the same attributes and the same frames in a traceback, and it can be loaded again."""
    seen = {stored: interpreter(bundle.folder, "-I", "-S", "-c", f"STORED = {stored}\n{_DESCRIBE}") for stored in (False, True)}
    assert seen[True].splitlines() == seen[False].splitlines()
    assert "queue.py" in seen[True]


def test_the_bundle_copies_itself(bundle: Bundle, tmp_path: Path) -> None:
    target = tmp_path / "volume"
    command = copy_command(str(target), str(bundle.folder))
    for _ in range(2):  # an init container may be started again
        done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
        assert "copied" in done.stderr
    copied, original = tree(target), tree(bundle.folder)
    assert {name: (mode, data) for name, (mode, _, data) in copied.items()} == {
        name: (mode, data) for name, (mode, _, data) in original.items()
    }
    unknown = subprocess.run([*agent_command(str(target)), "dance"], env={}, capture_output=True, text=True)
    assert (unknown.returncode, "no command" in unknown.stderr) == (64, True)
    nowhere = subprocess.run(copy_command("/proc/nowhere", str(target)), env={}, capture_output=True, text=True)
    assert (nowhere.returncode, "cannot copy" in nowhere.stderr) == (74, True)
    without = subprocess.run(agent_command(str(target)), env={}, capture_output=True, text=True)
    assert (without.returncode, "HOLDFAST_AGENT_TOKEN" in without.stderr) == (78, True)


def test_the_image_contains_the_bundle_and_starts_it(bundle: Bundle, tmp_path: Path) -> None:
    digest = write_archive(bundle, tmp_path / "a.tar", "holdfast/bundle:dev")
    assert write_archive(bundle, tmp_path / "b.tar", "holdfast/bundle:dev") == digest
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    layout, root, workspace = (tmp_path / name for name in ("layout", "root", "workspace"))
    for folder in (root, workspace):
        folder.mkdir()
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(layout, filter="data")
    index = json.loads((layout / "index.json").read_text())["manifests"][0]
    assert index["digest"] == digest
    assert index["annotations"]["io.containerd.image.name"] == "docker.io/holdfast/bundle:dev"
    blob = layout / "blobs/sha256"
    described = json.loads((blob / digest.removeprefix("sha256:")).read_text())
    config = json.loads((blob / described["config"]["digest"].removeprefix("sha256:")).read_text())["config"]
    assert (config["Entrypoint"], config["User"]) == (agent_command(), "65532:65532")
    with open_image(str(tmp_path / "a.tar"), str(workspace), LayerLimits()) as image:
        assert len(image.layers) == 1
        image.layers[0].unpack(str(root))
    assert {name: data for name, (_, _, data) in tree(root / MOUNT.strip("/")).items()} == {
        name: data for name, (_, _, data) in tree(bundle.folder).items()
    }


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("bundle", "docker.io/library/bundle:latest"),
        ("a/bundle:1", "docker.io/a/bundle:1"),
        ("registry.example/bundle:1", "registry.example/bundle:1"),
    ],
)
def test_the_archive_names_the_image_as_containerd_does(bundle: Bundle, tmp_path: Path, tag: str, name: str) -> None:
    write_archive(bundle, tmp_path / "a.tar", tag)
    with tarfile.open(tmp_path / "a.tar") as archive:
        index = archive.extractfile("index.json")
        assert index is not None
        assert json.load(index)["manifests"][0]["annotations"]["io.containerd.image.name"] == name


def test_existing_files_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert main(["--output", str(tmp_path)]) == 1
    assert "left alone" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "precious"


def test_an_interpreter_without_its_global_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    with pytest.raises(BuildError, match="a bundle needs CPython with its global interpreter lock"):
        build(tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_above_its_budget_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "BUDGET_BYTES", 1024)
    with pytest.raises(BuildError, match="its budget is 1024"):
        build(tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    program = Path(sys.executable).resolve()
    data = bytearray(program.read_bytes())
    at = data.index(b"libc.so.6\0")
    data[at : at + 9] = b"libX.so.6"
    (tmp_path / "program").write_bytes(data)
    with pytest.raises(MissingLibraryError, match=r"libX\.so\.6"):
        libraries_of([tmp_path / "program"], glibc())


@pytest.mark.parametrize("cut", [0, 4, 16, 63, 64, 200, 2000])
def test_damaged_files_are_named(tmp_path: Path, cut: int) -> None:
    (tmp_path / "cut").write_bytes(Path(sys.executable).resolve().read_bytes()[:cut])
    with pytest.raises(MissingLibraryError, match="cut"):
        needed(tmp_path / "cut", glibc())


def test_imports_are_followed_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pack"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner/__init__.py").write_text("from ..late import x\n")
    (package / "late.py").write_text("import json.decoder\nx = 1\n")
    (package / "typed.py").write_text("import colorsys\n")
    (package / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import typed\nelse:\n    import heapq\n"
        "def f():\n    from .inner import y\nif __name__ == '__main__':\n    import sndhdr\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = {module.name for module in imports.closure(["pack.a"], imports.LEFT_OUT | {"_heapq"})}
    assert {"pack", "pack.a", "pack.inner", "pack.late", "json.decoder", "heapq", "typing"} <= names
    assert not names & {"pack.typed", "colorsys", "sndhdr", "_heapq"}
