"""Compiles modules in a separate process, so that the same source always gives the same bytes, without docstrings.

The output of ``marshal`` depends on the seed of string hashes and on the strings that the process already has, so ``build`` runs this file
as a program with a fixed seed, an empty environment and always the same order. Files are hash-based and never checked again: the bundle is
read-only, and its times are constant.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import marshal
import sys


def without_docs(text: str) -> ast.Module:
    """The module without docstrings.

    A decorated class gets a short one, because a dataclass without one computes its signature at import.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:  # an empty module
            continue
        first = node.body[0]
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            short = ast.copy_location(ast.Expr(ast.copy_location(ast.Constant("."), node)), node)
            node.body[: int(_is_doc(first))] = [short]
        elif _is_doc(first):
            node.body[:1] = [] if len(node.body) > 1 else [ast.copy_location(ast.Pass(), first)]
    return tree


def _is_doc(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def main() -> int:
    """Read jobs as JSON from standard input: ``[shown name, source text, optimization level, target]`` each."""
    for shown, text, optimize, target in json.load(sys.stdin):
        code = compile(without_docs(text), shown, "exec", dont_inherit=True, optimize=optimize)
        with open(target, "wb") as file:
            file.write(importlib.util.MAGIC_NUMBER + b"\x01\0\0\0" + bytes(8) + marshal.dumps(code))
    return 0


if __name__ == "__main__":
    sys.exit(main())
