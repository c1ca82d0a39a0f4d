"""The inner half of the harness ``openhands``: starts OpenHands' agent server in the sandbox, and gives it one conversation.

Owns the server's process, the request and the wait for its end; the text goes into the sandbox, where the Python that has the package
``openhands-agent-server`` runs it. Imports the standard library alone. Arguments: address of the model, its key and name, work directory,
home, prompt.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

STARTED_S = 120.0
ENDED = ("finished", "error", "stuck", "paused")
TOOLS = ("terminal", "file_editor", "task_tracker")
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OH_ENABLE_VSCODE": "0",
    "OH_ENABLE_BROWSER": "0",
    "OH_PRELOAD_TOOLS": "0",
    "OH_TELEMETRY_CONSENT": "false",
    "OPENHANDS_SUPPRESS_BANNER": "1",
}
"""No list of prices from the internet, no editor, no browser, no telemetry."""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


class Server:
    """The agent server, on loopback with a key that nothing else knows."""

    def __init__(self, home: str) -> None:
        port, self.key = free_port(), os.urandom(16).hex()
        self.url = f"http://127.0.0.1:{port}"
        places = {
            "OH_CONVERSATIONS_PATH": f"{home}/conversations",
            "OH_BASH_EVENTS_DIR": f"{home}/bash",
            "OH_WORKSPACE_PATH": f"{home}/workspaces",
            "OH_SESSION_API_KEYS_0": self.key,
            "OH_SECRET_KEY": os.urandom(16).hex(),
        }
        command = [sys.executable, "-m", "openhands.agent_server", "--host", "127.0.0.1", "--port", str(port)]
        self.process = subprocess.Popen(command, cwd=home, env={**os.environ, **QUIET, **places}, stdin=subprocess.DEVNULL)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-Session-API-Key": self.key, "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise SystemExit(f"the agent server refused {path}: {error.code} {error.read()[:2000]!r}") from None

    def wait_until_ready(self) -> None:
        ended = time.monotonic() + STARTED_S
        while time.monotonic() < ended:
            if self.process.poll() is not None:
                raise SystemExit(f"the agent server ended with {self.process.returncode}")
            try:
                self.ask("GET", "/ready")
                return
            except (OSError, ValueError, SystemExit):
                time.sleep(0.1)
        raise SystemExit(f"the agent server did not start within {STARTED_S:g} s")


def main(url: str, key: str, model: str, workdir: str, home: str, prompt: str) -> int:
    server = Server(home)
    try:
        server.wait_until_ready()
        llm = {"model": f"openai/{model}", "base_url": f"{url}/v1", "api_key": key, "usage_id": "agent", "num_retries": 0, "stream": False}
        order = {
            "agent": {"kind": "Agent", "llm": llm, "tools": [{"name": name} for name in TOOLS]},
            "workspace": {"kind": "LocalWorkspace", "working_dir": workdir},
            "confirmation_policy": {"kind": "NeverConfirm"},
            "max_iterations": 100_000,
            "initial_message": {"role": "user", "content": [{"type": "text", "text": prompt}], "run": True},
        }
        conversation = server.ask("POST", "/api/conversations", order)["id"]
        status = ""
        while status not in ENDED:
            time.sleep(0.2)
            status = str(server.ask("GET", f"/api/conversations/{conversation}")["execution_status"])
        print(f"the conversation is {status}", flush=True)
        return 0 if status == "finished" else 1
    finally:
        server.process.terminate()
        try:
            server.process.wait(10)
        except subprocess.TimeoutExpired:
            server.process.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
