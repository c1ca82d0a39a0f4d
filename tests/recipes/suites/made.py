"""Tasks in Harbor's format for tests: what a folder holds, with a test that looks for one file."""

from __future__ import annotations

from pathlib import Path

TEST = """#!/bin/bash
# passes when the answer is right, and leaves a reward either way
if [ "$(cat /tmp/answer.txt 2>/dev/null)" = "42" ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
SOLVE = "#!/bin/bash\necho 42 > /tmp/answer.txt\n"
SETTINGS = """
version = "1.0"

[task]
name = "ours/{name}"

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 30.0

[environment]
docker_image = "host"
cpus = 0.5
memory_mb = 256
network_mode = "no-network"
"""


def harbor_task(folder: Path, name: str, *, settings: str = SETTINGS, test: str = TEST, solve: str | None = SOLVE, **files: str) -> Path:
    """A task's folder below ``folder``; ``files`` are further ones, with ``__`` for a slash and ``_`` before the extension's dot."""
    place = folder / name
    written = {
        "task.toml": settings.replace("{name}", name),
        "instruction.md": f"Write 42 to /tmp/answer.txt ({name}).\n",
        "tests/test.sh": test,
    }
    if solve is not None:
        written["solution/solve.sh"] = solve
    written |= {path.replace("__", "/"): text for path, text in files.items()}
    for path, text in written.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place
