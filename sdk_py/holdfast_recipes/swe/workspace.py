"""Operations on a task's repository in a sandbox: set its start state, capture the policy's changes, apply a patch, run its tests.

Owns these four, each with commands only, so that it works on any ``Machine``. ``grading`` judges outcomes, ``job`` creates sandboxes.
If the start state cannot be set, it raises a FaultError with the environment as the cause: no policy is at fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from holdfast import CommandResult

from holdfast_recipes.core import diffs
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.harness.layers import FaultError
from holdfast_recipes.harness.limits import Layer
from holdfast_recipes.harness.machine import Machine

from .archives import ArchiveError, Archives
from .grading import APPLY
from .outcomes import parsers, specs, swebench_package
from .outcomes.signed import Report, Signed
from .reports import PARSERS, Outcomes, parse_junit, worst
from .sources import SweTask

GIT = (
    "git -c safe.directory=* -c core.hooksPath=/dev/null -c core.quotePath=true -c core.fsmonitor=false"
    " -c user.name=holdfast -c user.email=holdfast@localhost"
)
_IGNORED = "__pycache__/\n*.pyc\n.pytest_cache/\n"
_STEP_S = 300.0
_LOG_BYTES = 8 * 1024 * 1024

_BASELINE = f"""
set -e
[ -e .git ] || {GIT} init -q .
mkdir -p .git/info 2>/dev/null && cat >> .git/info/exclude || cat > /dev/null
head=$({GIT} symbolic-ref -q HEAD || true)
{GIT} for-each-ref --format='delete %(refname)' | {{ grep -vxF "delete $head" || true; }} | {GIT} update-ref --stdin
rm -rf .git/logs .git/ORIG_HEAD .git/FETCH_HEAD 2>/dev/null || true
{GIT} add -A
{GIT} commit -q --no-verify --no-gpg-sign --allow-empty -m "Start" >/dev/null
{GIT} write-tree
"""
_CAPTURE = f"""
set -e
index=$(mktemp -u)
trap 'rm -f "$index" "$index.attributes"' EXIT
export GIT_INDEX_FILE="$index"
[ -z "$2" ] || echo "$2" > "$index.attributes"
{GIT} read-tree "$1"
{GIT} add -A
{GIT} -c core.attributesFile="$index.attributes" diff --cached --binary --full-index --no-color --no-ext-diff --no-textconv \\
  --no-renames --src-prefix=a/ --dst-prefix=b/ "$1"
