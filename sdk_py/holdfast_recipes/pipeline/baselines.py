"""Policies that need no model: one submits the gold patch, the other submits nothing.

Owns their turns. The first must solve every sound task, the second none: together they check tasks, images and grading before a paid
model is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast_recipes.policy.base import ChatPolicy, Message
from holdfast_recipes.policy.scripted import ScriptedChat, call
from holdfast_recipes.prompts.swe import SUBMIT_WORD
from holdfast_recipes.swe.sources import SweTask

_END = "END_OF_THE_GOLD_PATCH"
_SUBMIT = f"git add -A && git diff --cached > /tmp/patch.txt; echo {SUBMIT_WORD} && cat /tmp/patch.txt"


def gold(task: SweTask, harness: str) -> ChatPolicy:
    """Applies the gold patch and hands it in."""
    apply = f"git apply --whitespace=nowarn - <<'{_END}'\n{task.gold_patch.rstrip(chr(10))}\n{_END}"
    return ScriptedChat(_turns(harness, f"cd {task.workdir} && {apply}" if harness == "editor" else apply), "gold")


def nothing(task: SweTask, harness: str) -> ChatPolicy:
    """Looks around and hands nothing in."""
    return ScriptedChat(_turns(harness, "ls"), "nothing")


def _turns(harness: str, command: str) -> list[Message]:
    if harness == "editor":
        return [call("terminal", command=command), call("finish", message="done")]
    return [call("bash", command=command), call("bash", command=_SUBMIT)]


BASELINES: Mapping[str, Callable[[SweTask, str], ChatPolicy]] = {"gold": gold, "nothing": nothing}
