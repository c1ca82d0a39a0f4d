"""Tasks from mutants of the library: what is wrong, which tests show it, and the files that a sandbox begins with.

Owns the index of functions and places that the helper commands speak of, and validation: a mutant is a task if some test fails with it,
every test ends, twice with the same outcome, and none fails without it. Tests run in a sandbox, never here.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import io
import json
import random
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_recipes.core import diffs
from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.miniature.language import NUMBERS, OPERATORS
from holdfast_recipes.swe.mutation import Mutant, mutants

from .material import MODULE, TESTS, Library

FOLDER = "/tmp/repair"
HELPER = Path(__file__).with_name("helper.py")
PYTHON = ("t", "e", "s")
SHELL = {
    "g": 'cat "${0%/*}/at/$1" 2>/dev/null || echo ERR',
    "v": 'cat "${0%/*}/see/$1" 2>/dev/null || echo ERR',
    "l": 'case "$1" in [0-9][0-9]) echo OK ;; *) echo ERR ;; esac',
}
"""Commands that only read: a shell begins in a tenth of the time that Python takes."""
_WORDS = {"is not": "isnot", "not in": "notin"}
MOST_PLACES = 5
"""Places of a function that `g` lists; functions with more are left alone."""


@dataclass(frozen=True, slots=True)
class Task:
    """A bug with its tests. ``source`` is the module with the bug, ``index`` what the helper commands know."""

    task_id: str
    source: str
    gold: Mutant
    function: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    index: str

    def patch(self, library: Library) -> str:
        """The gold patch."""

        return diffs.reverse(self.gold.patch(library.source, MODULE))


def mutated(library: Library) -> list[tuple[Mutant, str, str]]:
    """Each mutant that the language can express and undo, with the mutated source and the function that it is in."""
    made = []
    for mutant in mutants(library.source):
        if _word(mutant.before) is None or _word(mutant.after) is None:
            continue
        function = _function_at(library.source, mutant.line)
        if function is not None:
            made.append((mutant, mutant.apply(library.source), function))
    return made


def index(source: str, test: str = "") -> dict[str, object] | None:
    """Functions and places of a module by number; None for one with more than the language has numbers for."""
    functions = _functions(source)
    places = [
        (mutant.line, mutant.column, word)
        for mutant in {(each.line, each.column): each for each in mutants(source)}.values()
        if (word := _word(mutant.before)) is not None and _function_at(source, mutant.line) is not None
    ]
    by_function: dict[str, list[str]] = {}
    numbered: dict[str, list[object]] = {}
    for line, column, word in sorted(places):
        function = _function_at(source, line)
        assert function is not None
        own = by_function.setdefault(f"{functions[function]:02}", [])
        if len(own) < MOST_PLACES and len(numbered) < NUMBERS:
            own.append(f"{len(numbered):02}")
            numbered[own[-1]] = [line, column, word]
    if len(functions) > NUMBERS:
        return None
    return {
        "module": MODULE,
        "tests": TESTS.removesuffix(".py").replace("/", "."),
        "test": test,
        "functions": {name: f"{number:02}" for name, number in functions.items() if f"{number:02}" in by_function},
        "places_of": by_function,
        "places": numbered,
        "operators": list(OPERATORS),
    }


def archive(library: Library, source: str, known: str) -> bytes:
    """What a sandbox begins with, as a tar: the package with the given module, the helper, its index, a command for each name."""
    files = library.files | {MODULE: source.encode()}
    files |= {"bin/helper.py": HELPER.read_bytes(), "bin/base.py": source.encode(), "bin/index.json": known.encode()}
    fields = json.loads(known)
    files |= {f"bin/at/{name}": f"{' '.join(['AT', *places])}\n".encode() for name, places in fields["places_of"].items()}
    files |= {f"bin/see/{place}": f"SEE `{word}\n".encode() for place, (_, _, word) in fields["places"].items()}
    files |= {f"bin/{name}": f'#!/bin/sh\nexec python3 -S "${{0%/*}}/helper.py" {name} "$@"\n'.encode() for name in PYTHON}
    files |= {f"bin/{name}": f"#!/bin/sh\n[ $# = 1 ] || {{ echo ERR; exit; }}\n{line}\n".encode() for name, line in SHELL.items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name.rpartition("/")[2] in (*PYTHON, *SHELL) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


async def compiled(client: AsyncSandboxClient, library: Library) -> Library:
    """The library with the bytecode of all modules but the one that is broken, by the Python of the sandboxes: a test run compiles one."""
    top, _, name = MODULE.rpartition("/")
    command = (
        f"python3 -m compileall -q --invalidation-mode unchecked-hash . && rm -f {top}/__pycache__/{name.removesuffix('.py')}.*"
        " && find . -name '*.pyc' -print0 | tar cf - --null --files-from=-"
    )
    async with await client.create_sandbox("host") as sandbox:
        await unpack(sandbox, archive(library, library.source, json.dumps(index(library.source))))
        result = await sandbox.exec(f"cd {FOLDER} && {command}", timeout=120)
        await sandbox.delete()
    if result.exit_code != 0:
        raise RuntimeError(f"compileall ended with {result.exit_code}: {result.stderr[-300:]}")
    with tarfile.open(fileobj=io.BytesIO(result.stdout_bytes)) as tar:
        found = {entry.name.removeprefix("./"): tar.extractfile(entry) for entry in tar if entry.isfile()}
        return Library(library.files | {path: file.read() for path, file in found.items() if file and not path.startswith("bin/")})


async def unpack(sandbox: Machine, content: bytes) -> None:
    """Put an archive into a sandbox. Raises RuntimeError when that fails."""
    result = await sandbox.exec(f"mkdir -p {FOLDER} && tar xf - -C {FOLDER}", input=content, timeout=30)
    if result.exit_code != 0:
        raise RuntimeError(f"tar ended with {result.exit_code}: {result.output[-300:]}")


async def outcomes(sandbox: Machine, timeout_s: float = 120) -> dict[str, bool | None]:
    """Whether each test of the module passes in a sandbox, None for one that takes too long, {} when they cannot be run."""
    result = await sandbox.exec("python3 -S bin/helper.py run", cwd=FOLDER, timeout=timeout_s)
    last = result.stdout.strip().rpartition("\n")[2]
    try:
        return dict(json.loads(last))
    except ValueError:
        return {}


async def validated(client: AsyncSandboxClient, library: Library, limit: int | None = None, at_once: int = 4) -> list[Task]:
    """The tasks of a library, found out in ``at_once`` sandboxes: two runs of the tests for each mutant, so that flaky ones are left out.
    The same tasks whatever ``at_once`` is."""
    found = list(enumerate(mutated(library)))
    random.Random("order of mutants").shuffle(found)  # a limit takes some of each function
    made: dict[int, Task | None] = {}
    queue = iter(enumerate(found))

    def enough() -> bool:
        first = takewhile(made.__contains__, range(len(found)))
        return limit is not None and sum(made[place] is not None for place in first) >= limit

    async def work() -> None:
        async with await client.create_sandbox("host") as sandbox:
            await unpack(sandbox, archive(library, library.source, json.dumps(index(library.source))))
            good = {name for name, passed in (await outcomes(sandbox)).items() if passed}
            for place, (number, mutant) in queue:
                made[place] = await _tried(sandbox, library, good, number, mutant)
                if enough():
                    break
            await sandbox.delete()

    await asyncio.gather(*(work() for _ in range(at_once)))
    return [task for place in sorted(made) if (task := made[place]) is not None][:limit]


async def _tried(sandbox: AsyncSandbox, library: Library, good: set[str], number: int, tried: tuple[Mutant, str, str]) -> Task | None:
    """A mutant as a task, if it is one."""
    mutant, source, function = tried
    await sandbox.files.write(f"{FOLDER}/{MODULE}", source)
    first = await outcomes(sandbox)
    if not first or all(first.values()) or None in first.values() or await outcomes(sandbox) != first:
        return None
    failing = tuple(sorted(name for name in good if not first.get(name)))
    of_function = [name for name in failing if name == f"test_{function}"]
    known = index(source, (of_function or [*failing, ""])[0])
    if not failing or known is None or not _reachable(mutant, known):
        return None
    kept = tuple(sorted(good - set(failing)))
    return Task(f"{MODULE}:{number}", source, mutant, function, failing, kept, json.dumps(known))


def _reachable(mutant: Mutant, known: dict[str, object]) -> bool:
    """Whether the wrong operator is among the numbered places."""
    places = known["places"]
    assert isinstance(places, dict)
    return any([line, column] == [mutant.line, mutant.column] for line, column, _ in places.values())


def split(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """(train, held out): by function, so that no bug of a held-out function was seen."""
    names = sorted({task.function for task in tasks})
    held = set(names[::4])
    return [task for task in tasks if task.function not in held], [task for task in tasks if task.function in held]


def _word(text: str) -> str | None:
    word = _WORDS.get(text, text)
    return word if word in OPERATORS else None


@functools.lru_cache(maxsize=256)
def _definitions(source: str) -> tuple[tuple[str, int, int], ...]:
    """Name, first and last line of each function of a module."""
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return tuple((node.name, node.lineno, node.end_lineno or node.lineno) for node in nodes)


def _functions(source: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(name for name, _, _ in _definitions(source)))}


def _function_at(source: str, line: int) -> str | None:
    return next((name for name, first, last in _definitions(source) if first <= line <= last), None)
