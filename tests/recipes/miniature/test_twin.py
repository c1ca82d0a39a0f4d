"""The miniature: its language, the twin's answers, the teacher's exact values, and the estimators that are held against them."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from holdfast_recipes.core.credit import rises
from holdfast_recipes.core.metrics import spearman
from holdfast_recipes.core.values import check_annotation
from holdfast_recipes.miniature import estimators, language
from holdfast_recipes.miniature.language import OPERATORS, Step
from holdfast_recipes.miniature.teacher import Move, Phase, State, Teacher, collect
from holdfast_recipes.miniature.twin import Bug, Twin, World, bugs

WORLD = World.make(3, operators=8, numbers=24)
BUG = Bug(symbol=12, line=7, seen=2, seed=5)
RIGHT = language.operator(OPERATORS[WORLD.right[2]])


def test_words_are_tokens_and_back() -> None:
    assert len(set(language.WORDS)) == len(language.WORDS)
    assert language.words(language.ids(language.WORDS)) == list(language.WORDS)
    assert language.operator_name("`1") == "1"
    assert language.operator_name("01") is None
    for bad in ("1", "`nothing"):
        with pytest.raises(ValueError, match="unknown word"):
            language.ids([bad])
    with pytest.raises(ValueError, match="numbers"):
        language.number(100)


def test_an_episode_becomes_tokens_with_the_policys_own_marked() -> None:
    ids, spans = language.encode([Step(("t",), ("FAIL", "12")), Step(("s",))])
    assert language.words(ids) == ["<start>", "t", "\n", ">", "FAIL", "12", "\n", "s", "\n"]
    assert language.mask(spans, None, len(ids)) == [0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert language.mask(spans, {1}, len(ids)) == [0] * 7 + [1, 1]


def test_a_world_has_no_fixed_point_and_candidates_with_the_fix() -> None:
    assert sorted(WORLD.right) == list(range(8))
    assert all(right != seen for seen, right in enumerate(WORLD.right))
    for seen, choices in enumerate(WORLD.candidates):
        assert WORLD.right[seen] in choices
        assert seen not in choices
        assert len(set(choices)) == 4
    assert World.make(3, operators=8, numbers=24) == WORLD != World.make(4, operators=8, numbers=24)


def test_the_whole_way_to_a_fix() -> None:
    twin = Twin(BUG, WORLD)
    answers = [twin.step(line.split()) for line in ("t", "g 12", "v 07")]
    assert answers == [("FAIL", "12"), ("AT", "07"), ("SEE", language.operator(OPERATORS[2]))]
    assert twin.step(("e", RIGHT, "07")) == ("OK",)
    assert twin.step(("t",)) == ("PASS",)
    assert twin.solved
    assert twin.step(("s",)) == ()
    assert (twin.ended, twin.truncated, twin.localised, twin.malformed) == (True, False, True, 0)
    with pytest.raises(ValueError, match="ended"):
        twin.step(("t",))


@pytest.mark.parametrize(
    "line", [(), ("x",), ("g",), ("g", "`<"), ("e", "07", RIGHT), ("e", "`", "07"), ("s", "s"), ("t", "07"), ("FAIL",)]
)
def test_a_malformed_line_is_answered_and_costs_a_step(line: tuple[str, ...]) -> None:
    twin = Twin(BUG, WORLD)
    assert twin.step(line) == ("ERR",)
    assert (twin.steps, twin.malformed, twin.solved) == (1, 1, False)


def test_changes_elsewhere_spoil_a_fix_until_they_are_undone() -> None:
    twin = Twin(BUG, WORLD)
    (_, before) = twin.step(("v", "03"))
    other = next(language.operator(name) for name in OPERATORS[:8] if language.operator(name) != before)
    twin.step(("e", RIGHT, "07"))
    twin.step(("e", other, "03"))
    assert twin.step(("v", "03")) == ("SEE", other)
    assert twin.step(("t",)) == ("FAIL", "12")
    twin.step(("e", before, "03"))
    assert twin.solved
    twin.step(("e", language.operator(OPERATORS[2]), "07"))
    assert not twin.solved


def test_the_budget_of_steps_ends_an_episode_and_its_state_is_graded() -> None:
    twin = Twin(BUG, WORLD, most_steps=2)
    twin.step(("e", RIGHT, "07"))
    assert twin.step(("t",)) == ()
    assert (twin.ended, twin.truncated, twin.solved) == (True, True, True)


def test_tasks_follow_from_their_seed() -> None:
    assert list(islice(bugs(WORLD, 1), 5)) == list(islice(bugs(WORLD, 1), 5)) != list(islice(bugs(WORLD, 2), 5))
    assert {bug.seen for bug in islice(bugs(WORLD, 1, [1, 3]), 30)} == {1, 3}


def test_exact_values_are_what_the_teacher_does() -> None:
    """The share of 4,000 continuations from a state lies within five standard errors of its exact value."""
    teacher = Teacher(WORLD, frozenset({0, 2}), wander=0.25, check=0.7, slip=0.1, most_steps=8)
    draw = random.Random(0)
    for state in (State(8, True, 3), State(8, False, 3), State(4, False, 2, Phase.VIEWED), State(2, True, 3, Phase.EDITED, False)):
        share = sum(teacher.finish(state, draw) for _ in range(4000)) / 4000
        value = teacher.value(state)
        assert abs(share - value) < 5 * (value * (1 - value) / 4000) ** 0.5 + 1e-9


def test_a_value_by_hand() -> None:
    """Two steps left in front of the line with three wrong candidates: an edit is right with 1/4, and wandering leaves one more try."""
    teacher = Teacher(WORLD, frozenset(), wander=0.2)
    assert teacher.value(State(1, False, 3, Phase.VIEWED)) == pytest.approx(0.8 / 4)
    assert teacher.value(State(2, False, 3, Phase.VIEWED)) == pytest.approx(0.8 / 4 + 0.2 * 0.8 / 4)
    assert teacher.value(State(0, False, 3, Phase.PASSED, True)) == 1.0


def test_a_wrong_guess_is_not_tried_again() -> None:
    assert State(5, False, 3, Phase.VIEWED).after(Move.WRONG).untried == 2
    assert State(5, True, 3, Phase.VIEWED).after(Move.WRONG).untried == 3


def test_the_teachers_runs_are_what_its_states_say() -> None:
    teacher = Teacher(WORLD, most_steps=8)
    wins, losses = collect(teacher, 4, resolved=30, unresolved=30)
    assert [len(wins), len(losses)] == [30, 30]
    assert all(run.solved for run in wins)
    assert not any(run.solved for run in losses)
    for run in wins + losses:
        assert len(run.states) == len(run.moves) + 1 == len(run.steps) + 1
        assert teacher.value(run.states[-1]) == float(run.solved)
        assert len(language.encode(run.steps)[0]) <= 64
    assert wins == collect(teacher, 4, resolved=30, unresolved=1)[0]
    assert any(Move.WRONG in run.moves for run in losses)


def test_estimators_and_their_conventions() -> None:
    teacher = Teacher(WORLD, most_steps=8)
    _, losses = collect(teacher, 5, resolved=0, unresolved=60)
    exact = [estimators.exact(run, teacher) for run in losses]
    sampled = [estimators.by_rollouts(run, teacher, 32, index) for index, run in enumerate(losses)]
    both = [[value for each in made for value in each.curve] for made in (exact, sampled)]
    assert spearman(*both) > 0.85
    for run, made in zip(losses, exact, strict=True):
        rule = estimators.milestone(run)
        assert (rule.value_of, len(rule.values), made.value_of, len(made.values)) == ("after", len(run.steps), "before", len(run.steps) + 1)
        assert "final_not_low" not in check_annotation(rule.values)
        turns = rule.credit(len(run.steps)).turns
        assert {run.moves[turn] for turn in turns} <= {Move.TEST, Move.FIND, Move.VIEW}
        assert sum(each - before for before, each in zip(made.curve, made.curve[1:], strict=False)) == pytest.approx(
            made.curve[-1] - made.curve[0]
        )


def test_disturbances_keep_what_they_must() -> None:
    teacher = Teacher(WORLD, most_steps=8)
    run = collect(teacher, 6, resolved=0, unresolved=1)[1][0]
    rule = estimators.milestone(run)
    noisy = estimators.noisy(rule, 0.2, 1)
    assert (noisy.values[0], noisy.values[-1]) == (rule.values[0], rule.values[-1])
    assert noisy.values != rule.values
    assert all(0 <= value <= 1 for value in noisy.values)
    sparse = estimators.sparse(rule, 2, "previous")
    assert sparse.values[::2] == rule.values[::2]
    misread = estimators.misread(rule)
    assert (misread.value_of, misread.values) == ("before", rule.values)
    assert rises(misread.values) == rises(rule.values)
