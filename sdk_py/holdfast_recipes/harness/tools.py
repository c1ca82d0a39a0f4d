"""The tools of the two harnesses, in chat form: names, arguments and what is required, as the public projects define them (A2.1).

Owns definitions only, in our words. mini-swe-agent 2.4 has one tool; the SWE-bench configuration of OpenHands has five.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tool = Mapping[str, Any]


def _tool(name: str, description: str, required: tuple[str, ...] = (), **properties: Mapping[str, Any]) -> Tool:
    parameters = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _text(description: str) -> Mapping[str, Any]:
    return {"type": "string", "description": description}


MINI: tuple[Tool, ...] = (_tool("bash", "Run a command in a new subshell.", ("command",), command=_text("The command, as bash reads it.")),)

_TASK = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "notes": {"type": "string"},
        "status": {"type": "string", "enum": ["todo", "in_progress", "done"]},
    },
    "required": ["title"],
}

EDITOR: tuple[Tool, ...] = (
    _tool(
        "terminal",
        "Run a command in the shell that lives as long as the task, or send input to what runs in it.",
        ("command",),
        command=_text("The command; with is_input, what is typed. C-c interrupts."),
        is_input={"type": "boolean", "description": "The text goes to the running command."},
        timeout={"type": "number", "minimum": 0, "description": "Seconds to wait."},
        reset={"type": "boolean", "description": "Start a new shell first."},
    ),
    _tool(
        "file_editor",
        "Show, create and edit text files. Paths are absolute.",
        ("command", "path"),
        command={"type": "string", "enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
        path=_text("An absolute path."),
        file_text=_text("create: the whole content."),
        old_str=_text("str_replace: text that occurs exactly once."),
        new_str=_text("str_replace: what takes its place. insert: what is inserted."),
        insert_line={"type": "integer", "minimum": 0, "description": "insert: after this line, 0 for the beginning."},
        view_range={
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 2,
            "maxItems": 2,
            "description": "view: first and last line.",
        },
    ),
    _tool(
        "task_tracker",
        "Show the list of tasks or replace it.",
        ("command",),
        command={"type": "string", "enum": ["view", "plan"]},
        task_list={"type": "array", "items": _TASK},
    ),
    _tool("think", "Write down a thought. Nothing happens.", ("thought",), thought=_text("The thought.")),
    _tool("finish", "Say that the work is done.", ("message",), message=_text("What was done.")),
)

TOOLS: Mapping[str, tuple[Tool, ...]] = {"mini": MINI, "editor": EDITOR}
