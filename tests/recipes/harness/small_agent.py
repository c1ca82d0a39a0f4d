"""A command-line agent in the standard library, as sandboxes run it in tests: one tool, sub-agents, compaction, three dialects.

Run with ``agent.py DIALECT URL KEY PROMPT``. A call of ``agent`` has a history of its own; a history that is longer than COMPACT
messages is replaced by one message, as harnesses with a short context do. Exits with status 3 if the request to the model fails.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

DIALECT, URL, KEY, PROMPT = sys.argv[1:5]
COMPACT = int(os.environ.get("COMPACT", "1000"))
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = {
    "chat": [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("bash", "agent")],
    "responses": [{"type": "function", "name": name, "parameters": PARAMETERS} for name in ("bash", "agent")],
    "messages": [{"name": name, "input_schema": PARAMETERS} for name in ("bash", "agent")],
}


def ask(history: Any) -> Any:
    """The answer of the model, and what of it goes into the history."""
    body = {"model": "m", "max_tokens": 4000, "tools": TOOLS[DIALECT], "input" if DIALECT == "responses" else "messages": history}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + KEY}
    request = urllib.request.Request(URL + PATHS[DIALECT], json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=150) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        print("refused:", error.code, error.read().decode())
        sys.exit(3)
    if DIALECT == "chat":
        message = answer["choices"][0]["message"]
        message.pop("reasoning_content", None)  # most clients do not send it back
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls") or ()
        ]
        return [message], calls, message["content"]
    if DIALECT == "messages":
        blocks = answer["content"]
        calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        return [{"role": "assistant", "content": blocks}], calls, "".join(block.get("text", "") for block in blocks)
    items = answer["output"]
    calls = [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    return items, calls, "".join(item["content"][0]["text"] for item in items if item["type"] == "message")


def result(call_id: str, text: str) -> Any:
    if DIALECT == "chat":
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    if DIALECT == "messages":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def work(prompt: str) -> Any:
    """Executes tool calls until the model makes none; returns its last text."""
    history = [{"role": "user", "content": prompt}]
    while True:
        added, calls, text = ask(history)
        history += added
        if not calls:
            return text
        for call_id, name, arguments in calls:
            if name == "agent":
                shown = work(arguments["command"])
            else:
                ran = subprocess.run(arguments["command"], shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                shown = ran.stdout.decode()
            history.append(result(call_id, shown))
        if len(history) > COMPACT:
            history = [{"role": "user", "content": "So far: " + str(len(history)) + " messages about " + prompt}]


print("said:", work(PROMPT))
