"""Compiles modules in a process of its own, so that the same text always gives the same bytes.

Owns nothing but that: what ``marshal`` writes depends on the seed of string hashes and on which strings the process already holds, so
``build`` runs this file as a program with a fixed seed, an empty environment and always the same order. Files are hash-based and never
checked again: the bundle is read-only, and its times mean nothing.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import sys


def main() -> int:
    """Read jobs as JSON from standard input: ``[shown name, source text, optimization level, target]`` each."""
    for shown, text, optimize, target in json.load(sys.stdin):
        code = compile(text, shown, "exec", dont_inherit=True, optimize=optimize)
        with open(target, "wb") as file:
            file.write(importlib.util.MAGIC_NUMBER + b"\x01\0\0\0" + bytes(8) + marshal.dumps(code))
    return 0


if __name__ == "__main__":
    sys.exit(main())
