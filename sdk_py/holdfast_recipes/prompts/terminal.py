"""The prompts of tasks in a terminal: for the harness with a subshell per call, and that with a living shell.

Owns the wording around a task's own instruction; third-party programs get that alone.
"""

from __future__ import annotations

from .base import Prompt
from .swe import SUBMIT_WORD

MINI = Prompt(
    "terminal_mini",
    1,
    """{{instruction}}

You act through the tool `bash`. Each call runs in a new subshell in {{workdir}}: directory and variables are not kept from call to \
call, and questions are not answered. A command may take {{seconds}} seconds; run what takes longer in the background.

The state of the machine is what is graded. When it is as it should be, run, as a call of its own:
echo {{submit}}""",
)

EDITOR = Prompt(
    "terminal_editor",
    1,
    """{{instruction}}

You have a terminal that lives as long as the task and starts in {{workdir}}, a file editor that takes absolute paths, a task tracker \
and a place to think; questions are not answered. The state of the machine is what is graded: call `finish` when it is as it should be.""",
)

PROGRAM = Prompt("terminal_program", 1, "{{instruction}}")


def mini(instruction: str, workdir: str, seconds: float) -> str:
    return MINI.fill(instruction=instruction, workdir=workdir, seconds=f"{seconds:g}", submit=SUBMIT_WORD)


def editor(instruction: str, workdir: str, seconds: float) -> str:
    return EDITOR.fill(instruction=instruction, workdir=workdir)


def program(instruction: str, workdir: str, seconds: float) -> str:
    return PROGRAM.fill(instruction=instruction)
