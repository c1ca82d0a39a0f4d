"""The part of Go's templates that docker's ``--format`` is used with: ``{{.State.Running}}``, ``{{json .Config}}``, ``{{index .Labels
"a"}}``.

Pure. Owns the reading of a template and its evaluation on a map. What else Go's templates have (pipes, conditions, loops, variables) is
refused by name, before any request is sent. Called by ``inspect``, ``list``, ``image inspect``, ``version`` and ``info``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.cli.command_line import UsageError

_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_PATH = re.compile(r"\.|(?:\.[A-Za-z_][A-Za-z_0-9]*)+")
_WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"]+')
_ESCAPES = {r"\t": "\t", r"\n": "\n"}
_MISSING = "<no value>"

Evaluate = Callable[[Mapping[str, Any]], str]


def template(text: str) -> Evaluate:
    """A function that evaluates ``text`` on a map. Raises ``UsageError`` for what is not understood."""
    if text == "json":
        return _json
    parts: list[str | Callable[[Mapping[str, Any]], Any]] = []
    end = 0
    for action in _ACTION.finditer(text):
        parts += [_unescaped(text[end : action.start()]), _action(action[1])]
        end = action.end()
    parts.append(_unescaped(text[end:]))
    if "{{" in text[end:]:
        raise UsageError(f"the format {text!r:.200} has a {{{{ without its }}}}")
    return lambda record: "".join(part if isinstance(part, str) else _shown(part(record)) for part in parts)


def table(text: str) -> tuple[list[str], Evaluate] | None:
    """The head and the rows of ``table {{.ID}}\\t{{.Image}}``, None for a template that is no table."""
    if not text.startswith("table "):
        return None
    rows = text.removeprefix("table ").strip()
    head = [" ".join(re.findall(r"[A-Za-z_]+", word)).upper() for word in _unescaped(rows).split("\t")]
    return head, template(rows)


def _unescaped(text: str) -> str:
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    return text


def _action(text: str) -> Callable[[Mapping[str, Any]], Any]:
    words = _WORDS.findall(text)
    match words:
        case [path] if _PATH.fullmatch(path):
            return lambda record: _value(record, path)
        case ["json", path] if _PATH.fullmatch(path):
            return lambda record: _json(_value(record, path))
        case ["len", path] if _PATH.fullmatch(path):
            return lambda record: len(_value(record, path) or ())
        case ["index", path, key] if _PATH.fullmatch(path) and (key.startswith('"') or key.isdigit()):
            at = int(key) if key.isdigit() else key[1:-1].replace('\\"', '"')
            return lambda record: _at(_value(record, path), at)
    hint = 'write {{.Field.Field}}, {{json .Field}}, {{len .Field}} or {{index .Field "key"}}; --json prints all there is'
    raise UsageError(f"the format's {{{{{text}}}}} is not understood", hint=hint)


def _json(value: Any) -> str:
    import json  # takes longer than the rest of a short command

    return json.dumps(value, default=str)


def _value(record: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        record = record.get(name) if isinstance(record, Mapping) else None
    return record


def _at(container: Any, key: Any) -> Any:
    try:
        return container[key]
    except (KeyError, IndexError, TypeError):
        return ""


def _shown(value: Any) -> str:
    """A value as Go prints it."""
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"map[{' '.join(f'{name}:{_shown(inner)}' for name, inner in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(_shown, value))}]"
    return str(value)
