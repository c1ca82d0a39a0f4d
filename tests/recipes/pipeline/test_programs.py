"""Rollouts of tasks by a third-party program: its prompt, its patch graded in a clean sandbox, its calls as pairs."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from holdfast_recipes.cli import main
from holdfast_recipes.harness import programs
from holdfast_recipes.harness.program import Program
from holdfast_recipes.pipeline import files, service
from holdfast_recipes.policy.scripted import written
from holdfast_recipes.policy.tokenizer import ByteTokenizer

from tests.recipes.swe.conftest import small_task
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "git")

TOKENIZER = ByteTokenizer()
AGENT = (Path(__file__).parents[1] / "harness" / "small_agent.py").read_text()
SCHEMAS = Path(__file__).parents[3] / "schemas" / "recipes"
SMALL = ("--cpu", "0.5", "--memory", "0.25", "--concurrency", "4", "--no-pull", "--quiet")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    files.write_lines(path, [small_task(tmp_path / "archives", task_id=name).task.to_json() for name in ("calc-1", "calc-2")])
    return path


@pytest.fixture
def model() -> Iterator[str]:
    """A server that speaks SGLang's ``/generate``: it repairs the file, then says that it is done."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = TOKENIZER.decode(body["input_ids"])
            fix = written("bash", thought="I see.", command="sed -i 's/a - b/a + b/' calc.py")
            ids = [*TOKENIZER.encode("done" if "<tool_response>" in prompt else fix), TOKENIZER.special("<|im_end|>")]
            meta = {"output_token_logprobs": [[-0.5, token, None] for token in ids], "finish_reason": {"type": "stop"}}
            data = json.dumps({"meta_info": meta | {"weight_version": "3"}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def collect(stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    monkeypatch.setenv("HOLDFAST_URL", stack.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", stack.key)
    small = Program("codex", ("python3", "${home}/agent.py", "chat", "${url}", "${key}", "${prompt}"), {}, {"agent.py": AGENT}, "9")
    monkeypatch.setitem(programs.PROGRAMS, "codex", small)  # one that every image with Python can run

    def run(*words: object, status: int = 0) -> Any:
        found = main(["collect", *map(str, words), "--json"])
        printed = capsys.readouterr()
        assert found == status, printed.err
        return json.loads(printed.out or printed.err)

    return run


def test_a_program_repairs_tasks(tasks: Path, tmp_path: Path, model: str, collect: Callable[..., Any]) -> None:
    out = tmp_path / "run"
    words = (tasks, "--out", out, "--harness", "codex", "--policy", model, "--tokenizer", "bytes", "--rollouts", 2, *SMALL)
    assert collect(*words)["outcomes"]["solved"] == 4
    runs = list(files.trajectories(out))
    assert [(run.reward, run.harness.name, run.harness.version, run.policy.version) for run in runs] == [(1.0, "codex", "9", "3")] * 4
    for run in runs:
        assert run.messages[0]["role"] == "user"
        assert "Resolve this issue" in str(run.messages[0]["content"])
        assert [call.name for call in run.turns[0].calls] == ["bash"]
        assert run.turns[-1].text == "done"
        assert run.prompts.keys() == {"swe_program"}
        assert run.tokens is not None
        assert "sed -i" in TOKENIZER.decode([token for token, bit in zip(run.tokens.ids, run.tokens.loss_mask, strict=True) if bit])
    pairs = [record for _, record in files.lines(out / service.PAIRS)]
    assert len(pairs) == 8
    assert {pair["rollout_id"] for pair in pairs} == {run.trajectory_id for run in runs}
    for pair in pairs:
        jsonschema.validate(pair, json.loads((SCHEMAS / "pair.schema.json").read_text()))
    again = collect(*words)
    assert (again["finished"], len(list(files.lines(out / service.PAIRS)))) == (4, 8)  # finished rollouts are not repeated


@pytest.mark.parametrize(
    ("harness", "policy", "words", "expected"),
    [
        ("codex", "http://127.0.0.1:9", (), "needs --tokenizer"),
        ("claude-code", "gold", ("--tokenizer", "bytes"), "needs --policy"),
        ("mini-swe-agent", "http://127.0.0.1:9", ("--tokenizer", "bytes"), "needs --program"),
        ("opencode", "http://127.0.0.1:9", ("--tokenizer", "nowhere.json"), "no tokenizer"),
    ],
)
def test_what_a_program_needs(
    tasks: Path, tmp_path: Path, collect: Callable[..., Any], harness: str, policy: str, words: tuple[str, ...], expected: str
) -> None:
    found = collect(tasks, "--out", tmp_path / "run", "--harness", harness, "--policy", policy, *words, *SMALL, status=2)
    assert re.search(expected, json.dumps(found)), found