"""


@dataclass(frozen=True, slots=True)
class TestRun:
    """The result of a run of the tests. ``finished`` is False after a time-out or an external end (``cause``). ``signed``: the runner's
    report, which gives the outcomes where there is one; None where its runner writes none (other languages, sympy's)."""

    __test__ = False  # the name is no test class

    outcomes: Outcomes
    log: str
    finished: bool
    seconds: float
    cause: str | None = None
    signed: Signed | None = None

    @property
    def started(self) -> bool:
        """Whether anything shows that tests ran. Where nothing does, the environment is at fault, whatever the patch."""
        return bool(self.outcomes) or not self.finished or (self.signed is not None and not self.signed.ended)

    @property
    def log_sha256(self) -> str:
        return hashlib.sha256(self.log.encode("utf-8", "replace")).hexdigest()


def environment(task: SweTask) -> dict[str, str]:
    """Variables of all that is run in a task's repository. Published images activate their environment in root's start-up file; and
    bytecode that is not written cannot be stale."""
    return {"PYTHONDONTWRITEBYTECODE": "1"} | ({} if task.archives else {"BASH_ENV": "/root/.bashrc"})


async def start(machine: Machine, task: SweTask, archives: Archives | None) -> str:
    """Bring the repository into its start state and commit that; returns the id of its tree.

    Other refs and reflogs go: in published images the fix can be among the commits that they name.
    """
    above = str(PurePosixPath(task.workdir).parent)
    for digest in task.archives:
        await _step(machine, ["tar", "-x", "-C", above], cwd=None, name="archive", data=_archive(archives, digest))
    for command in task.start_commands:
        await _step(machine, command, cwd=task.workdir, name="start_commands", env=environment(task))
    if task.start_patch:
        await _step(machine, f"{GIT} apply --whitespace=nowarn -", cwd=task.workdir, name="start_patch", data=task.start_patch)
    result = await _step(machine, _BASELINE, cwd=task.workdir, name="baseline", data=_IGNORED)
    return result.stdout.split()[-1]


async def capture(machine: Machine, task: SweTask, tree: str) -> str:
    """The patch from the start state to the present work directory, new files included; "" if git cannot compute it because the
    policy removed the repository. The policy's commits, its index and its configuration of git have no effect."""
    for attributes in ("", "* -diff"):  # text that is not UTF-8 goes as binary, all of it, for a patch is a string
        result = await machine.exec(["bash", "-c", _CAPTURE, "capture", tree, attributes], cwd=task.workdir, timeout=_STEP_S)
        raise_if_lost(result)
        if not result.ok:
            return ""
        with contextlib.suppress(UnicodeDecodeError):
            return result.stdout_bytes.decode()
    return ""


async def apply(machine: Machine, task: SweTask, patch: str) -> str | None:
    """Apply a patch, first to the letter, then as SWE-rebench V2 does; None, or why it does not apply."""
    for arguments in ("apply --whitespace=nowarn -", shlex.join(APPLY[1:])):
        result = await machine.exec(["bash", "-c", f"{GIT} {arguments}"], cwd=task.workdir, input=patch, timeout=_STEP_S)
        raise_if_lost(result)
        if result.ok:
            return None
    return result.output.strip()[-500:] or f"git apply ended with {result.exit_code}"


async def run_tests(
    machine: Machine, task: SweTask, *, timeout_s: float = 500.0, commands: Sequence[str] | None = None, sign: bool = True
) -> TestRun:
    """Run the task's test commands one after the other, together for at most ``timeout_s``. Outcomes come from the runner's signed report;
    where there is none, from the JUnit report that ``{report}`` in a command stands for, or from the output. ``sign`` False: no code of
    a policy runs, so no report is needed."""
    report = f"/tmp/{secrets.token_hex(8)}.xml"
    chosen = commands if commands is not None else await test_commands_of(task)
    signing = Report()
    signs = sign and await signing.prepare(machine)
    log, seconds, cause, reported = [], 0.0, None, any("{report}" in command for command in chosen)
    for command in chosen:
        text = command.replace("{report}", report)
        text = signing.applied(text) if signs else text
        result = await machine.exec(
            text,
            cwd=task.workdir,
            env=environment(task),
            timeout=max(1.0, timeout_s - seconds),
            stderr="stdout",
            max_output_bytes=_LOG_BYTES,
            keep="both",
        )
        raise_if_lost(result)
        log.append(result.stdout)
        seconds += result.duration_s
        cause = "timeout" if result.timed_out else result.cause.reason if result.cause else None
        if cause is not None:
            break
    text = "".join(log)
    signed = await signing.read(machine) if signs else None
    name = await parser_of(task)
    if signed is not None and (reported or name in SIGNABLE or signed.runner == "unittest"):
        outcomes = worst(signed.named()) if reported or name in PARSERS else await _parsed(signed.log(), name, task)
        return TestRun(outcomes, text, cause is None, seconds, cause, signed)
    outcomes = parse_junit(await _read(machine, report)) if reported else await _parsed(text, name, task)
    return TestRun(outcomes, text, cause is None, seconds, cause)


SIGNABLE = parsers.SIGNABLE | {"pytest"}


async def _parsed(log: str, name: str, task: SweTask) -> Outcomes:
    """With our parser of that name, else with that of the package swebench. Raises FaultError where neither has it."""
    parse = parsers.NAMED.get(name) or PARSERS.get(name)
    if parse is not None:
        return parse(log)
    found = await swebench_package.parsed(log, name, repo=task.repo, version=task.version)
    if found is not None:
        return found
    hint = f"install swebench in an environment of its own and name its Python in {swebench_package.VARIABLE}"
    raise FaultError(Layer.REWARD, Blame.ENVIRONMENT, "unknown_parser", f"{name}: {hint}")


async def test_commands_of(task: SweTask) -> tuple[str, ...]:
    """The commands that run a task's tests: its own; those of its repository in the published sets; else pytest on its tests' files."""
    if (spec := specs.spec_of(task)) is not None:
        return (specs.command(task, spec),)
    if (found := await _specification(task)) is not None:
        listed = found["test_cmd"]
        return tuple(found.get("build") or ()) + ((listed,) if isinstance(listed, str) else tuple(listed))
    return test_commands(task)


async def _specification(task: SweTask) -> Mapping[str, Any] | None:
    """What the package swebench knows of the repository of a row that names no command, where our table does not have it."""
    if task.test_commands or task.source not in specs.SETS or specs.spec_of(task) is not None:
        return None
    return await swebench_package.specification(task.repo, task.version)


async def parser_of(task: SweTask) -> str:
    """As ``parser_name``, with the parser that belongs to the commands where those are the package's."""
    found = None if task.log_parser else await _specification(task)
    return str(found["parser"]) if found and found["parser"] else parser_name(task)


def test_commands(task: SweTask) -> tuple[str, ...]:
    """The commands that run a task's tests: its own, or pytest on the files of its tests."""
    named = [name.partition("::")[0] for name in (*task.fail_to_pass, *task.pass_to_pass) if "::" in name]
    files = " ".join(shlex.quote(file) for file in dict.fromkeys(named))
    if not task.test_commands:
        return (f"python -m pytest -rA -p no:cacheprovider {files}",)
    if task.source == "swe_rebench":  # its commands name no files
        brought = diffs.touched(task.test_patch) if task.test_patch else []
        return tuple(f"{command} {' '.join(map(shlex.quote, brought)) or files}" for command in task.test_commands)
    return task.test_commands


def parser_name(task: SweTask) -> str:
    """Of the parser of the tests' output: the row's, that of the repository's specification, or pytest's."""
    if task.log_parser in parsers.NAMED or task.log_parser in PARSERS:
        return task.log_parser
    if not task.log_parser and (spec := specs.spec_of(task)) is not None:
        return spec.parser
    return next((known for known in PARSERS if known in task.log_parser), task.log_parser or "pytest")


def script_path(task: SweTask) -> str:
    """The path of a task's test script: the file that its tests are named after."""
    name = task.fail_to_pass[0].partition("::")[0]
    return name if re.fullmatch(r"[\w./\-]+\.py", name) and ".." not in name else "test_fail_to_pass.py"


def raise_if_lost(result: CommandResult) -> None:
    """Raises FaultError for a command that infrastructure ended, since its result does not describe the program it ran."""
    if result.cause is not None and result.cause.is_infrastructure:
        raise FaultError(Layer.OBSERVATION, Blame.INFRASTRUCTURE, result.cause.reason, result.cause.message)


async def _step(
    machine: Machine,
    command: str | list[str],
    *,
    cwd: str | None,
    name: str,
    data: bytes | str | None = None,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    words = ["bash", "-c", command] if isinstance(command, str) else command
    result = await machine.exec(words, cwd=cwd, input=data, env=env, timeout=_STEP_S)
    raise_if_lost(result)
    if not result.ok:
        raise FaultError(Layer.CREATION, Blame.ENVIRONMENT, name, result.output.strip()[-500:])
    return result


async def _read(machine: Machine, path: str) -> str:
    result = await machine.exec(["cat", path], timeout=_STEP_S)
    raise_if_lost(result)
    return result.stdout if result.ok else ""


def _archive(archives: Archives | None, digest: str) -> bytes:
    if archives is None:
        raise FaultError(Layer.CREATION, Blame.ENVIRONMENT, "archive", "the task needs archives, and no folder of them was given")
    try:
        return archives.get(digest)
    except ArchiveError as error:
        raise FaultError(Layer.CREATION, Blame.ENVIRONMENT, "archive", str(error)) from error
