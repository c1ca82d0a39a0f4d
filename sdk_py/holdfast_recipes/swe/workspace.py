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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from holdfast import CommandResult

from holdfast_recipes.core import diffs
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.harness.layers import FaultError
from holdfast_recipes.harness.limits import Layer
from holdfast_recipes.harness.machine import Machine

from .archives import ArchiveError, Archives
from .grading import APPLY
from .reports import PARSERS, Outcomes, TestOutcome, parse_junit
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
    """The result of a run of the tests. ``finished`` is False after a time-out or an external end (``cause``)."""

    __test__ = False  # the name is no test class

    outcomes: Outcomes
    log: str
    finished: bool
    seconds: float
    cause: str | None = None

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


async def run_tests(machine: Machine, task: SweTask, *, timeout_s: float = 500.0, commands: Sequence[str] | None = None) -> TestRun:
    """Run the task's test commands one after the other, together for at most ``timeout_s``. ``{report}`` in a command is replaced by the
    path of a JUnit report, which then gives the outcomes; else they are read from the output."""
    report = f"/tmp/{secrets.token_hex(8)}.xml"
    chosen = commands if commands is not None else test_commands(task)
    log, seconds, cause, reported = [], 0.0, None, any("{report}" in command for command in chosen)
    for command in chosen:
        text = command.replace("{report}", report)
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
    outcomes = parse_junit(await _read(machine, report)) if reported else parser(task)(text)
    return TestRun(outcomes, text, cause is None, seconds, cause)


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


def parser(task: SweTask) -> Callable[[str], dict[str, TestOutcome]]:
    """The parser of the tests' output. Raises FaultError for an unknown parser."""
    name = task.log_parser or "pytest"
    for known, parse in PARSERS.items():
        if known in name:
            return parse
    raise FaultError(Layer.REWARD, Blame.ENVIRONMENT, "unknown_parser", name)


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
