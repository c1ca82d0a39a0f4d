"""E1's parts that need neither torch nor a sandbox: the helper commands on a small library, the format of the loop, the teacher, faults."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tarfile
from itertools import islice
from pathlib import Path

import pytest
from holdfast_recipes.core.calls import CallFault
from holdfast_recipes.core.template import Kind
from holdfast_recipes.miniature import language
from holdfast_recipes.policy.base import Message

from infra.recipes import plan
from infra.recipes.repair import job, tasks
from infra.recipes.repair.material import MODULE, TESTS, Library
from infra.recipes.repair.teacher import GUESSES, RepairTeacher

SOURCE = """import operator


def least(values):
    best = None
    for value in values:
        if best is None or value < best:
            best = value
    return best


def add_all(values):
    total = 0
    for value in values:
        total = total + value
    return total


def plain(values):
    return values
"""
TEST = """from toolz.itertoolz import add_all, least, plain


def test_least():
    assert least([2, 1, 3]) == 1


def test_add_all():
    assert add_all([2, 3]) == 5
    assert least([1, 1]) == 1


def test_plain():
    assert plain(3) == 3
"""
LIBRARY = Library({MODULE: SOURCE.encode(), TESTS: TEST.encode(), "toolz/__init__.py": b"", "toolz/tests/__init__.py": b""})


class Box:
    """The archive of a task, unpacked; its commands run here as they do in a sandbox."""

    def __init__(self, folder: Path, mutate: str, test: str) -> None:
        self.folder = folder
        (self.mutant, self.source, self.function) = next(each for each in tasks.mutated(LIBRARY) if each[0].before == mutate)
        self.index = tasks.index(self.source, test)
        content = tasks.archive(LIBRARY, self.source, json.dumps(self.index))
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(folder, filter="data")

    def __call__(self, line: str) -> str:
        name, *words = line.split()
        graders = [sys.executable, "-S", str(self.folder / "bin" / "helper.py"), name]
        command = graders if name == "run" else [str(self.folder / "bin" / name)]
        result = subprocess.run([*command, *words], cwd=self.folder, capture_output=True, text=True, check=True, timeout=60)
        return result.stdout.rstrip("\n")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path, "+", "test_add_all")


def test_a_bug_is_found_viewed_repaired_and_submitted(box: Box) -> None:
    assert box("t") == "FAIL 01"  # functions are numbered in order: least, add_all; plain has no operator
    word, *places = box("g 01").split()
    assert word == "AT"
    seen = {place: box(f"v {place}") for place in places}
    wrong = next(place for place, text in seen.items() if text == "SEE `-")
    assert box(f"e `+ {wrong}") == "OK"
    assert box(f"v {wrong}") == "SEE `+"
    assert box("t") == "PASS"
    first, _, patch = box("s").partition("\n")
    assert first == "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    assert patch.startswith(f"--- a/{MODULE}\n+++ b/{MODULE}\n")
    assert "\n-        total = total - value\n+        total = total + value\n" in patch
    assert (box.folder / MODULE).read_text() == SOURCE


def test_a_fix_that_is_taken_back_leaves_the_bug(box: Box) -> None:
    place = next(place for place in box("g 01").split()[1:] if box(f"v {place}") == "SEE `-")
    box(f"e `* {place}")
    assert box("t") == "FAIL 01"
    box(f"e `- {place}")
    assert (box.folder / MODULE).read_text() == box.source
    assert box("s").partition("\n")[2] == ""


def test_operators_of_another_length_move_no_other_place(box: Box) -> None:
    _, *places = box("g 00").split()
    texts = {place: box(f"v {place}") for place in places}
    comparison = next(place for place, text in texts.items() if text == "SEE `is")
    assert box(f"e `isnot {comparison}") == "OK"
    assert "if best is not None or value < best" in (box.folder / MODULE).read_text()
    assert {place: box(f"v {place}") for place in places if place != comparison} == {p: t for p, t in texts.items() if p != comparison}


@pytest.mark.parametrize(
    "line", ["g 99", "g", "g 00 00", "v 99", "v", "v `//", "e `+", "e `+ 99", "e nothing 00", "l", "l x", "t now", "e `break 00"]
)
def test_what_cannot_be_is_an_error_and_changes_nothing(box: Box, line: str) -> None:
    assert box(line) == "ERR"
    assert (box.folder / MODULE).read_text() == box.source


def test_where_a_failure_in_the_test_itself_comes_from(tmp_path: Path) -> None:
    box = Box(tmp_path, "0", "test_add_all")
    assert "total = 1" in box.source
    assert box("t") == "FAIL 01"
    assert json.loads(box("run")) == {"test_least": True, "test_add_all": False, "test_plain": True}


def test_a_test_that_does_not_end_is_neither_passed_nor_failed(tmp_path: Path) -> None:
    box = Box(tmp_path, "+", "test_add_all")
    (tmp_path / MODULE).write_text(SOURCE + "\n\ndef plain(values):\n    while True:\n        pass\n")
    assert json.loads(box("run")) == {"test_least": True, "test_add_all": True, "test_plain": None}


def test_the_gold_patch_is_the_mutant_undone(box: Box) -> None:
    task = tasks.Task("x", box.source, box.mutant, box.function, ("test_add_all",), (), json.dumps(box.index))
    assert "-        total = total - value" in task.patch(LIBRARY)
    assert "+        total = total + value" in task.patch(LIBRARY)


def test_the_split_is_by_function() -> None:
    mutant = tasks.mutated(LIBRARY)[0][0]
    made = [tasks.Task(str(n), "", mutant, f"f{n % 8}", (), (), "") for n in range(32)]
    train, held = tasks.split(made)
    assert len(train) + len(held) == 32
    assert not {task.function for task in train} & {task.function for task in held}
    assert {task.function for task in held} == {"f0", "f4"}


def test_the_format_of_the_loop_is_that_of_the_language() -> None:
    messages: list[Message] = [
        {"role": "user", "content": language.START},
        {"role": "assistant", "content": "g 12"},
        {"role": "tool", "content": "AT 45\nand more"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "e \'`<\' 45"}'}}]},
        {"role": "user", "content": ""},
    ]
    pieces = job.render(messages)
    text = "".join(f"{piece.text} " for piece in pieces)
    steps = [language.Step(("g", "12"), ("AT", "45")), language.Step(("e", "`<", "45"), ("ERR",))]
    assert job.Words().encode(text) == language.encode(steps)[0]
    assert [piece.turn for piece in pieces if piece.kind is Kind.END] == [0, 1]


@pytest.mark.parametrize(("text", "command"), [("t", "t"), ("e `< 45", "e '`<' 45"), ("s", "s"), ("g", "g")])
def test_lines_become_shell_commands(text: str, command: str) -> None:
    parsed = job.parse(text)
    assert [call.arguments for call in parsed.calls] == [{"command": command}]
    assert not parsed.errors


@pytest.mark.parametrize("text", ["", "FAIL 12", "`< 45", "45"])
def test_lines_that_are_no_command_are_errors(text: str) -> None:
    parsed = job.parse(text)
    assert [error.fault for error in parsed.errors] == [CallFault.NO_CALL]
    assert not parsed.calls


def _next_command(*lines: str) -> tuple[str, ...]:
    ids = job.Words().encode(language.START + "".join(f" {line}\n" for line in lines))
    return RepairTeacher(wander=0.0).next(ids, random.Random(0))


def test_the_teacher_goes_on_from_what_it_saw() -> None:
    assert _next_command() == ("t",)
    assert _next_command("t", "> FAIL 03") == ("g", "03")
    assert _next_command("t", "> FAIL 03", "g 03", "> AT 07") == ("v", "07")
    seen = ("t", "> FAIL 03", "g 03", "> AT 07", "v 07", "> SEE `<=")
    assert _next_command(*seen) == ("e", "`<", "07")
    assert _next_command(*seen, "e `< 07", "> OK") == ("t",)
    assert _next_command(*seen, "e `< 07", "> OK", "t", "> PASS") == ("s",)
    assert _next_command(*seen, "e `< 07", "> OK", "t", "> FAIL 03") == ("e", "`<=", "07")  # taken back
    assert _next_command(*seen, "e `< 07", "> OK", "t", "> FAIL 03", "e `<= 07", "> OK") == ("s",)  # no place is left
    assert _next_command("l 04", "> OK", "t", "> FAIL 03") == ("g", "03")
    assert _next_command("t", "> ERR") == ("s",)
    for operator, guesses in GUESSES.items():
        assert {operator, *guesses} <= set(language.OPERATORS)


def test_faults_are_seeded_and_counted() -> None:
    drawn = [[faults.draw() for _ in range(400)] for faults in (job.Faults(0.05, 1), job.Faults(0.05, 1), job.Faults(0.05, 2))]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 5 < sum(drawn[0]) < 40
    none = job.Faults(0.0, 1)
    assert not any(none.draw() for _ in range(50))
    assert none.counts == {"creation": 0, "sandbox": 0}


def test_what_was_registered_can_be_run() -> None:
    made = [job for path in (plan.PATH, plan.EQUAL) for job in plan.jobs(path, [name for name in plan.load(path) if name != "common"])]
    assert len({each.key for each in made}) == len(made)
    assert {each.settings["kind"] for each in made} == {"credit", "estimators", "balance"}
    for each in made:
        assert each.settings["operators"] <= len(language.OPERATORS)
        assert plan.held_out(each.settings | {"evaluation_tasks": 3}, each.seed) == plan.held_out(
            each.settings | {"evaluation_tasks": 3}, each.seed
        )
    assert [each.seed for each in made if each.key.startswith("e4/")][:10] == [11] * 10
    equal = [each for each in made if each.plan == plan.digest(plan.EQUAL)]
    assert all(len({each.seed for each in equal if each.experiment == name}) >= 5 for name in {each.experiment for each in equal})
    arms = [each for each in equal if each.settings["kind"] == "credit"]
    assert {(each.settings.get("sft_steps"), each.settings.get("sft_tokens")) for each in arms} == {(600, None), (None, 376_000)}
    assert plan.load(plan.REPAIR)["fault_rates"] == [0.0, 0.05]


def test_what_is_held_out_never_occurs_in_training_and_its_words_do() -> None:
    settings = plan.load(plan.EQUAL)["common"] | plan.load(plan.EQUAL)["transfer"]
    trained = list(islice(plan.trained(settings, plan.world(settings, 11), 3), 2000))
    held = plan.held_out(settings, 11)
    assert len(held) == settings["evaluation_tasks"]
    assert not {(bug.symbol, bug.seen) for bug in trained} & {(bug.symbol, bug.seen) for bug in held}
    for word in ("symbol", "seen", "line"):
        assert {getattr(bug, word) for bug in held} <= {getattr(bug, word) for bug in trained}
