"""A real model in the policy's place, over any OpenAI-compatible chat completions API.

Owns the conversation: one tool, `shell`, whose state lives from call to call; the model ends by answering without a
call. Whether it repaired the library is not for it to say: the failing test decides.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import httpx

from infra.demo.episode import Episode, play, shortened
from infra.demo.material import DemoError
from infra.demo.policy import TARGET, TREE, Turn

_MOST_OUTPUT = 8_000
_TURN_TIMEOUT_S = 120.0
_TASK = f"""You are repairing a Python library in a Linux sandbox without network. Your shell is a living one: directory,
variables, functions and background jobs stay from one call to the next. The library is in {TREE}, a virtual
environment is active, and `suite NAME` runs a unittest module or class. The test {TARGET} of the library's next
release fails here. Find the bug in the library, repair it without changing tests, check that {TARGET},
tests.test_more and tests.test_recipes pass, then answer in one sentence without a tool call."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command in the living shell and see its output and exit code.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "What to run; may be several lines."}},
            "required": ["command"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Model:
    """Where the model is reached. `name` may be empty: the first that the service lists."""

    base_url: str
    key: str
    name: str

    @classmethod
    def from_environment(cls) -> Model:
        """OPENAI_BASE_URL, OPENAI_API_KEY and, if set, OPENAI_MODEL. Raises DemoError naming what is missing."""
        missing = [name for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY") if not os.environ.get(name)]
        if missing:
            raise DemoError(
                f"--live needs {' and '.join(missing)}",
                hint="set them to any OpenAI-compatible service, or run make demo without ARGS=--live for the recorded policy",
            )
        return cls(os.environ["OPENAI_BASE_URL"].rstrip("/"), os.environ["OPENAI_API_KEY"], os.environ.get("OPENAI_MODEL", ""))


def drive(episode: Episode, model: Model, most_turns: int) -> None:
    """Let the model work until it answers without a call. Raises DemoError when the service or the repair fails."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": _TASK}]
    with httpx.Client(headers={"Authorization": f"Bearer {model.key}"}, timeout=_TURN_TIMEOUT_S) as client:
        name = model.name or _first_model(client, model)
        for number in range(1, most_turns + 1):
            reply = _ask(client, model, name, messages)
            messages.append(reply)
            calls = reply.get("tool_calls") or []
            if reply.get("content"):
                print(f"\n[{number}] {shortened(str(reply['content']))}", flush=True)
            if not calls:
                return
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": _run(episode, number, call)} for call in calls]
    raise DemoError(f"the model did not finish within {most_turns} turns", hint="try another model, or --turns")


def _run(episode: Episode, number: int, call: dict[str, Any]) -> str:
    """What is sent to the model: output and exit code, or why its call is invalid."""
    try:
        arguments = json.loads(call["function"]["arguments"])
        command = arguments["command"]
        if call["function"]["name"] != "shell" or not isinstance(command, str):
            raise ValueError("the only tool is shell, with a command that is a string")
    except (ValueError, KeyError, TypeError) as error:
        return f"that call was not understood: {error}"
    print(f"\n[{number}] $ {shortened(command)}", flush=True)
    played, result = play(Turn(f"turn {number}", command), episode.shell.run, command, _TURN_TIMEOUT_S)
    episode.played.append(played)
    output = result.stdout + result.stderr
    print(f"{shortened(output)}\n    exit {result.exit_code}  ({played.wall_s * 1e3:.1f} ms)", flush=True)
    cut = output if len(output) <= _MOST_OUTPUT else f"{output[: _MOST_OUTPUT // 2]}\n[…]\n{output[-_MOST_OUTPUT // 2 :]}"
    return f"{cut}\nexit code {result.exit_code}{' (timed out)' if result.timed_out else ''}"


def _first_model(client: httpx.Client, model: Model) -> str:
    listed = _json(client, "GET", f"{model.base_url}/models").get("data") or []
    if not listed:
        raise DemoError("the service lists no model", hint="name one in OPENAI_MODEL")
    return str(listed[0]["id"])


def _ask(client: httpx.Client, model: Model, name: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": name, "messages": messages, "tools": [_TOOL]}
    answer = _json(client, "POST", f"{model.base_url}/chat/completions", body)
    try:
        return dict(answer["choices"][0]["message"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DemoError(f"the model's service answered something else: {str(answer)[:200]}", hint="check OPENAI_BASE_URL") from error


def _json(client: httpx.Client, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        answer = client.request(method, url, json=body)
        return dict(answer.raise_for_status().json())
    except httpx.HTTPStatusError as error:
        text = error.response.text[:200]
        raise DemoError(f"{url} answered {error.response.status_code}: {text}", hint="check OPENAI_API_KEY and OPENAI_MODEL") from error
    except (httpx.HTTPError, TypeError, ValueError) as error:
        raise DemoError(f"{url} cannot be used: {error}", hint="check OPENAI_BASE_URL") from error
