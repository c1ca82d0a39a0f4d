"""The package swebench in an environment of its own: its parsers for the sets that have them, and its specifications.

Owns the process that reads a log with a parser of the package (5.x), or gives the test command of a repository's version (4.1 has
them). ``HOLDFAST_SWEBENCH`` names the Python of an environment that has it; without it our own parsers and table are used.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from holdfast_recipes.core.scored import Blame
from holdfast_recipes.harness.layers import FaultError
from holdfast_recipes.harness.limits import Layer
from holdfast_recipes.swe.reports import Outcomes, TestOutcome

VARIABLE = "HOLDFAST_SWEBENCH"
_LIMIT_S = 120.0
_INNER = """
import json, sys
order = json.load(sys.stdin)
sys.stdout, out = sys.stderr, sys.stdout
answer = None
if "log" in order:
    from types import SimpleNamespace
    try:
        from swebench.harness.log_parsers import PARSER_REGISTRY as known
        parse = known.get(order["parser"])
    except ImportError:
        from swebench.harness.log_parsers import MAP_REPO_TO_PARSER as repos
        parse = {each.__name__: each for each in repos.values()}.get(order["parser"])
    if parse is not None:
        answer = parse(order["log"], SimpleNamespace(repo=order["repo"], version=order["version"]))
else:
    try:
        from swebench.harness.constants import MAP_REPO_VERSION_TO_SPECS as specs
        from swebench.harness.log_parsers import MAP_REPO_TO_PARSER as parsers
    except ImportError:
        import swebench.harness  # 5.x, whose rows bring their own commands and parsers
        specs = parsers = {}
    spec = specs.get(order["repo"], {}).get(order["version"])
    if spec is not None:
        parse = parsers.get(order["repo"])
        answer = {"test_cmd": spec["test_cmd"], "build": spec.get("build"), "parser": getattr(parse, "__name__", "")}
json.dump(answer, out)
"""
_STATUS = {"PASSED": TestOutcome.PASSED, "XFAIL": TestOutcome.PASSED, "FAILED": TestOutcome.FAILED, "ERROR": TestOutcome.ERROR}


def python() -> str:
    """The Python that has the package, "" without."""
    return os.environ.get(VARIABLE, "")


async def parsed(log: str, parser: str, *, repo: str = "", version: str = "") -> Outcomes | None:
    """Outcomes as the package reads them; None where it is not installed or has no such parser."""
    found = await _ask({"log": log, "parser": parser, "repo": repo, "version": version})
    return None if found is None else {name: _STATUS.get(status, TestOutcome.SKIPPED) for name, status in found.items()}


async def specification(repo: str, version: str) -> Mapping[str, Any] | None:
    """``test_cmd``, ``build`` and the name of the ``parser`` of a repository's version; None where there is none. Asked once for each."""
    key = python(), repo, version
    if key not in _specifications:
        _specifications[key] = await _ask({"repo": repo, "version": version})
    return _specifications[key]


_specifications: dict[tuple[str, str, str], Mapping[str, Any] | None] = {}
"""By Python, repository and version: as many as a set has."""


async def _ask(order: Mapping[str, Any]) -> dict[str, Any] | None:
    if not (program := python()):
        return None
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(program, "-I", "-c", _INNER, stdin=pipe, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(_LIMIT_S):
            out, error = await process.communicate(json.dumps(order).encode())
    except (OSError, TimeoutError) as problem:
        raise FaultError(Layer.REWARD, Blame.ENVIRONMENT, "swebench", f"{VARIABLE}={program}: {problem}") from problem
    if process.returncode:
        raise FaultError(Layer.REWARD, Blame.ENVIRONMENT, "swebench", error.decode("utf-8", "replace").strip()[-500:])
    answer: dict[str, Any] | None = json.loads(out)
    return answer
