"""Single-token mutants of Python modules: bugs whose fix is known, for tasks made from any library with tests (E1).

Owns the operators and where they apply. A mutant is a change of one token in code that runs: no docstring, annotation or f-string.
Whether tests see it is found out in a sandbox, and its issue text is made in ``issues``.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff

_SWAPS: dict[str, dict[str, str]] = {
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "identity": {"is": "is not", "is not": "is", "in": "not in", "not in": "in"},
    "logic": {"and": "or", "or": "and"},
    "arithmetic": {"+": "-", "-": "+", "*": "+", "/": "*", "//": "/", "%": "//", "<<": ">>", ">>": "<<", "&": "|", "|": "&"},
    "update": {"+=": "-=", "-=": "+=", "*=": "+=", "//=": "/=", "|=": "&=", "&=": "|="},
    "flow": {"break": "continue", "continue": "break"},
}
_ARITHMETIC_CLASH = {"%": (ast.Constant, ast.JoinedStr)}
"""``"…" % x`` formats: its operator is no arithmetic."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one token: ``line`` from 1, ``column`` in characters from 0. ``operator`` names the kind of change."""

    operator: str
    line: int
    column: int
    before: str
    after: str

    def apply(self, source: str) -> str:
        """The source with the bug. Raises ValueError for a source that has not ``before`` there."""
        lines = _lines(source)
        text = lines[self.line - 1] if self.line <= len(lines) else ""
        if not text.startswith(self.before, self.column):
            raise ValueError(f"line {self.line} has no {self.before!r} at column {self.column}")
        lines[self.line - 1] = text[: self.column] + self.after + text[self.column + len(self.before) :]
        return "".join(lines)

    def patch(self, source: str, path: str) -> str:
        """The bug as a diff in git's form; the gold patch is its reverse (``core.diffs.reverse``)."""
        before, after = _lines(source), _lines(self.apply(source))
        return _git_diff(before, after, path)


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module's source, in the order of the text. Raises SyntaxError for a source that is no Python."""
    tree = ast.parse(source)
    finder = _Finder(source)
    finder.visit(tree)
    unique = {(each.line, each.column, each.after): each for each in finder.found if each.after or _compiles(each, source)}
    return [unique[key] for key in sorted(unique)]


class _Finder(ast.NodeVisitor):
    """Walks what runs, and finds the tokens of operators between their operands."""

    def __init__(self, source: str) -> None:
        self.found: list[Mutant] = []
        self._lines = _lines(source)
        self._tokens = [
            token
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type in (tokenize.OP, tokenize.NAME, tokenize.NUMBER)
        ]
        self._starts = [token.start for token in self._tokens]

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 the positions within are wrong."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Its annotation does not decide anything."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            self._between(left, right, ("comparison", "identity"))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, ("logic",))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        clash = isinstance(node.op, ast.Mod) and isinstance(node.left, _ARITHMETIC_CLASH["%"])
        if not clash:
            self._between(node.left, node.right, ("arithmetic",))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._between(node.target, node.value, ("update",))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            line, column = self._start(node)
            text = self._lines[line - 1][column:]
            self.found.append(Mutant("negation", line, column, text[: len("not")], ""))
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._word(node, "break")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._word(node, "continue")

    def visit_Constant(self, node: ast.Constant) -> None:
        line, column = self._start(node)
        text = self._text(node)
        if isinstance(node.value, bool):
            self.found.append(Mutant("constant", line, column, text, str(not node.value)))
        elif isinstance(node.value, int) and text == str(node.value):
            self.found += [Mutant("constant", line, column, text, str(node.value + step)) for step in (1, -1) if node.value + step >= 0]

    def _word(self, node: ast.stmt, word: str) -> None:
        line, column = self._start(node)
        self.found.append(Mutant("flow", line, column, word, _SWAPS["flow"][word]))

    def _between(self, left: ast.expr, right: ast.expr, operators: tuple[str, ...]) -> None:
        """The operator's token: the first outside brackets between the end of one operand and the start of the other."""
        start, end = self._end(left), self._start(right)
        between = self._tokens[bisect_left(self._starts, start) : bisect_left(self._starts, end)]
        tokens = [token for token in between if token.string not in "()"]
        written = " ".join(token.string for token in tokens)
        for operator in operators:
            if (other := _SWAPS[operator].get(written)) is not None and tokens[0].start[0] == tokens[-1].end[0]:
                line, column = tokens[0].start
                before = self._lines[line - 1][column : tokens[-1].end[1]]
                self.found.append(Mutant(operator, line, column, before, other))

    def _start(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return node.lineno, self._column(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        line = node.end_lineno or node.lineno
        return line, self._column(line, node.end_col_offset or 0)

    def _text(self, node: ast.expr) -> str:
        (line, column), (_, end) = self._start(node), self._end(node)
        return self._lines[line - 1][column:end]

    def _column(self, line: int, offset: int) -> int:
        """``ast`` counts bytes, ``tokenize`` characters."""
        return len(self._lines[line - 1].encode()[:offset].decode("utf-8", "replace"))


def _compiles(mutant: Mutant, source: str) -> bool:
    """A word that is left out can leave a line that begins with a blank; another operator always fits."""
    try:
        ast.parse(mutant.apply(source))
    except (SyntaxError, ValueError):
        return False
    return True


def _lines(source: str) -> list[str]:
    """Split at newlines alone, as git does; ``str.splitlines`` also splits at form feeds."""
    return io.StringIO(source, newline="\n").readlines()


def _git_diff(before: list[str], after: list[str], path: str) -> str:
    return "".join([f"diff --git a/{path} b/{path}\n", *_marked(unified_diff(before, after, f"a/{path}", f"b/{path}"))])


def _marked(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
