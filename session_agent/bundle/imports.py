"""The modules that the agent can ever import, computed from the source text.

Owns the walk over import statements, also those inside functions, and the few exceptions to it: ``ROOTS`` (imported by name at run time)
and ``LEFT_OUT`` (imported only where an ImportError is caught, or by code that the agent never runs). Called by ``build``.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from session_agent.agent.startup.handlers import MODULES

ROOTS = (
    "session_agent.__main__",
    *MODULES.values(),
    "os",  # the file by which an interpreter finds its home
    "encodings.aliases",
    "encodings.ascii",
    "encodings.idna",  # of socket calls with a name
    "encodings.latin_1",
    "encodings.utf_8",
    "_ctypes",
    "_struct",
    "_hashlib",  # imported by hashlib by its name; three times as fast as Python's own implementation
)
ALONE = ("websockets.speedups",)
"""Extensions that are included without the rest of their package, which is not used: Python treats the folder as a namespace package."""
LEFT_OUT = frozenset(
    {
        # each needs a library, and its importers catch the ImportError
        "_bz2", "_curses", "_lzma", "_scproxy", "_ssl", "_uuid", "_zstd", "bz2", "compression.zstd", "lzma", "ssl",
        # modules of other systems
        "_overlapped", "_winapi", "_winreg", "asyncio.windows_events", "asyncio.windows_utils", "asyncio.proactor_events",
        "ctypes.macholib", "encodings.mbcs", "msvcrt", "nt", "nturl2path", "winreg",
        # behind functions that the agent does not call
        "_pydatetime", "_pydecimal", "_pyio", "_pylong", "_sysconfigdata", "argparse", "asyncio.__main__", "cgi", "cmd", "code",
        "compileall", "concurrent.futures.process", "csv", "ctypes.util", "decimal", "difflib", "distutils", "doctest",
        "email.feedparser", "email.generator", "email.headerregistry", "email.parser", "email.policy", "fractions", "ftplib", "gettext",
        "getopt", "getpass", "html", "http.client", "http.cookiejar", "http.server", "idlelib", "importlib.metadata", "importlib.readers",
        "importlib.resources", "importlib.simple", "lib2to3", "logging.config", "logging.handlers", "mimetypes", "multiprocessing",
        "netrc", "numpy", "optparse", "pdb", "pickle", "pkgutil", "plistlib", "py_compile", "pydoc", "python_socks", "runpy", "site",
        "smtplib", "socketserver", "sqlite3", "statistics", "tarfile", "tkinter", "tracemalloc", "tty", "unittest", "urllib.error",
        "urllib.request", "urllib.response", "webbrowser", "werkzeug", "xml", "xmlrpc", "zipfile",
        # modules of this project and of its libraries
        "session_agent.node", "session_agent.bundle", "websockets",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Module:
    """``file`` is a source file or an extension; builtin and frozen modules have none and are not listed."""

    name: str
    file: Path
    is_package: bool

    @property
    def is_extension(self) -> bool:
        """Whether it is a shared library."""
        return self.file.suffix == ".so"

    @property
    def is_standard(self) -> bool:
        """Whether it belongs to the standard library."""
        return self.name.partition(".")[0] in sys.stdlib_module_names


def closure(roots: Iterable[str] = ROOTS, left_out: frozenset[str] = LEFT_OUT, *, in_functions: bool = True) -> list[Module]:
    """Every module that can be reached from the roots, sorted by name.

    Without ``in_functions``, only the modules that are imported together with the roots.
    """
    seen: set[str] = set()
    modules: dict[str, Module] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in seen or (name not in ALONE and _is_left_out(name, left_out)):
            continue
        seen.add(name)
        parent = name.rpartition(".")[0]
        if parent and name not in ALONE:
            waiting.append(parent)
        module = _locate(name)
        if module is None:
            continue
        modules[name] = module
        if not module.is_extension:
            source = module.file.read_text(encoding="utf-8")
            waiting += _imports(ast.parse(source), name, module.is_package, in_functions)
    return [modules[name] for name in sorted(modules)]


def _is_left_out(name: str, left_out: frozenset[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[: end + 1]) in left_out for end in range(len(parts)))


def _locate(name: str) -> Module | None:
    if name in sys.builtin_module_names:
        return None
    head, _, _ = name.partition(".")
    try:
        spec = _find_standard(name) if head in sys.stdlib_module_names else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Module(name, Path(spec.origin), spec.submodule_search_locations is not None)


def _find_standard(name: str) -> importlib.machinery.ModuleSpec | None:
    """The file of a standard module, from its expected path: frozen modules do not name their file, and a site hook may have replaced a
    finder."""
    parent = name.rpartition(".")[0]
    if parent:
        package = _find_standard(parent)
        folders = package.submodule_search_locations if package else None
        return importlib.machinery.PathFinder.find_spec(name, folders) if folders else None
    standard = sysconfig.get_path("stdlib")
    dynamic = sysconfig.get_config_var("DESTSHARED") or f"{standard}/lib-dynload"
    return importlib.machinery.PathFinder.find_spec(name, [standard, dynamic, f"{standard}/lib-dynload"])


def _imports(tree: ast.AST, name: str, is_package: bool, in_functions: bool) -> Iterator[str]:
    package = name if is_package else name.rpartition(".")[0]
    for node in _live(tree, in_functions):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{anchor}.{base}" if base else anchor
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _live(tree: ast.AST, in_functions: bool) -> Iterator[ast.AST]:
    """The syntax nodes that are executed: not those under ``if TYPE_CHECKING`` or ``if __name__ == "__main__"``, and those in functions
    only if requested."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not in_functions and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        if isinstance(node, ast.If) and _never_true(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _never_true(test: ast.expr) -> bool:
    if isinstance(test, ast.Name):
        return test.id == "TYPE_CHECKING"
    if isinstance(test, ast.Attribute):
        return test.attr == "TYPE_CHECKING"
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
