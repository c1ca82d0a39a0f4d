"""The public names, the equality of the two APIs, and the generator that keeps them equal."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pickle
import pydoc
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, get_type_hints

import holdfast
import pytest
from holdfast._public import public
from holdfast._transport.aio.opening import opening
from holdfast_wire.errors import TABLE

from infra.scripts import generate_sync

OBJECTS = [
    "SandboxClient",
    "Sandbox",
    "Files",
    "Images",
    "Group",
    "Shell",
    "CommandStream",
    "Process",
    "Terminal",
    "Tunnel",
    "Watch",
    "Listener",
    "Connection",
    "Branches",
    "Batch",
    "Events",
    "Recordings",
    "Keys",
    "Limits",
    "Projects",
    "Interaction",
]
ERRORS = frozenset(
    """
    ArchiveError ArgumentsTooLongError AuthenticationError BuildError CancelledRemotelyError ChecksumError ClientClosedError
    CommandFailedError ConfigurationError ConflictError DockerfileError HoldfastError ImageNotFoundError ImagePullError
    InputClosedError InvalidArgumentError
    InvalidPathError NoSpaceError NotFoundError OutcomeUnknownError PortUnreachableError ProtocolError QuotaError
    RemoteFileError RemoteFileExistsError RemoteFileNotFoundError RemoteIsADirectoryError RemoteNotADirectoryError RemotePermissionError
    RequestTooLargeError SandboxGoneError SandboxLostError SandboxNotFoundError SandboxNotReadyError ServiceError ServiceUnavailableError
    SessionFencedError SessionLostError ShellLostError SpawnError UnsupportedError UserNotFoundError WaitTimeoutError
    WorkingDirectoryError
    """.split()  # noqa: SIM905  a text is easier to read
)
RESULTS = frozenset(
    """
    KeyInfo LimitInfo NewKey ProjectInfo
    ActivityEvent BuildEvent PullEvent RecordedCommand RecordingInfo commands_of
    STDERR STDOUT Address Cause Chunk CommandResult EventGap FileEntry FileEvent FileMatch GroupInfo ImageInfo ListeningPort Lost
    FileLink PastCommand PatchResult PauseResult PreviewUrl SandboxEvent SandboxInfo StreamCount TransferResult
    """.split()  # noqa: SIM905  a text is easier to read
)
ARGUMENTS = frozenset({"ClusterOptions"})


def test_the_public_names_are_these() -> None:
    expected = {*OBJECTS, *(f"Async{name}" for name in OBJECTS), *ERRORS, *RESULTS, *ARGUMENTS}
    assert set(holdfast.__all__) == expected
    assert list(holdfast.__all__) == sorted(holdfast.__all__, key=lambda n: (n.upper() != n, n))
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None


def members(cls: type) -> dict[str, Any]:
    found = {}
    for name, value in inspect.getmembers_static(cls):
        name = generate_sync.rename(name)
        if not name.startswith("_") or name in ("__init__", "__enter__", "__exit__", "__iter__", "__next__"):
            found[name] = value
    return found


def face_pairs() -> list[tuple[type, type]]:
    return [(getattr(holdfast, f"Async{name}"), getattr(holdfast, name)) for name in OBJECTS]


@pytest.mark.parametrize(("written", "generated"), face_pairs(), ids=lambda cls: cls.__name__)
def test_both_apis_have_the_same_methods_and_arguments(written: type, generated: type) -> None:
    asynchronous, synchronous = members(written), members(generated)
    assert asynchronous.keys() == synchronous.keys()
    for name, value in asynchronous.items():
        if inspect.isfunction(value):
            expected = inspect.signature(value)
            actual = inspect.signature(synchronous[name])
            shapes = [[(p.name, p.kind, p.default) for p in s.parameters.values()] for s in (expected, actual)]
            assert shapes[0] == shapes[1], name
            assert not inspect.iscoroutinefunction(synchronous[name])


@pytest.mark.parametrize(("written", "generated"), face_pairs(), ids=lambda cls: cls.__name__)
def test_public_methods_are_documented(written: type, generated: type) -> None:
    missing = [
        name
        for name, value in members(written).items()
        if inspect.isfunction(value) and not name.startswith("__") and not inspect.getdoc(value)
    ]
    assert missing == []


def test_every_error_code_has_an_exported_exception() -> None:
    for kind in TABLE.values():
        cls = getattr(holdfast, kind.sdk_class)
        assert issubclass(cls, holdfast.HoldfastError)


def test_errors_are_also_builtin_exceptions() -> None:
    from holdfast._errors import error

    for code, builtin in (
        ("file_not_found", FileNotFoundError),
        ("permission_denied", PermissionError),
        ("is_a_directory", IsADirectoryError),
        ("not_a_directory", NotADirectoryError),
        ("file_exists", FileExistsError),
        ("wait_timeout", TimeoutError),
        ("invalid_argument", ValueError),
    ):
        why = error(code, "it failed", detail={"path": "/x"})
        assert issubclass(type(why), builtin)
        assert issubclass(type(why), holdfast.HoldfastError)
        assert why.code == code
        assert str(why).startswith(f"it failed [{code}]")
    assert error("file_not_found", "m", detail={"path": "/x"}).filename == "/x"  # type: ignore[attr-defined]
    assert error("file_not_found", "m").errno == 2  # type: ignore[attr-defined]


def test_a_hostile_error_map_is_cut_and_typed() -> None:
    from holdfast._errors import MESSAGE_CHARACTERS, from_map

    why = from_map({"code": "made-up", "message": "x" * 10**6, "detail": [1], "retryable": "yes", "fault": "you"})
    assert why.code == "internal"
    assert len(why.message) <= MESSAGE_CHARACTERS
    assert from_map(None).code == "internal"


def test_the_generated_api_is_up_to_date() -> None:
    assert generate_sync.main(["--check"]) == 0


def test_the_generator_notices_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(generate_sync, "TARGET", tmp_path)
    (tmp_path / "stray.py").write_text("")
    assert generate_sync.main(["--check"]) == 1
    assert "stray.py" in capsys.readouterr().err
    assert generate_sync.main([]) == 0
    assert generate_sync.main(["--check"]) == 0
    assert not (tmp_path / "stray.py").exists()


def test_the_generator_leaves_strings_alone() -> None:
    source = 'async def f(self: AsyncShell) -> None:\n    """await AsyncShell"""\n    async with  x as y:\n        await y.__aenter__()\n'
    expected = 'def f(self: Shell) -> None:\n    """await AsyncShell"""\n    with  x as y:\n        y.__enter__()\n'
    assert generate_sync.convert(source) == generate_sync.HEADER + expected


def test_importing_does_nothing() -> None:
    """Importing starts no thread and no loop, opens no file, and loads no HTTP library."""
    code = (
        "import sys, threading, holdfast; assert threading.active_count() == 1;"
        "print(sorted(m for m in ('httpx', 'argparse', 'holdfast.cli') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_exception_is_built_from_one_string_and_named_as_it_is_imported(name: str) -> None:
    cls = getattr(holdfast, name)
    built = cls("it broke")
    assert built.message == "it broke"
    assert "it broke" in str(built)
    assert traceback.format_exception_only(built)[0].startswith(f"holdfast.{name}: it broke")
    assert built.is_infrastructure is (built.fault == "infrastructure")
    again = pickle.loads(pickle.dumps(built))
    assert (type(again), again.message, again.code) == (cls, "it broke", built.code)
    if name not in (
        "HoldfastError",
        "ConfigurationError",
        "CommandFailedError",
        "SandboxGoneError",
        "BuildError",
        "DockerfileError",
    ):  # these share a code
        assert TABLE[built.code].sdk_class == name


def test_is_infrastructure_is_documented_and_set() -> None:
    assert "is_infrastructure" in (inspect.getdoc(holdfast.HoldfastError) or "")
    assert holdfast.Cause("infrastructure", "evicted").is_infrastructure
    assert not holdfast.Cause("workload", "oom").is_infrastructure
    assert holdfast.SandboxLostError("gone").is_infrastructure
    assert not holdfast.InvalidArgumentError("wrong").is_infrastructure


def test_results_are_named_as_they_are_imported() -> None:
    assert {getattr(holdfast, name).__module__ for name in RESULTS - {"STDERR", "STDOUT"}} == {"holdfast"}


@pytest.mark.parametrize(("written", "generated"), face_pairs(), ids=lambda cls: cls.__name__)
def test_every_parameter_is_documented(written: type, generated: type) -> None:
    """What an editor shows over a call names each of its parameters."""
    undocumented = []
    for name, value in members(generated).items():
        function = value.__func__ if isinstance(value, classmethod) else value
        if inspect.isfunction(function) and not name.startswith("__"):
            documentation = inspect.getdoc(function) or ""
            names = set(inspect.signature(function).parameters) - {"self", "cls", "unknown"}
            undocumented += [f"{name}({p})" for p in sorted(names) if f"``{p}" not in documentation and f"{p}=" not in documentation]
        elif isinstance(value, property) and not inspect.getdoc(value):
            undocumented.append(name)
    assert undocumented == []


def test_every_field_is_documented() -> None:
    for module in ("holdfast._results", "holdfast._file_results", "holdfast._requests", "holdfast_wire.rest"):
        for node in ast.parse(inspect.getsource(importlib.import_module(module))).body:
            if isinstance(node, ast.ClassDef):
                for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                    if isinstance(field, ast.AnnAssign):
                        assert isinstance(after, ast.Expr), f"{node.name}: {ast.unparse(field)}"


@pytest.mark.parametrize("cls", [cls for pair in face_pairs() for cls in pair], ids=lambda cls: cls.__name__)
def test_classes_are_named_as_they_are_imported(cls: type) -> None:
    """This holds for reprs, pickles, tracebacks of other libraries, and the output of ``help``."""
    assert repr(cls) == f"<class 'holdfast.{cls.__name__}'>"
    assert pickle.loads(pickle.dumps(cls)) is cls
    shown = pydoc.render_doc(cls)
    for inner in ("holdfast._async", "holdfast._sync", "holdfast._transport"):
        assert inner not in shown
    for base in cls.__mro__[1:-1]:
        assert pickle.loads(pickle.dumps(base)) is base
    for name, value in members(cls).items():
        if inspect.isfunction(value) and not name.startswith("__"):
            assert value.__module__ == "holdfast", name
            assert pickle.loads(pickle.dumps(value)) is value
            assert pydoc.render_doc(value).startswith(f"Python Library Documentation: function {name} in module holdfast")


def test_methods_keep_annotations_where_update_wrapper_does_not_copy_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``functools.update_wrapper`` of Python 3.14, for functions whose annotations are strings."""
    copied = ("__module__", "__name__", "__qualname__", "__doc__")
    monkeypatch.setattr(functools, "update_wrapper", functools.partial(functools.update_wrapper, assigned=copied))

    @public
    class Example:
        def plain(self, path: str) -> bytes:
            raise NotImplementedError

        async def waits(self, limit_s: float) -> int:
            raise NotImplementedError

        @opening
        async def opens(self, name: str) -> list[int]:
            raise NotImplementedError

    assert get_type_hints(Example.plain) == {"path": str, "return": bytes}
    assert get_type_hints(Example.waits) == {"limit_s": float, "return": int}
    assert get_type_hints(Example.opens) == {"name": str, "return": list[int]}


