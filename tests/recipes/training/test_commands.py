"""`holdfast recipes sft` and `rl` as a user calls them: which turns they train on, which files they write, and that they resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast_recipes import cli
from holdfast_recipes.core.records import to_json, to_row
from holdfast_recipes.core.trajectory import Harness, PolicyName, Trajectory
from holdfast_recipes.pipeline.curate import Curation, Curator, curated
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from holdfast_recipes.training.commands import TOO_LONG, UNCREDITED, data_rows

EMPTY = "<think>\n\n</think>\n\n"
"""What the template writes before the last turn of a model that thinks."""


def run(number: int, *, solved: bool, credited: tuple[int, ...] | None = None, text: str = "ls") -> Trajectory:
    messages = (
        {"role": "user", "content": "Fix it."},
        {"role": "assistant", "content": f"first {text}"},
        {"role": "user", "content": "seen"},
        {"role": "assistant", "content": "second"},
    )
    reward = 1.0 if solved else -1.0
    return Trajectory(f"t{number}", "task", Harness("mini"), PolicyName("teacher"), messages, reward=reward, credited=credited)


def learned(path: Path, context: int = 500) -> list[str]:
    rows, _ = data_rows(path, context)
    return [ByteTokenizer().decode([token for token, bit in zip(row.ids, row.mask, strict=True) if bit]) for row in rows]


@pytest.mark.parametrize("form", [to_row, to_json])
def test_all_turns_of_resolved_runs_and_credited_turns_of_others_are_trained_on(tmp_path: Path, form: object) -> None:
    path = tmp_path / "set.jsonl"
    runs = [run(0, solved=True), run(1, solved=False, credited=(0,)), run(2, solved=False), run(3, solved=True, text="x" * 400)]
    path.write_text("".join(json.dumps(form(each)) + "\n" for each in runs))  # type: ignore[operator]
    assert learned(path)[:2] == [f"first ls<|im_end|>{EMPTY}second<|im_end|>", "first ls<|im_end|>"]
    assert data_rows(path, 500)[1] == {UNCREDITED: 1}
    assert data_rows(path, 10)[1] == {UNCREDITED: 1, TOO_LONG: 3}
    assert learned(path, 200)[-1].endswith("second<|im_end|>")


def test_unresolved_runs_that_are_kept_with_all_turns_are_trained_on(tmp_path: Path) -> None:
    curator = Curator(lambda run: 1, Curation(unresolved="all"))
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(to_row(each)) + "\n" for each in curated([run(0, solved=False), run(1, solved=True)], curator)))
    assert learned(path) == [f"first ls<|im_end|>{EMPTY}second<|im_end|>"] * 2


def test_sft_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(to_row(each)) + "\n" for each in [run(0, solved=True), run(1, solved=False)]))
    words = [
        "sft",
        str(path),
        "--out",
        str(tmp_path / "model.pt"),
        "--epochs",
        "1",
        "--batch",
        "4",
        "--width",
        "16",
        "--context",
        "128",
        "--json",
    ]
    assert cli.main(words) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["dropped_for"] == {UNCREDITED: 1}
    assert "1 unresolved without credited turns" in shown.err


def test_sft_trains_resumes_and_reports_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(to_row(run(number, solved=True))) + "\n" for number in range(4)))
    words = [
        "sft",
        str(path),
        "--out",
        str(tmp_path / "model.pt"),
        "--epochs",
        "6",
        "--batch",
        "4",
        "--width",
        "16",
        "--context",
        "128",
        "--json",
    ]
    assert cli.main(words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["dropped"], summary["dropped_for"], summary["steps"]) == (4, 0, {}, 6)
    assert summary["last_loss"] < summary["first_loss"]
    assert cli.main(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["steps"], again["first_loss"]) == (6, None)


def test_sft_without_anything_to_learn_is_a_documented_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(to_row(run(0, solved=False))) + "\n")
    assert cli.main(["sft", str(path), "--out", str(tmp_path / "model.pt")]) == 2
    assert "no row has a turn" in capsys.readouterr().err
    path.write_text('{"metadata": "{}"}\n')
    assert cli.main(["sft", str(path), "--out", str(tmp_path / "model.pt")]) == 2
    assert cli.main(["rl"]) == 2


def test_rl_writes_a_curve_that_report_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rl"
    words = ["rl", "--out", str(out), "--updates", "1", "--prompts", "2", "--teacher-runs", "16", "--sft-epochs", "20", "--share", "0", "1"]
    assert cli.main([*words, "--width", "16", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["miniature"] is True
    assert {file.name for file in out.iterdir()} >= {"sft.pt", "steps.jsonl"}
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert len(lines) == summary["updates"]
    page = tmp_path / "page.html"
    assert cli.main(["report", "--steps", f"RL={out / 'steps.jsonl'}", "--out", str(page)]) == 0
