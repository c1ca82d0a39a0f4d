"""The JSON and column forms of trajectories, and back without loss (A2.2, C8).

Owns two forms: ``to_json`` is one object per trajectory for JSON lines, defined by ``schemas/recipes/trajectory.schema.json``; ``to_row``
has the columns of the published data set (``tools``, ``messages``, ``metadata``) and Holdfast's own. Also reads rows published by
others. The pipeline writes files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from .calls import ToolCall
from .scored import Blame, Status
from .spans import Span
from .template import Kind
from .trajectory import Branch, Harness, Observation, PolicyName, SandboxNote, Tokens, Trajectory, Turn, Verdict, turns_of

FORMAT = 1
"""The number in each record; a reader refuses a higher one."""

MESSAGE_COLUMNS = ("role", "content", "reasoning_content", "tool_call_id", "tool_calls")
"""The fields that a message has in a row; ``reasoning_content`` is the thought, which the template puts before the content."""

_OURS = "holdfast"


def to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A JSON object with every field; what is None is left out."""
    record = {key: value for key, value in asdict(trajectory).items() if value is not None}
    return {"format": FORMAT, **_plain(record)}


def from_json(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory of ``to_json``. Raises ValueError for a record of a later format or one that lacks a field."""
    if record.get("format") != FORMAT:
        raise ValueError(f"this reads trajectory records of format {FORMAT}, not {record.get('format')!r}")
    try:
        return _trajectory(record)
    except KeyError as error:
        raise ValueError(f"not a trajectory record: there is no field {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"not a trajectory record: {error}") from error


def to_row(trajectory: Trajectory) -> dict[str, Any]:
    """A row of columns. ``tools`` and ``metadata`` are JSON strings as in the published set; messages have one shape throughout, so
    that column formats can hold them. ``metadata`` carries the rest of the record, which makes the row complete."""
    rest = to_json(trajectory)
    del rest["tools"], rest["messages"]
    metadata: dict[str, Any] = {"verify_status": "resolved" if trajectory.resolved else "unresolved", _OURS: rest}
    messages = [_message_row(message) for message in trajectory.messages]
    if [_chat_message(message) for message in messages] != _plain(trajectory.messages):
        metadata["messages"] = _plain(trajectory.messages)  # what the columns cannot hold is kept whole
    row: dict[str, Any] = {
        "tools": json.dumps(_plain(trajectory.tools), ensure_ascii=False),
        "messages": messages,
        "metadata": json.dumps(metadata, ensure_ascii=False),
        "instance_id": trajectory.task_id,
        "repo": trajectory.repo,
        "teacher": trajectory.policy.name,
        "harness": trajectory.harness.name,
        "value_curve": list(trajectory.values) if trajectory.values is not None else None,
        "value_of": trajectory.value_of,
        "rise_segments": [list(segment) for segment in trajectory.rises] if trajectory.rises is not None else None,
        "credited_turns": list(trajectory.credited) if trajectory.credited is not None else None,
        "cause": trajectory.reason or None,
        "holdfast_run": trajectory.run or None,
    }
    row["resolved"] = trajectory.resolved
    return row


def from_row(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory of ``to_row``, or of a published row with only ``tools``, ``messages`` and ``metadata``.

    Of such a row the turns are read from the messages, the reward is +1 if ``verify_status`` is resolved (or true), else −1.
    """
    metadata = _loaded(row.get("metadata")) or {}
    tools = tuple(_loaded(row.get("tools")) or ())
    messages = tuple(metadata.get("messages") or (_chat_message(message) for message in row["messages"]))
    if _OURS in metadata:
        return from_json({**metadata[_OURS], "tools": tools, "messages": messages})
    status = metadata.get("verify_status")
    resolved = status is True or str(status).lower() in ("resolved", "true", "success", "passed")
    task = str(row.get("instance_id") or metadata.get("instance_id") or "")
    return Trajectory(
        trajectory_id=str(metadata.get("trajectory_id") or task),
        task_id=task,
        harness=Harness(str(row.get("harness") or metadata.get("harness") or "")),
        policy=PolicyName(str(row.get("teacher") or metadata.get("teacher") or metadata.get("model") or "")),
        messages=messages,
        tools=tools,
        turns=turns_of(messages, tools or None),
        reward=None if status is None else (1.0 if resolved else -1.0),
        repo=str(row.get("repo") or metadata.get("repo") or ""),
    )


def _trajectory(record: Mapping[str, Any]) -> Trajectory:
    simple = {item.name for item in fields(Trajectory)} & record.keys()
    given = {key: record[key] for key in simple}
    given["harness"] = Harness(**record["harness"])
    given["policy"] = PolicyName(**record["policy"])
    given["messages"] = tuple(record["messages"])
    given["tools"] = tuple(record.get("tools", ()))
    given["turns"] = tuple(_turn(turn) for turn in record.get("turns", ()))
    given["status"] = Status(record["status"])
    if "sandbox" in record:
        given["sandbox"] = SandboxNote(**record["sandbox"])
    if "blame" in record:
        given["blame"] = Blame(record["blame"])
    if "verdict" in record:
        given["verdict"] = _verdict(record["verdict"])
    if "tokens" in record:
        given["tokens"] = _tokens(record["tokens"])
    if "values" in record:
        given["values"] = tuple(record["values"])
    if "rises" in record:
        given["rises"] = tuple((start, end) for start, end in record["rises"])
    if "credited" in record:
        given["credited"] = tuple(record["credited"])
    if "branch" in record:
        given["branch"] = Branch(**record["branch"])
    return Trajectory(**given)


def _verdict(record: Mapping[str, Any]) -> Verdict:
    (fixed, to_fix), (kept, to_keep) = record["fail_to_pass"], record["pass_to_pass"]
    names = {key: tuple(record.get(key, ())) for key in ("failing", "broken")}
    return Verdict((fixed, to_fix), (kept, to_keep), record.get("log_sha256", ""), **names)


def _turn(record: Mapping[str, Any]) -> Turn:
    lists = {
        "calls": tuple(ToolCall(**call) for call in record.get("calls", ())),
        "faults": tuple(record.get("faults", ())),
        "observations": tuple(Observation(**seen) for seen in record.get("observations", ())),
    }
    return Turn(**{**record, **lists})


def _tokens(record: Mapping[str, Any]) -> Tokens:
    spans = tuple(Span(**{**span, "kind": Kind(span["kind"])}) for span in record.get("spans", ()))
    lists = {key: tuple(value) for key, value in record.items() if key != "spans"}
    return Tokens(**lists, spans=spans)


def _message_row(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": call.get("id"), "type": call.get("type", "function"), "function": _function_row(call.get("function") or call)}
        for call in message.get("tool_calls") or ()
    ]
    content = message.get("content")
    return {
        "role": message["role"],
        "content": content if content is None or isinstance(content, str) else json.dumps(_plain(content), ensure_ascii=False),
        "reasoning_content": message.get("reasoning_content"),
        "tool_call_id": message.get("tool_call_id"),
        "tool_calls": calls or None,
    }


def _function_row(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    return {
        "name": function.get("name"),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(_plain(arguments), ensure_ascii=False),
    }


def _chat_message(row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns have a place for each field; a chat message has those it uses."""
    return {key: value for key, value in row.items() if key in ("role", "content") or value is not None}


def _loaded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value else value


def _plain(value: Any) -> Any:
    """Lists and dicts of what JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value