def keyword_methods() -> list[tuple[type, str, Any]]:
    found = []
    for pair in face_pairs():
        for cls in pair:
            for name, value in members(cls).items():
                if (inspect.isfunction(value) or hasattr(value, "around")) and (name == "__init__" or not name.startswith("_")):
                    found.append((cls, name, value))
    return found


@pytest.mark.parametrize(("cls", "name", "method"), keyword_methods(), ids=lambda one: getattr(one, "__name__", None))
def test_an_unknown_argument_gets_an_error_with_the_known_ones(cls: type, name: str, method: Any) -> None:
    """The error is raised before the object of the call is used."""
    parameters = inspect.signature(method).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if name == "__init__" and "Client" not in cls.__name__:
        return  # the client and the sandbox construct these objects
    given = [None] if inspect.Parameter.VAR_KEYWORD not in kinds else [None, "host"]
    with pytest.raises(holdfast.InvalidArgumentError) as refused:
        begin(method, *given, wrong_argument=1)
    called = cls.__name__.removeprefix("Async") if name == "__init__" else name
    assert refused.value.message.startswith(f"{called} has no argument 'wrong_arg")
    for one, parameter in parameters.items():
        if one != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            assert one in refused.value.hint


def begin(method: Any, *args: Any, **arguments: Any) -> None:
    made = method(*args, **arguments)
    if inspect.iscoroutinefunction(method):
        made.send(None)


