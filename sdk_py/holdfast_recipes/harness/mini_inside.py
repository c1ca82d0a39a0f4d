"""The inner half of ``mini_swe_agent``: a script for the Python that has the package mini-swe-agent, run as a process of its own.

Owns the package's agent, model and prompts as its SWE-bench configuration gives them, with an environment whose commands are run by the
other half: one JSON object per line goes out for each, and its result comes back. Imports the standard library and that package
alone.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from typing import Any

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Channel:
    """Lines of JSON over what were standard input and output; what the package prints goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, **message: Any) -> None:
        print(json.dumps(message), file=self._out, flush=True)

    def receive(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            raise EOFError("the other half is gone")
        message: dict[str, Any] = json.loads(line)
        return message


class Remote:
    """The environment object of the package."""

    def __init__(self, channel: Channel, config: dict[str, Any], submitted: type[Exception]) -> None:
        self.config = config
        self._channel, self._submitted = channel, submitted

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        self._channel.send(command=action.get("command", ""), cwd=cwd, timeout=timeout)
        output = self._channel.receive()
        lines = output["output"].lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == SUBMIT and output["returncode"] == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise self._submitted({"role": "exit", "content": submission, "extra": extra})
        return output

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        return {**self.config, **platform.uname()._asdict(), **more}

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"environment": self.config, "environment_type": "holdfast"}}}


def main() -> None:
    channel = Channel()
    order = channel.receive()
    import minisweagent  # type: ignore[import-not-found, unused-ignore]
    import yaml
    from minisweagent.agents.default import DefaultAgent  # type: ignore[import-not-found, unused-ignore]
    from minisweagent.exceptions import Submitted  # type: ignore[import-not-found, unused-ignore]
    from minisweagent.models.litellm_model import LitellmModel, LitellmModelConfig  # type: ignore[import-not-found, unused-ignore]

    config = yaml.safe_load((minisweagent.package_dir / "config" / "benchmarks" / "swebench.yaml").read_text())
    # after a plain user message the template drops all earlier thoughts, and the proxy's record of the rollout forks
    explanation = config["model"].get("format_error_template") or LitellmModelConfig.model_fields["format_error_template"].default
    config["model"]["format_error_template"] = f"<tool_response>\n{explanation.strip()}\n</tool_response>"
    arguments = {"api_base": order["url"], "api_key": order["key"], "max_retries": 0, **config["model"].get("model_kwargs", {})}
    settings = {**config["model"], "model_name": f"openai/{order['model']}", "model_kwargs": arguments, "cost_tracking": "ignore_errors"}
    environment = {key: value for key, value in config["environment"].items() if key != "environment_class"}
    environment["cwd"] = order["workdir"]
    channel.send(version=minisweagent.__version__, environment=environment)
    remote = Remote(channel, environment, Submitted)
    agent = DefaultAgent(LitellmModel(**settings), remote, **{**config["agent"], "cost_limit": 0.0, **order["limits"]})
    try:
        end = agent.run(order["task"])
    except Exception as error:  # noqa: BLE001  whatever the package raises is how it ended
        traceback.print_exc()
        end = {"exit_status": type(error).__name__}
    channel.send(end={key: end.get(key, "") for key in ("exit_status", "submission")}, calls=agent.n_calls)


if __name__ == "__main__":
    main()
