"""``limits``: what holds for this key, and for operators the limits of owners, projects and keys."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast import SandboxClient
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import pairs, print_json, print_line, table


def limits(arguments: Arguments) -> None:
    wanted = pairs(arguments.set, "--set", "sandboxes=20")
    if (wanted or arguments.clear) and not arguments.subject:
        raise UsageError("no owner, project or key is named", hint="holdfast limits project:NAME --set sandboxes=20")
    with SandboxClient() as client:
        if wanted or arguments.clear:
            known = {} if arguments.clear else _known(client, arguments.subject)
            client.limits.set(arguments.subject, known | {name: _number(name, text) for name, text in wanted.items()})
        if arguments.subject or arguments.all:
            rows = [row for row in client.limits.every() if arguments.subject in (None, row.get("subject"))]
            _show_every(rows, as_json=arguments.json)
            return
        found = client.limits.list()
    if arguments.json:
        print_json([dataclasses.asdict(one) for one in found])
    elif not found:
        print_line("no limits")
    else:
        table(
            ("WHOSE", "LIMIT", "MOST", "USED", "LEFT NOW"),
            ((one.subject, one.name, f"{one.most:g}", _shown(one.used), _shown(one.left)) for one in found),
        )


def _known(client: SandboxClient, subject: str) -> dict[str, float | None]:
    row = next((row for row in client.limits.every() if row.get("subject") == subject), {})
    return {name: value for name, value in row.items() if name != "subject" and value is not None}


def _show_every(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    lines = [(str(row["subject"]), name, f"{value:g}") for row in rows for name, value in row.items() if isinstance(value, (int, float))]
    table(("WHOSE", "LIMIT", "MOST"), lines)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name} must be a number, not {text!r}") from None
    return int(value) if value.is_integer() else value


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value == int(value) else f"{value:.1f}"