def test_other_mistakes_in_calls_raise_pythons_own_errors() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        holdfast.Shell.run(None)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="positional argument"):
        holdfast.Files.exists(None, "a", "b", "c")  # type: ignore[call-arg, arg-type]
    assert inspect.iscoroutinefunction(holdfast.AsyncShell.run)
    assert inspect.iscoroutinefunction(holdfast.AsyncSandbox.shell)


@pytest.mark.parametrize(
    ("method", "habit", "suggestion"),
    [
        (holdfast.Shell.run, "timeuot", "use timeout"),
        (holdfast.Shell.run, "cwd", "run('cd DIR')"),
        (holdfast.Shell.run, "workdir", "run('cd DIR')"),
        (holdfast.Shell.stream, "environment", "export NAME"),
        (holdfast.Sandbox.terminal, "columns", "use cols"),
        (holdfast.Sandbox.terminal, "workdir", "use cwd"),
        (holdfast.Sandbox.exec, "tty", "shell(tty=True)"),
        (holdfast.Sandbox.start, "input", "write() and close_stdin()"),
        (holdfast.Sandbox.tunnel, "timeout", "use wait_s"),
        (holdfast.Files.write, "content", "use data"),
        (holdfast.Files.read, "format", "read_text()"),
        (holdfast.Files.move, "dst", "use to"),
        (holdfast.Files.upload, "dst", "use remote"),
        (holdfast.Process.wait, "timeout_ms", "timeout, in seconds"),
        (holdfast.SandboxClient.map, "max_workers", "use concurrency"),
        (holdfast.SandboxClient.__init__, "base_url", "use url"),
        (holdfast.SandboxClient.list_sandboxes, "metadata", "use labels"),
    ],
)  # fmt: skip
def test_an_argument_name_of_another_library_gets_an_error_with_our_name(method: Any, habit: str, suggestion: str) -> None:
    with pytest.raises(holdfast.InvalidArgumentError) as refused:
        method(None, **{habit: 1})
    assert suggestion in refused.value.message


def test_every_suggestion_belongs_to_an_existing_method() -> None:
    from holdfast._suggestions import _SUGGESTIONS

    for key in _SUGGESTIONS:
        cls, _, method = key.partition(".")
        found = getattr(holdfast, cls)
        assert not method or method == cls or hasattr(found, method), key
