"""The harness with a living shell, as the SWE-bench configuration of OpenHands has it: five tools (A2.1).

Owns which call goes where, the files behind ``file_editor``, the list of ``task_tracker``, ``think`` and ``finish``. The shell is in
``terminal``, editing as such in ``edits``. The work is the state of the repository: ``finish`` carries no patch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from holdfast import AsyncSandbox, FileEntry, RemoteFileNotFoundError

from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.trajectory import Observation
from holdfast_recipes.policy.base import Tool

from . import edits, tools
from .observations import shown
from .terminal import QUIET_S, WHOLE_BELOW, Terminal
from .toolset import ANSWERED, Result, refused

MOST_FILE_BYTES = 10 * 1024 * 1024
_LISTED = 500
_MARKS = {"todo": "[ ]", "in_progress": "[~]", "done": "[x]"}


class EditorToolset:
    """The five tools in one sandbox. ``workdir`` is where the shell starts; ``oom_ends``: a command that runs out of memory ends the
    rollout, which is then played again with more."""

    name = "editor"
    version = "1"
    strict = False

    def __init__(
        self,
        sandbox: AsyncSandbox,
        workdir: str = "/testbed",
        *,
        user: str | None = None,
        oom_ends: bool = False,
        quiet_s: float = QUIET_S,
        definitions: tuple[Tool, ...] = tools.EDITOR,
    ) -> None:
        self.tools = definitions
        self._sandbox, self._workdir, self._user = sandbox, workdir, user
        self._terminal = Terminal(sandbox, workdir, user=user, oom_ends=oom_ends, quiet_s=quiet_s)
        self._history = edits.History()
        self._tasks: list[Mapping[str, Any]] = []

    @property
    def config(self) -> dict[str, Any]:
        return {"workdir": self._workdir, "user": self._user, "whole_below": WHOLE_BELOW}

    async def run(self, call: ToolCall, *, timeout_s: float) -> Result:
        try:
            if call.name == "terminal":
                return await self._terminal.run(call, timeout_s=timeout_s)
            if call.name == "file_editor":
                return Result(Observation(await self._edit(call.arguments), call.id))
        except ANSWERED as error:
            return refused(call, error)
        if call.name == "task_tracker":
            return Result(Observation(self._track(call.arguments), call.id))
        if call.name == "finish":
            return Result(Observation("The work was handed in.", call.id), final=True)
        return Result(Observation("The thought was noted.", call.id))

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self._terminal.close()

    async def _edit(self, arguments: Mapping[str, Any]) -> str:
        path, command = str(arguments["path"]), arguments["command"]
        if not PurePosixPath(path).is_absolute():
            return f"Error: {path} is no absolute path; did you mean {PurePosixPath(self._workdir) / path}?"
        if command == "view" and (entry := await self._entry(path)) is not None and entry.is_dir:
            return "Error: a directory has no view_range." if arguments.get("view_range") else await self._listed(path)
        if command == "undo_edit":
            edit = self._history.undo(path)
        else:
            before = await self._text(path)
            if isinstance(before, edits.Edit):
                return before.message
            if before is None and command != "create":
                return f"Error: there is no file {path}."
            edit = _edited(command, before, arguments)
            if edit.text is not None and before is not None:
                self._history.keep(path, before)
        if edit.text is not None:
            await self._sandbox.files.write(path, edit.text.encode("utf-8", "surrogateescape"), user=self._user)
        message = edit.message.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return shown(message, WHOLE_BELOW, WHOLE_BELOW // 2)

    async def _text(self, path: str) -> str | edits.Edit | None:
        """The text of a file, None where there is none, or why it cannot be edited."""
        entry = await self._entry(path)
        if entry is None:
            return None
        if entry.type != "file":
            return edits.Edit(f"Error: {path} is a {entry.type}.", ok=False)
        if entry.size > MOST_FILE_BYTES:
            return edits.Edit(f"Error: {path} has {entry.size} bytes; use the terminal for files of more than {MOST_FILE_BYTES}.", ok=False)
        data = await self._sandbox.files.read(path, user=self._user)
        if b"\0" in data:
            return edits.Edit(f"Error: {path} is no text file.", ok=False)
        return data.decode("utf-8", "surrogateescape")

    async def _entry(self, path: str) -> FileEntry | None:
        try:
            return await self._sandbox.files.stat(path, user=self._user)
        except RemoteFileNotFoundError:
            return None

    async def _listed(self, path: str) -> str:
        """Names in a directory and one level below, without hidden ones."""
        lines = [path]
        for entry in _visible(await self._sandbox.files.list(path, user=self._user)):
            lines.append(entry.path + ("/" if entry.is_dir else ""))
            if entry.is_dir:
                below = _visible(await self._sandbox.files.list(entry.path, user=self._user))
                lines += [each.path + ("/" if each.is_dir else "") for each in below]
        more = [f"({len(lines) - _LISTED} more)"] if len(lines) > _LISTED else []
        return "\n".join([*lines[:_LISTED], *more])

    def _track(self, arguments: Mapping[str, Any]) -> str:
        if arguments["command"] == "plan":
            if arguments.get("task_list") is None:
                return "Error: plan needs a task_list."
            self._tasks = list(arguments["task_list"])
        if not self._tasks:
            return "There are no tasks."
        return "\n".join(_task_line(number, task) for number, task in enumerate(self._tasks, 1))


def _edited(command: str, before: str | None, arguments: Mapping[str, Any]) -> edits.Edit:
    if command == "create":
        return edits.create(before, arguments.get("file_text"))
    assert before is not None
    if command == "view":
        return edits.view(before, arguments.get("view_range"))
    if command == "str_replace":
        return edits.str_replace(before, arguments.get("old_str"), arguments.get("new_str"))
    return edits.insert(before, arguments.get("insert_line"), arguments.get("new_str"))


def _visible(entries: Sequence[FileEntry]) -> list[FileEntry]:
    return [entry for entry in entries if not entry.name.startswith(".")]


def _task_line(number: int, task: Mapping[str, Any]) -> str:
    notes = f" ({task['notes']})" if task.get("notes") else ""
    return f"{number}. {_MARKS[task.get('status', 'todo')]} {task['title']}{notes}"
