"""A scripted policy for repair tasks: test, find, view, try a fix, test again, take it back, try the next place.

Owns its rules and knobs. It is a policy of token ids like any other; what it does next follows from the ids and the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from holdfast_recipes.miniature import language
from holdfast_recipes.policy.base import Generation

GUESSES = {
    "<": ("<=", ">"),
    "<=": ("<",),
    ">": (">=", "<"),
    ">=": (">",),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("isnot",),
    "isnot": ("is",),
    "in": ("notin",),
    "notin": ("in",),
    "and": ("or",),
    "or": ("and",),
    "+": ("-", "*"),
    "-": ("+",),
    "*": ("/", "+"),
    "/": ("//",),
    "//": ("%", "*"),
    "+=": ("-=", "*="),
    "-=": ("+=",),
    "True": ("False",),
    "False": ("True",),
    "0": ("1",),
    "1": ("0", "2"),
    "2": ("1",),
    "break": ("continue",),
    "continue": ("break",),
}
"""What it tries where it sees an operator. Some of it is wrong, and for some operators it knows nothing."""


class RepairTeacher:
    """``wander``: how often it looks into a file for nothing."""

    name, version = "scripted-teacher", 0

    def __init__(self, wander: float = 0.15) -> None:
        self._wander = wander

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        ids = language.action_ids(self.next(prompt_ids, random.Random(seed)))
        return Generation(tuple(ids), (0.0,) * len(ids))

    def next(self, prompt_ids: Sequence[int], draw: random.Random) -> tuple[str, ...]:
        """The words of its next action."""
        lines = [line.split() for line in " ".join(language.words(prompt_ids[1:])).split(language.END) if line.strip()]
        turns = list(zip(lines[::2], lines[1::2], strict=False))
        if draw.random() < self._wander:
            return ("l", language.number(draw.randrange(language.NUMBERS)))
        turns = [(action, seen[1:]) for action, seen in turns if action and action[0] != "l"]
        if not turns:
            return ("t",)
        (last, seen) = turns[-1]
        functions = [answer[1] for action, answer in turns if action == ["t"] and answer[:1] == ["FAIL"] and len(answer) > 1]
        places = [word for action, answer in turns if action[0] == "g" for word in answer[1:]]
        views = [(action[1], answer[1]) for action, answer in turns if action[0] == "v" and len(answer) > 1]
        if last == ["t"] and seen == ["PASS"]:
            return ("s",)
        taken_back = last[0] == "e" and views and last[1] == views[-1][1]
        if last[0] == "e" and not taken_back:
            return ("t",)
        if functions and not places:
            return ("g", functions[-1]) if last[0] == "t" else ("s",)
        if last[0] == "v" and len(seen) > 1:
            guesses = GUESSES.get(seen[1].removeprefix("`"))
            if guesses:
                return ("e", language.operator(draw.choice(guesses)), last[1])
        edited = [action for action, _ in turns if action[0] == "e"]
        if last == ["t"] and edited and views and edited[-1][1] != views[-1][1]:
            return ("e", views[-1][1], views[-1][0])  # take the last try back
        left = [place for place in places if place not in {place for place, _ in views} and [place] not in [a[1:] for a, _ in turns]]
        return ("v", draw.choice(left)) if left else ("s",)
