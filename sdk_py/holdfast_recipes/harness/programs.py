"""Third-party agents as ``Program``s: codex, opencode, claude-code, pi, hermes, Kimi CLI and OpenHands, each without a network of its own
(C4.2, E0).

Owns words of command lines, variables and settings, as the versions named here take them. Each runs unattended, with all its tools allowed:
the sandbox is the wall. Updates, telemetry and model lists from the internet are off, because a rollout waits for each of them.
"""

from __future__ import annotations

import json
from pathlib import Path

from .program import Program

_CODEX_CONFIG = """\
model = "${model}"
model_provider = "holdfast"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.holdfast]
name = "holdfast"
base_url = "${url}/v1"
env_key = "CODEX_PROXY_KEY"
wire_api = "responses"

[analytics]
enabled = false
"""

CODEX = Program(
    "codex",
    ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--color", "never", "--", "${prompt}"),
    {"CODEX_PROXY_KEY": "${key}", "CODEX_HOME": "${home}/.codex"},
    {".codex/config.toml": _CODEX_CONFIG},
    "0.169.0",
)
"""OpenAI responses, streamed. The npm package ``@openai/codex`` holds a static binary."""

_OPENCODE_CONFIG = {
    "$schema": "https://opencode.ai/config.json",
    "model": "holdfast/${model}",
    "small_model": "holdfast/${model}",
    "provider": {
        "holdfast": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "holdfast",
            "options": {"baseURL": "${url}/v1", "apiKey": "${key}"},
            "models": {"${model}": {"name": "${model}"}},
        }
    },
    "autoupdate": False,
    "share": "disabled",
    "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
}

OPENCODE = Program(
    "opencode",
    ("opencode", "run", "--", "${prompt}"),
    {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "NO_COLOR": "1"},
    {".config/opencode/opencode.json": json.dumps(_OPENCODE_CONFIG, indent=1)},
    "1.18.33",
)
"""OpenAI chat completions, streamed; a call for a title runs beside the work. The npm package ``opencode-ai`` holds a binary."""

CLAUDE_CODE = Program(
    "claude-code",
    ("claude", "-p", "--dangerously-skip-permissions", "--output-format", "json", "--model", "${model}", "--", "${prompt}"),
    {
        "ANTHROPIC_BASE_URL": "${url}",
        "ANTHROPIC_API_KEY": "${key}",
        "ANTHROPIC_SMALL_FAST_MODEL": "${model}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # it refuses to skip permissions as root elsewhere
    },
    {},
    "2.1.330",
)
"""Anthropic messages, streamed. The npm package ``@anthropic-ai/claude-code`` holds a binary."""

_PI_MODELS = {
    "providers": {
        "holdfast": {
            "baseUrl": "${url}/v1",
            "api": "openai-completions",
            "apiKey": "${key}",
            "compat": {"supportsDeveloperRole": False, "supportsReasoningEffort": False, "supportsStore": False},
            "models": [{"id": "${model}", "contextWindow": 131072, "maxTokens": 16384}],
        }
    }
}

PI = Program(
    "pi",
    # a prompt that begins with @ or - would be a file or an option: a line break before it makes it neither
    ("pi", "--print", "--no-session", "--no-extensions", "--no-skills", "--provider", "holdfast", "--model", "${model}", "\n${prompt}"),
    {"PI_CODING_AGENT_DIR": "${home}/.pi/agent", "PI_OFFLINE": "1", "PI_TELEMETRY": "0", "NO_COLOR": "1"},
    {".pi/agent/models.json": json.dumps(_PI_MODELS, indent=1)},
    "0.73.1",
)
"""OpenAI chat completions, streamed. The npm package ``@mariozechner/pi-coding-agent`` needs Node 20 in the image."""

_HERMES_CONFIG = """\
model:
  default: "${model}"
  provider: custom
  base_url: "${url}/v1"
  api_key: "${key}"
  api_mode: chat_completions
  context_length: 131072
compression:
  enabled: false
memory:
  memory_enabled: false
  user_profile_enabled: false
"""

HERMES = Program(
    "hermes",
    ("hermes", "--toolsets", "terminal,file,delegation", "--oneshot", "${prompt}"),
    {"HERMES_HOME": "${home}/.hermes", "OPENAI_API_KEY": "${key}", "OPENAI_BASE_URL": "${url}/v1", "NO_COLOR": "1"},
    {".hermes/config.yaml": _HERMES_CONFIG},
    "0.19.0",
)
"""OpenAI chat completions, streamed. The PyPI package ``hermes-agent`` needs Python 3.11 to 3.13 in the image."""

_KIMI_CONFIG = """\
default_model = "holdfast"
telemetry = false

[providers.holdfast]
type = "openai_legacy"
base_url = "${url}/v1"
api_key = "${key}"

[models.holdfast]
provider = "holdfast"
model = "${model}"
max_context_size = 131072

[loop_control]
max_steps_per_turn = 100000
max_retries_per_step = 1
"""

KIMI = Program(
    "kimi-cli",
    ("kimi", "--print", "--yolo", "--final-message-only", "--config-file", "${home}/.kimi/holdfast.toml", "--prompt", "${prompt}"),
    {"KIMI_CLI_NO_AUTO_UPDATE": "1", "NO_COLOR": "1"},
    {".kimi/holdfast.toml": _KIMI_CONFIG},
    "1.51.0",
)
"""OpenAI chat completions, streamed. The PyPI package ``kimi-cli`` needs Python 3.12 or later in the image; 1.52.0, which
is the last, only says that it is no longer maintained."""

OPENHANDS = Program(
    "openhands",
    ("openhands-python", "${home}/openhands_inside.py", "${url}", "${key}", "${model}", "${workdir}", "${home}", "${prompt}"),
    {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_COLOR": "1"},
    {"openhands_inside.py": Path(__file__).with_name("openhands_inside.py").read_text().replace("$", "$$")},
    "1.58.2",
)
"""OpenHands' own agent server, with one conversation; OpenAI chat completions. Its path is that of a Python that has the PyPI package
``openhands-agent-server``."""

PROGRAMS = {program.name: program for program in (CODEX, OPENCODE, CLAUDE_CODE, PI, HERMES, KIMI, OPENHANDS)}
