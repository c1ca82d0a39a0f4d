"""The rows of an export: loss on exactly the text of the credited turns, in token rows and in the flags of chat rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast_recipes import cli
from holdfast_recipes.core.records import to_row
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline.export import ENGINES, UNCREDITED, Counts, Masked, exported, masked

from tests.recipes.engines.masks import RUNS, TOKENIZER


def rows(engine: str) -> list[dict[str, Any]]:
    return list(exported(RUNS, engine, TOKENIZER.encode, Counts()))


def written(run: Trajectory) -> str:
    """The text of the turns with loss as the policy wrote it, made from the messages alone."""
    text, turn = "", 0
    for message in run.messages:
        if message["role"] != "assistant":
            continue
        if run.resolved or turn in (run.credited or ()):
            text += f"<think>\n{message['reasoning_content']}\n</think>\n\n{message['content']}"
            for call in message.get("tool_calls", ()):
                function = call["function"]
                text += f'\n<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
            text += "<|im_end|>"
        turn += 1
    return text


def test_loss_is_on_the_text_of_the_credited_turns_and_on_nothing_else() -> None:
    for run in RUNS:
        made = masked(run, TOKENIZER.encode)
        assert isinstance(made, Masked)
        assert TOKENIZER.decode([token for token, bit in zip(made.ids, made.mask, strict=True) if bit]) == written(run)
        assert f"thought {0}" in TOKENIZER.decode(made.ids)  # also before the format error


def test_token_rows_have_one_mask() -> None:
    for run, trl, verl, slime in zip(RUNS, rows("trl"), rows("verl"), rows("slime"), strict=True):
        made = masked(run, TOKENIZER.encode)
        assert isinstance(made, Masked)
        assert trl == {"input_ids": list(made.ids), "assistant_masks": list(made.mask), "completion_mask": list(made.mask)}
        assert verl == {"input_ids": list(made.ids), "loss_mask": list(made.mask)}
        start = len(slime["tokens"]) - slime["response_length"]
        assert (slime["tokens"], [0] * start + slime["loss_mask"]) == (list(made.ids), list(made.mask))
        assert slime["loss_mask"][0] == 1


def test_chat_rows_flag_the_same_turns() -> None:
    for run, axolotl, factory, slime in zip(RUNS, rows("axolotl"), rows("llama-factory"), rows("slime"), strict=True):
        turns = [index for index, message in enumerate(run.messages) if message["role"] == "assistant"]
        credited = {index for turn, index in enumerate(turns) if run.resolved or turn in (run.credited or ())}
        assert {index for index, message in enumerate(axolotl["messages"]) if message["train"]} == credited
        assert {index for index, message in enumerate(factory["messages"]) if message["loss_weight"]} == credited
        assert {index for index in turns if slime["messages"][index]["step_loss_mask"]} == credited
        assert axolotl["messages"][turns[0]]["reasoning_content"] == "thought 0"
        second = factory["messages"][turns[1]]["content"]
        assert [part["type"] for part in second] == ["reasoning", "text", "tool_call", "tool_call"]
        assert {part["type"] for message in factory["messages"] for part in message["content"]} <= {"text", "reasoning", "tool_call"}


def test_a_run_without_credit_is_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.jsonl"
    lost = replace(RUNS[1], credited=None)
    runs = [RUNS[0], lost]
    path.write_text("".join(json.dumps(to_row(each)) + "\n" for each in runs))
    out = tmp_path / "rows.jsonl"
    assert cli.main(["export", str(path), "--engine", "trl", "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["rows"], record["left_out"]) == (1, {UNCREDITED: 1})
    assert len(out.read_text().splitlines()) == 1


def test_every_engine_of_the_command_line_gives_rows() -> None:
    assert {name: len(rows(name)) for name in ENGINES} == dict.fromkeys(ENGINES, 10)
