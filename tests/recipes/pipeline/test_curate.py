"""D10 and the credit fields: filters in order with their counts, and the treatment of unresolved runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast_recipes.core.credit import CreditRules
from holdfast_recipes.core.template import render, text_of
from holdfast_recipes.core.trajectory import Tokens, Trajectory
from holdfast_recipes.pipeline.curate import Curation, Curator, curated, token_count
from holdfast_recipes.pipeline.errors import DataError, SettingError

from tests.recipes.pipeline.made import lost, made


def calling(name: str, tool: str, arguments: str, **changes: Any) -> Trajectory:
    """A resolved run with one call, whose arguments are kept as text."""
    function = {"name": tool, "arguments": arguments}
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    return made(name, 0, resolved=True, messages=({"role": "user", "content": "x"}, message), **changes)


def lengths(run: Trajectory) -> int:
    return int(run.reason or 10)


def curate(runs: list[Trajectory], **settings: Any) -> tuple[list[Trajectory], dict[str, int]]:
    curator = Curator(lengths, Curation(**settings))
    kept = list(curated(runs, curator))
    assert curator.seen == len(runs) == curator.kept + sum(curator.dropped.values())
    assert curator.kept == len(kept)
    return kept, dict(curator.dropped)


def test_filters_in_order_each_run_counted_once() -> None:
    """64,000 and 64,001 tokens; a tool that the harness does not define; cut JSON; and runs that two filters would drop."""
    runs = [
        made("ok", resolved=True, reason="64000"),
        made("long", resolved=True, reason="64001"),
        calling("tool", "str_replace_editor", "{}"),
        calling("json", "bash", '{"command": "ls'),
        calling("long_and_json", "bash", '{"command', reason="64001"),
        calling("tool_and_json", "other", '{"command"', reason="1"),
        lost(),
        made("ok", resolved=True),
        made("nothing", 0, resolved=True),
    ]
    kept, dropped = curate(runs)
    assert [run.trajectory_id for run in kept] == ["ok"]
    assert dropped == {"ungraded": 1, "duplicate": 1, "no_turns": 1, "too_long": 2, "undefined_tool": 1, "unparsable": 2}
    assert list(dropped)[3:6] == ["too_long", "undefined_tool", "unparsable"]


def test_a_second_try_is_kept_if_the_first_was_not_graded() -> None:
    kept, dropped = curate([lost("a"), made("a", resolved=True)])
    assert [run.trajectory_id for run in kept] == ["a"]
    assert dropped["ungraded"] == 1


def annotated(name: str, values: list[float], value_of: str = "after") -> Trajectory:
    turns = len(values) - (value_of == "before")
    return made(name, turns, values=tuple(values), value_of=value_of)


def test_credit_of_unresolved_runs() -> None:
    runs = [
        annotated("rise", [0.4, 0.45, 0.5, 0.55, 0.1]),
        annotated("flat", [0.4, 0.42, 0.1]),
        annotated("rules", [0.4, 0.5, 0.6]),
        made("none"),
        made("good", resolved=True, values=(0.1, 0.2, 0.3), value_of="after"),
        annotated("states", [0.2, 0.3, 0.9, 0.0], "before"),
    ]
    kept, dropped = curate(runs)
    assert {run.trajectory_id: run.credited for run in kept} == {"rise": (1, 2, 3), "good": None, "states": (0, 1)}
    assert {run.trajectory_id: run.rises for run in kept} == {"rise": ((0, 3),), "good": None, "states": ((0, 2),)}
    assert {name: count for name, count in dropped.items() if count} == {"no_rise": 1, "never_drops,final_not_low": 1, "not_annotated": 1}


def test_the_settings_of_credit() -> None:
    run = annotated("rise", [0.4, 0.45, 0.44, 0.5, 0.1])
    assert curate([run])[0][0].credited == (1, 3)
    assert curate([run], rules=CreditRules(merge_gap=1))[0][0].credited == (1, 2, 3)
    assert curate([run], rules=CreditRules(closed=True))[0][0].credited == (0, 1, 2, 3)
    assert curate([run], rules=CreditRules(eps=0.06))[0][0].credited == (3,)
    assert curate([run], rules=CreditRules(eps=0.07))[1]["no_rise"] == 1
    assert curate([run], unresolved="drop")[1]["unresolved"] == 1
    assert curate([run], unresolved="all")[0][0].credited == (0, 1, 2, 3, 4)
    assert curate([annotated("up", [0.6, 0.9])], rules=CreditRules(check=False))[0][0].credited == (1,)
    with pytest.raises(SettingError, match="some"):
        Curation(unresolved="some")  # type: ignore[arg-type]


def test_values_of_another_run_are_refused() -> None:
    with pytest.raises(DataError, match="4 values do not fit 3 turns"):
        curate([made("x", 3, values=(0.4, 0.5, 0.6, 0.1), value_of="after")])


def test_ways_of_counting_tokens(tmp_path: Path) -> None:
    run = made("a", 1, resolved=True)
    with pytest.raises(DataError, match="no token ids"):
        token_count("recorded")(run)
    assert token_count("recorded")(replace(run, tokens=Tokens((1, 2), (0, 1), (0.0, -1.0)))) == 2
    assert token_count("bytes")(run) > 300
    with pytest.raises(SettingError, match="no tokenizer"):
        token_count(str(tmp_path / "tokenizer.json"))


def test_the_students_tokenizer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No extra installs the package ``tokenizers``; a stub with the three names in use replaces it."""

    class Words:
        @classmethod
        def from_file(cls, path: str) -> Words:
            assert path == str(tmp_path / "tokenizer.json")
            return cls()

        def encode(self, text: str, add_special_tokens: bool = True) -> SimpleNamespace:
            return SimpleNamespace(ids=text.split() + ["?"] * add_special_tokens)

    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Words))
    whole = text_of(render(made("a", 1).messages, made("a", 1).tools))
    assert token_count(str(tmp_path))(made("a", 1)) == len(whole.split())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SettingError, match="package tokenizers"):
        token_count(str(tmp_path))
