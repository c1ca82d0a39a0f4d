"""Every setting that the code reads has a row in the runbook, and every row names a setting that the code reads.

Names are taken from string literals of the source. Docstrings count: they have names that are built at run time (``HOLDFAST_QUOTA_CPU``).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READERS = ["gateway", "session_agent/node", "sdk_py"]
NAME = re.compile(r"\bHOLDFAST_[A-Z0-9_]*[A-Z0-9]\b")

INTERNAL = {
    "HOLDFAST_FAILED_STARTS",  # from the supervisor to the Procfile: failed starts of Redis in a row
    "HOLDFAST_REDIS_SOCKET",  # likewise: where its own Redis listens
    "HOLDFAST_REPORT",  # from the grader of the recipes to the run of the tests: where its report goes
    "HOLDFAST_REDIS_PASSWORD",  # a Secret of the manifests, which put it into HOLDFAST_REDIS_URL
}


def names(text: str) -> set[str]:
    """Settings named in a text; those that the gateway passes to agents (``HOLDFAST_AGENT_*``) are not for operators."""
    return {name for name in NAME.findall(text) if not name.startswith("HOLDFAST_AGENT_")} - INTERNAL


def read_by_code() -> set[str]:
    found: set[str] = set()
    for reader in READERS:
        for path in (ROOT / reader).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= names(node.value)
    return found


def rows_of_the_runbook() -> set[str]:
    lines = (ROOT / "infra" / "README.md").read_text().splitlines()
    return {name for line in lines if line.startswith("| `HOLDFAST_") for name in names(line.split(" | ")[0])}


def test_every_setting_has_a_row_in_the_runbook() -> None:
    code = read_by_code()
    assert len(code) > 40, "the search finds nothing"
    assert sorted(code - rows_of_the_runbook()) == [], "settings without a row in infra/README.md"


def test_every_row_is_a_setting_that_the_code_reads() -> None:
    assert sorted(rows_of_the_runbook() - read_by_code()) == [], "rows of infra/README.md that nothing reads"


def test_manifests_set_only_what_the_code_reads() -> None:
    manifests = set[str]().union(*(names(path.read_text()) for path in (ROOT / "infra" / "k8s").rglob("*.yaml")))
    assert sorted(manifests - read_by_code()) == []
