"""The prompts of repository repair: for the harness with a subshell per call, that with a living shell, and third-party programs.

Owns the wording: the issue, the boundaries, the workflow and how work is handed in. The words that hand it in are the protocols of the
two public harnesses, so that policies trained here work with these harnesses.
"""

from __future__ import annotations

from .base import Prompt

SUBMIT_WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

_BOUNDARIES = """Boundaries:
- Change the source of the project only. Tests, test data and configuration of tests and builds stay as they are: changes to them are \
ignored when your work is graded.
- The fix must be general: hidden tests check other cases than those in the issue, and everything that works now must go on working.

Suggested way: read the code that the issue is about; write a small script that shows the problem; change the source; run the script \
and the project's own tests; look for edge cases."""

MINI = Prompt(
    "swe_mini",
    1,
    """Resolve this issue in the repository at {{workdir}}.

<issue>
{{issue}}
</issue>

"""
    + _BOUNDARIES
    + """

You act through the tool `bash`. Each call runs in a new subshell in {{workdir}}: directory and variables are not kept from call to \
call. A command may take 60 seconds.

To hand in your work, write the patch to a file with `git diff > /tmp/patch.txt`, look at it, and then run, as a call of its own:
echo {{submit}} && cat /tmp/patch.txt""",
)

EDITOR = Prompt(
    "swe_editor",
    1,
    """Resolve this issue in the repository at {{workdir}}.

<issue>
{{issue}}
</issue>

"""
    + _BOUNDARIES
    + """

You have a terminal that lives as long as the task, a file editor that takes absolute paths, a task tracker and a place to think. \
Call `finish` with a short message when the work is done: the state of the repository is what is graded.""",
)

PROGRAM = Prompt(
    "swe_program",
    1,
    """Resolve this issue in the repository at {{workdir}}.

<issue>
{{issue}}
</issue>

"""
    + _BOUNDARIES
    + """

Questions are not answered. When the work is done, end. The state of the repository is what is graded.""",
)


def mini(issue: str, workdir: str) -> str:
    return MINI.fill(issue=issue, workdir=workdir, submit=SUBMIT_WORD)


def editor(issue: str, workdir: str) -> str:
    return EDITOR.fill(issue=issue, workdir=workdir)


def program(issue: str, workdir: str) -> str:
    return PROGRAM.fill(issue=issue, workdir=workdir)
