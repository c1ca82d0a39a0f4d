"""Signed reports of a test run: what is put into a sandbox before the run and read from it after (``inside_report`` is the inner half).

Owns the key, the check of the chain of signatures, and the lines that a report becomes for the parser of its set. A patch may print any
summary, end the process, or write over the report: none of these has the key. Code that looks for the key in the memory of its own
process can find it; a run that shows a change of the functions which decide outcomes counts as tampered with.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.swe.reports import TestOutcome

_STEP_S = 60.0
_PREPARE = """set -e
mkdir -m 700 "$1" "$1/plugin"
printf %s "$2" > "$1/key"
cat > "$1/plugin/holdfast_report.py"
cp "$1/plugin/holdfast_report.py" "$1/plugin/sitecustomize.py"
"""


@dataclass(frozen=True, slots=True)
class Signed:
    """``lines``: (outcome, name) of each test in order. ``ended``: the runner came to its end. ``tampered``: the function that was
    changed, or "report" where the file is not what the run wrote."""

    runner: str
    lines: tuple[tuple[str, str], ...]
    ended: bool
    tampered: str = ""

    def named(self) -> list[tuple[str, TestOutcome]]:
        """Each test with its outcome, under the runner's name for it; characters that XML lacks are as in a JUnit report."""
        return [(_NOT_XML.sub(lambda found: f"#x{ord(found[0]):02X}", name), _WORDS[outcome]) for outcome, name in self.lines]

    def log(self) -> str:
        """The report as the runner would print it, for the parser of the set."""
        if self.runner == "pytest":  # its summary gives no names of skipped tests
            return "\n".join(f"{outcome} {name}" for outcome, name in self.lines if outcome != "SKIPPED")
        return "\n".join(f"{name} ... {outcome}" for outcome, name in self.lines)


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_WORDS = {
    **dict.fromkeys(("PASSED", "XFAIL", "XPASS", "ok", "expected failure"), TestOutcome.PASSED),
    **dict.fromkeys(("FAILED", "FAIL", "unexpected success"), TestOutcome.FAILED),
    "ERROR": TestOutcome.ERROR,
    **dict.fromkeys(("SKIPPED", "skipped"), TestOutcome.SKIPPED),
}


@dataclass(frozen=True, slots=True)
class Report:
    """One run's report."""

    folder: str = field(default_factory=lambda: f"/tmp/{secrets.token_hex(8)}")
    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def applied(self, command: str) -> str:
        """The command with the plugin on the path of Python, also where it sets that path itself; what the image sets stays. Where Python
        does not find the plugin, the run is not signed and nothing else changes."""
        plugin = f"{self.folder}/plugin"
        return (
            f"export HOLDFAST_REPORT={self.folder} PYTHONPATH={plugin}${{PYTHONPATH:+:$PYTHONPATH}}"
            f' TOX_TESTENV_PASSENV="HOLDFAST_REPORT PYTHONPATH"; {command.replace("PYTHONPATH=", f"PYTHONPATH={plugin}:")}'
        )

    async def prepare(self, machine: Machine) -> bool:
        """Put key and plugin into the sandbox; False where it could not be, and the run is not signed."""
        plugin = resources.files(__package__).joinpath("inside_report.py").read_text()
        command = ["sh", "-c", _PREPARE, "prepare", self.folder, self.key]
        result = await machine.exec(command, input=plugin, timeout=_STEP_S)
        return bool(result.ok)

    async def read(self, machine: Machine) -> Signed | None:
        """What the run reported; None where no runner loaded the plugin."""
        result = await machine.exec(["cat", f"{self.folder}/report"], timeout=_STEP_S, max_output_bytes=64 * 1024 * 1024)
        return verified(result.stdout, self.key) if result.ok else None


def verified(text: str, key: str) -> Signed:
    """The content of a report. Lines without the signature of the run, and lines after the end, are not of the run."""
    last, lines, runner, ended, tampered = b"", [], "", False, ""
    for line in text.splitlines():
        record, _, mac = line.rpartition(" ")
        made = hmac.new(key.encode(), last + record.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(made, mac):
            return Signed(runner, (), False, "report")
        last = made.encode()
        content: dict[str, Any] = json.loads(record)
        runner = content.get("runner", runner)
        tampered = tampered or str(content.get("tampered", ""))
        ended = "end" in content
        if "id" in content:
            lines.append((str(content["outcome"]), str(content["id"])))
    return Signed(runner, tuple(lines), ended, tampered)
