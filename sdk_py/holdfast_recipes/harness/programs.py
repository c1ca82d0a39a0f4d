"""Three third-party agents as ``Program``s: codex, opencode and claude-code, each without a network of its own (C4.2, E0).

Owns words of command lines, variables and settings, as the versions named here take them. Each runs unattended, with all its tools allowed:
the sandbox is the wall. Updates, telemetry and model lists from the internet are off, because a rollout waits for each of them.
"""

from __future__ import annotations

import json

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

PROGRAMS = {program.name: program for program in (CODEX, OPENCODE, CLAUDE_CODE)}
