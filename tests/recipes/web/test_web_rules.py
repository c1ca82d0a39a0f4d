"""D6: coordinates, what is kept of screenshots, and the reward table."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from holdfast_recipes.web.coordinates import to_pixels
from holdfast_recipes.web.observation import keep_last_images
from holdfast_recipes.web.reward import Verdict, read_verdict, reward


@pytest.mark.parametrize(
    ("point", "pixels"),
    [
        ([501, 213], (641, 213)),
        ([385, 31], (493, 31)),
        ([649, 31], (831, 31)),
        ([27, 509], (35, 509)),
        ([496, 514], (635, 514)),
        ([1000, 1000], (1279, 999)),
        ([0, 0], (0, 0)),
        ([500.5, 0.4], (641, 0)),
    ],
)
def test_permille(point: list[float], pixels: tuple[int, int]) -> None:
    assert to_pixels(point) == pixels


def test_other_viewports_and_plain_pixels() -> None:
    assert to_pixels([500, 999], (800, 600)) == (400, 599)
    assert to_pixels([1279.4, 1000], coordinates="pixel") == (1279, 999)
    for point in ([1001, 0], [-1, 0], [1], [1, 2, 3], [float("nan"), 1], [True, 1]):
        with pytest.raises(ValueError, match="coordinate"):
            to_pixels(point)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("SUCCESS", Verdict.SUCCESS),
        ("The flight was not found at first, but then it was. SUCCESS", Verdict.SUCCESS),
        ("NOT A SUCCESS", Verdict.FAILURE),
        ("This is NOT YET A SUCCESS.", Verdict.FAILURE),
        ("It isn't a SUCCESS", Verdict.FAILURE),
        ("It isn’t really a SUCCESS", Verdict.FAILURE),
        ("NO SUCCESS", Verdict.FAILURE),
        ("never a SUCCESS", Verdict.FAILURE),
        ("NOT_SUCCESS", Verdict.FAILURE),
        ("**NOT** a **SUCCESS**", Verdict.FAILURE),
        ("SUCCESS? No: NOT SUCCESS", Verdict.FAILURE),
        ("FAILURE rather than SUCCESS", Verdict.FAILURE),
        ("UNSUCCESSFUL", Verdict.MISSING),
    ],
)
def test_a_negated_success_is_none(answer: str, verdict: Verdict) -> None:
    assert read_verdict(answer) is verdict


def turns(count: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in range(count):
        messages.append(
            {"role": "user", "content": [{"type": "text", "text": f"tab {turn}"}, {"type": "image_url", "image_url": {"url": str(turn)}}]}
        )
        messages.append({"role": "assistant", "content": f"<think>{turn}</think>"})
    return messages


def test_only_the_last_screenshots_stay() -> None:
    messages = turns(3)
    before = copy.deepcopy(messages)
    cut = keep_last_images(messages, 1)
    assert messages == before
    assert [[part["type"] for part in message["content"]] for message in cut[::2]] == [["text"], ["text"], ["text", "image_url"]]
    assert [message["content"] for message in cut[1::2]] == [message["content"] for message in messages[1::2]]
    assert [part["text"] for message in cut[::2] for part in message["content"] if part["type"] == "text"] == ["tab 0", "tab 1", "tab 2"]
    assert keep_last_images(messages, 3) == keep_last_images(messages, 9) == messages
    assert not any(part["type"] == "image_url" for message in keep_last_images(messages, 0)[::2] for part in message["content"])
    assert keep_last_images([], 1) == []
    with pytest.raises(ValueError, match="negative"):
        keep_last_images(messages, -1)


@pytest.mark.parametrize(
    ("parsed", "answer", "captcha", "expected"),
    [
        ([True, True], "It worked. SUCCESS", False, 1.0),
        ([True, False, True], "SUCCESS", False, 0.0),
        ([True, False, False, False], "SUCCESS", False, -1.0),
        ([False, False, False], None, False, -1.0),
        ([False, False, False, True], "SUCCESS", False, 0.0),
        ([True, False, False], "SUCCESS", False, 0.0),
        ([True], "NOT SUCCESS", False, 0.0),
        ([True], "I cannot say", False, 0.0),
        ([True], "", False, 0.0),
        ([True], None, False, None),
        ([True], "SUCCESS", True, None),
        ([], "SUCCESS", False, 0.0),
    ],
)
def test_reward_table(parsed: list[bool], answer: str | None, captcha: bool, expected: float | None) -> None:
    assert reward(parsed, read_verdict(answer), captcha=captcha) == expected


def test_verdict_words() -> None:
    assert read_verdict("at first SUCCESS, but in the end NOT SUCCESS") is Verdict.FAILURE
    assert read_verdict("NOT_SUCCESS") is read_verdict("NOT\nSUCCESS") is Verdict.FAILURE
    assert read_verdict("UNSUCCESSFUL") is read_verdict("it was a success") is Verdict.MISSING
    assert read_verdict("Verdict: SUCCESS.") is Verdict.SUCCESS
