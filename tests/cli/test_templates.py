"""docker's ``--format``: what is evaluated, and what is refused."""

from __future__ import annotations

import pytest
from holdfast.cli.command_line import UsageError
from holdfast.cli.templates import table, template

RECORD = {"Name": "a", "State": {"Running": True, "Pid": 7}, "Labels": {"x y": "1"}, "List": ["p", "q"], "None": None}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{{.Name}}", "a"),
        ("{{ .State.Running }} {{.State.Pid}}", "true 7"),
        ("{{json .State}}", '{"Running": true, "Pid": 7}'),
        ('{{index .Labels "x y"}}-{{index .List 1}}', "1-q"),
        ('{{index .Labels "missing"}}', ""),
        ("{{len .List}}", "2"),
        ("{{.Missing.Deep}}", "<no value>"),
        ("{{.State}} {{.List}}", "map[Pid:7 Running:true] [p q]"),
        (r"{{.Name}}\t{{.Name}}\n", "a\ta\n"),
        ("plain", "plain"),
    ],
)
def test_evaluates(text: str, shown: str) -> None:
    assert template(text)(RECORD) == shown


@pytest.mark.parametrize(
    "text", ["{{if .Name}}x{{end}}", "{{range .List}}", "{{.Name | upper}}", "{{printf .Name}}", "{{.Name", "{{$x}}", "{{}}"]
)
def test_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(UsageError):
        template(text)


def test_a_table_has_the_names_of_its_fields_as_head() -> None:
    form = table(r"table {{.Name}}\t{{.State.Running}}")
    assert form is not None
    assert form[0] == ["NAME", "STATE RUNNING"]
    assert form[1](RECORD) == "a\ttrue"
    assert table("{{.Name}}") is None
