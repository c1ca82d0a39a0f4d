"""The command language of the miniature: words, the vocabulary of a tiny policy, and how an episode becomes tokens.

Owns the format. An action is one line, an observation one line after ``>``. The same lines are spoken by the twin (``twin``) and by the
helper commands in a sandbox, so one policy can work in both:

    t            run the target test       > FAIL 12   |  > PASS        12: the function in which it fails
    g 12         find the function         > AT 45 47                   its lines with an operator
    v 45         view a line               > SEE <                      the operators of the line
    e <= 45      replace its operator      > OK        |  > ERR
    l 12         look into a file          > OK                         no help: how a policy loses time
    s            submit
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OPERATORS = (
    *("<", "<=", ">", ">=", "==", "!=", "is", "isnot", "in", "notin", "and", "or"),
    *("+", "-", "*", "/", "//", "%", "<<", ">>", "&", "|", "+=", "-=", "*=", "//=", "|=", "&="),
    *("break", "continue", "True", "False", "not", "0", "1", "2"),
)
"""Operators and constants as one word each; ``is not`` and ``not in`` are written together."""
NUMBERS = 100
"""Functions and lines are numbered 00 … 99, one word each."""
PAD, START, SEEN, END = "<pad>", "<start>", ">", "\n"
COMMANDS = ("t", "g", "v", "e", "l", "s")
ANSWERS = ("FAIL", "PASS", "AT", "SEE", "OK", "ERR")
_OPERATOR_MARK = "`"
"""Operators carry a mark in the vocabulary: the number 1 is another word than the constant 1."""

WORDS: tuple[str, ...] = (
    *(PAD, START, SEEN, END),
    *COMMANDS,
    *ANSWERS,
    *(_OPERATOR_MARK + operator for operator in OPERATORS),
    *(f"{number:02}" for number in range(NUMBERS)),
)
_IDS = {word: index for index, word in enumerate(WORDS)}
PAD_ID, START_ID, SEEN_ID, END_ID = (_IDS[word] for word in (PAD, START, SEEN, END))
MOST_ACTION_TOKENS = 5
"""``e OPERATOR LINE`` and its end are four; one more shows a line that does not end."""


def number(value: int) -> str:
    if not 0 <= value < NUMBERS:
        raise ValueError(f"numbers are 0 … {NUMBERS - 1}, not {value}")
    return f"{value:02}"


def operator(name: str) -> str:
    """The word of an operator. Raises ValueError for one that is not in the language."""
    if name not in OPERATORS:
        raise ValueError(f"unknown operator {name!r}")
    return _OPERATOR_MARK + name


def operator_name(word: str) -> str | None:
    """The operator that a word stands for, or None."""
    name = word.removeprefix(_OPERATOR_MARK)
    return name if name != word and name in OPERATORS else None


def ids(words: Iterable[str]) -> list[int]:
    """Token ids of words. Raises ValueError for a word that is not in the vocabulary."""
    try:
        return [_IDS[word] for word in words]
    except KeyError as error:
        raise ValueError(f"unknown word {error.args[0]!r}") from None


def words(tokens: Iterable[int]) -> list[str]:
    return [WORDS[token] for token in tokens]


def action_ids(line: Sequence[str]) -> list[int]:
    return [*ids(line), END_ID]


def observation_ids(line: Sequence[str]) -> list[int]:
    return [SEEN_ID, *ids(line), END_ID]


@dataclass(frozen=True, slots=True)
class Step:
    """One turn: the words of the action and of what was answered (none after the last)."""

    action: tuple[str, ...]
    observation: tuple[str, ...] = ()


def encode(steps: Sequence[Step]) -> tuple[list[int], list[tuple[int, int]]]:
    """[T] ids of an episode, and for each turn the half-open span of the tokens that the policy wrote, its line end among them."""
    tokens, spans = [START_ID], []
    for step in steps:
        start = len(tokens)
        tokens += action_ids(step.action)
        spans.append((start, len(tokens)))
        if step.observation:
            tokens += observation_ids(step.observation)
    return tokens, spans


def mask(spans: Sequence[tuple[int, int]], turns: Iterable[int] | None, length: int) -> list[int]:
    """[T] 0/1: the tokens of the given turns, of all turns for None."""
    chosen = range(len(spans)) if turns is None else turns
    bits = [0] * length
    for turn in chosen:
        start, end = spans[turn]
        bits[start:end] = [1] * (end - start)
    return bits
