"""Mutants: each one token away from a source that git can restore, and issue texts that do not say where."""

from __future__ import annotations

import ast
import inspect
import io
import json
import random
import subprocess
import textwrap
import tokenize
from pathlib import Path

import pytest
from holdfast_recipes.core import diffs
from holdfast_recipes.swe.issues import failure, issue_text
from holdfast_recipes.swe.mutation import Mutant, mutants

SOURCE = '''"""Doc 1 < 2."""
def f(é: int = 1, flag: bool = True) -> "1 + 2":
    """Not 3 + 4."""
    total: int = é + 2  # ß
    for x in (é) , 3:
        if é <= x and not flag or x is not None:
            total += (x *
                      0x10)
            continue
        if x not in (): break
    return "%d" % total + f"{total - 1}"
'''


def found(source: str) -> list[tuple[str, str, str]]:
    return [(mutant.operator, mutant.before, mutant.after) for mutant in mutants(source)]


def test_what_is_changed() -> None:
    assert found(SOURCE) == [
        ("constant", "1", "0"),
        ("constant", "1", "2"),
        ("constant", "True", "False"),
        ("arithmetic", "+", "-"),
        ("constant", "2", "1"),
        ("constant", "2", "3"),
        ("constant", "3", "2"),
        ("constant", "3", "4"),
        ("comparison", "<=", "<"),
        ("logic", "and", "or"),
        ("negation", "not", ""),
        ("logic", "or", "and"),
        ("identity", "is not", "is"),
        ("update", "+=", "-="),
        ("arithmetic", "*", "+"),
        ("flow", "continue", "break"),
        ("identity", "not in", "in"),
        ("flow", "break", "continue"),
        ("arithmetic", "+", "-"),
    ]


@pytest.mark.parametrize("module", [json.decoder, textwrap, random])
def test_mutants_of_real_modules_differ_by_one_place(module: object) -> None:
    source = inspect.getsource(module)  # type: ignore[arg-type]
    made = mutants(source)
    assert len(made) > 20
    original = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)]
    for mutant in random.Random(0).sample(made, 20):
        changed = mutant.apply(source)
        ast.parse(changed)
        assert changed != source
        assert sum(a != b for a, b in zip(source.splitlines(), changed.splitlines(), strict=True)) == 1
        tokens = [token.string for token in tokenize.generate_tokens(io.StringIO(changed).readline)]
        assert abs(len(tokens) - len(original)) <= 1
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_the_gold_patch_is_the_reverse_of_the_bug(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for source in (SOURCE, SOURCE.rstrip("\n"), "x = 1 + 1", "a = '\f'\nb = a == 1\n"):
        (tmp_path / "m.py").write_text(source)
        for mutant in mutants(source):
            bug = mutant.patch(source, "m.py")
            subprocess.run(["git", "apply"], input=bug, cwd=tmp_path, text=True, check=True)
            assert (tmp_path / "m.py").read_text() == mutant.apply(source)
            subprocess.run(["git", "apply"], input=diffs.reverse(bug), cwd=tmp_path, text=True, check=True)
            assert (tmp_path / "m.py").read_text() == source


def test_sources_that_do_not_fit() -> None:
    with pytest.raises(SyntaxError):
        mutants("def")
    for line in (1, 9):
        with pytest.raises(ValueError, match="has no"):
            Mutant("constant", line, 0, "1", "2").apply("x = 1\n")
    assert mutants("") == []


OUTPUT = """
    def test_total():
>       assert total([1, 2]) == 3
E       assert 1/2 == 3
E        +  where 1 = total([1, 2]) at 0x7f00aa
E        +    in /opt/site/lib/core.py:12
lib/core.py:12: AssertionError
"""


def test_issues_say_what_was_seen_and_not_where() -> None:
    text = issue_text("boltons", "tests/test_core.py::TestA::test_total_of_list[a-1]", OUTPUT)
    assert "boltons" in text
    assert "total of list" in text
    assert "assert 1/2 == 3" in text
    for place in ("core.py", "tests/", "0x7f", "line", ":12"):
        assert place not in text
    assert issue_text("b", "t::test_x", "", seed=1) == issue_text("b", "t::test_x", "", seed=1)
    assert "What I see" not in issue_text("b", "t::test_x", "no explanation")
    assert failure("E   same\nother\nE   same\nE   ^^^\nE   new\n") == "same\nnew"
    assert len(failure("E   " + "x" * 9000)) == 9000
    assert len(issue_text("b", "t::test_x", "E   " + "x" * 9000)) < 1000
