"""Tasks from mutants of the library: what is wrong, which tests show it, and the files that a sandbox begins with.

Owns the index of functions and places that the helper commands speak of, and validation: a mutant is a task if some test fails with it,
every test ends, twice with the same outcome, and none fails without it. Tests run in a sandbox, never here.
"""

from __future__ import annotations

import ast
import io
import json
import random
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_recipes.core import diffs
from holdfast_recipes.miniature.language import NUMBERS, OPERATORS
from holdfast_recipes.swe.mutation import Mutant, mutants

from .material import MODULE, TESTS, Library

FOLDER = "/tmp/repair"
HELPER = Path(__file__).with_name("helper.py")
COMMANDS = ("t", "g", "v", "e", "l", "s")
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
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
        for command in COMMANDS:
            text = f'#!/bin/sh\nexec python3 -S {FOLDER}/bin/helper.py {command} "$@"\n'.encode()
            entry = tarfile.TarInfo(f"bin/{command}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


async def unpack(sandbox: AsyncSandbox, content: bytes) -> None:
    """Put an archive into a sandbox. Raises RuntimeError when that fails."""
    result = await sandbox.exec(f"mkdir -p {FOLDER} && tar xf - -C {FOLDER}", input=content, timeout=30)
    if result.exit_code != 0:
        raise RuntimeError(f"tar ended with {result.exit_code}: {result.output[-300:]}")


async def outcomes(sandbox: AsyncSandbox, timeout_s: float = 120) -> dict[str, bool | None]:
    """Whether each test of the module passes in a sandbox, None for one that takes too long, {} when they cannot be run."""
    result = await sandbox.exec("python3 -S bin/helper.py run", cwd=FOLDER, timeout=timeout_s)
    last = result.stdout.strip().rpartition("\n")[2]
    try:
        return dict(json.loads(last))
    except ValueError:
        return {}


async def validated(client: AsyncSandboxClient, library: Library, limit: int | None = None) -> list[Task]:
    """The tasks of a library, found out in one sandbox: two runs of the tests for each mutant, so that flaky ones are left out."""
    made: list[Task] = []
    async with await client.create_sandbox("host") as sandbox:
        known = json.dumps(index(library.source))
        await unpack(sandbox, archive(library, library.source, known))
        good = {name for name, passed in (await outcomes(sandbox)).items() if passed}
        all_mutants = list(enumerate(mutated(library)))
        random.Random("order of mutants").shuffle(all_mutants)  # a limit takes some of each function
        for number, (mutant, source, function) in all_mutants:
            if limit is not None and len(made) >= limit:
                break
            await sandbox.files.write(f"{FOLDER}/{MODULE}", source)
            runs = [await outcomes(sandbox)]
            if not runs[0] or all(runs[0].values()):
                continue
            runs.append(await outcomes(sandbox))
            if not runs[0] or runs[0] != runs[1] or None in runs[0].values():
                continue
            failing = tuple(sorted(name for name in good if not runs[0].get(name)))
            of_function = [name for name in failing if name == f"test_{function}"]
            known_now = index(source, (of_function or [*failing, ""])[0])
            if not failing or known_now is None or not _reachable(mutant, known_now):
                continue
            kept = tuple(sorted(good - set(failing)))
            made.append(Task(f"{MODULE}:{number}", source, mutant, function, failing, kept, json.dumps(known_now)))
        await sandbox.delete()
    return made


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


def _functions(source: str) -> dict[str, int]:
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _function_at(source: str, line: int) -> str | None:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno):
            return node.name
    return None
