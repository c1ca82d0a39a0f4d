"""Traces of commands: SDK, gateway, agent and process in one trace, received over OTLP by a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.requires import requires
from tests.support.stack import running_stack
from tests.support.until import until

pytestmark = requires("namespaces")
Span = dict[str, Any]


@contextlib.contextmanager
def receiver(file: Path) -> Iterator[str]:
    """An OTLP receiver in a process of its own; its address."""
    command = [sys.executable, "-m", "tests.support.otlp_receiver", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> list[Span]:
    """Of one program, and of the gateway that served it."""
    file = tmp_path_factory.mktemp("traces") / "spans.jsonl"
    with receiver(file) as address:
        exporter = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT": address}
        exporter |= {"OTEL_BSP_SCHEDULE_DELAY": "100"}
        with running_stack({"HOLDFAST_TRACING": "1", **exporter}) as stack:
            program = [sys.executable, "-m", "tests.support.traced_program"]
            ended = subprocess.run(program, env=stack.environment() | exporter, capture_output=True, text=True, timeout=120)
            assert ended.returncode == 0, ended.stderr + stack.logs()

        def found() -> list[Span]:
            return [json.loads(line) for line in file.read_text().splitlines()]

        until(lambda: any(one["service"] == "holdfast-gateway" for one in found()), deadline_s=30, what="spans of the gateway")
    return found()


def tree(spans: list[Span], root: Span, depth: int = 0) -> list[str]:
    """A span and those below it, one a line."""
    size_ms = (root["end_ns"] - root["start_ns"]) / 1e6
    lines = [f"{'  ' * depth}{root['name']} [{root['service']}] {size_ms:.1f} ms"]
    below = sorted((one for one in spans if one["parent"] == root["span"]), key=lambda one: one["start_ns"])
    for one in below:
        lines += tree(spans, one, depth + 1)
    return lines


def root_of(spans: list[Span], name: str) -> Span:
    (root,) = [one for one in spans if one["name"] == name]
    return root


def shape(lines: list[str]) -> list[tuple[int, str]]:
    """Depth and name with service of each line."""
    return [((len(line) - len(line.lstrip())) // 2, line.strip().rpartition(" ")[0].rpartition(" ")[0]) for line in lines]


def test_a_command_in_a_shell_is_one_trace_through_gateway_and_agent(spans: list[Span]) -> None:
    lines = tree(spans, root_of(spans, "one command in a shell"))
    print("\n" + "\n".join(lines))
    assert shape(lines) == [
        (0, "one command in a shell [program]"),
        (1, "holdfast.attach [program]"),
        (2, "GET /sandboxes/{sandbox_id}/session [holdfast-gateway]"),
        (3, "attach.dial [holdfast-gateway]"),
        (1, "holdfast.command [program]"),
        (2, "holdfast.agent [program]"),
        (3, "holdfast.process [program]"),
    ]


def test_a_command_over_rest_is_one_trace(spans: list[Span]) -> None:
    lines = tree(spans, root_of(spans, "one command over REST"))
    print("\n" + "\n".join(lines))
    names = [name for _, name in shape(lines)]
    assert names[-5:] == [
        "POST /sandboxes [program]",
        "POST /sandboxes/{sandbox_id}/exec [holdfast-gateway]",
        "holdfast.command [holdfast-gateway]",
        "holdfast.agent [holdfast-gateway]",
        "holdfast.process [holdfast-gateway]",
    ]


def test_parts_lie_within_what_they_are_parts_of(spans: list[Span]) -> None:
    by_id = {one["span"]: one for one in spans}
    inner = [one for one in spans if one["name"] in ("holdfast.agent", "holdfast.process")]
    assert len(inner) >= 8
    for one in inner:
        outer = by_id[one["parent"]]
        assert outer["start_ns"] <= one["start_ns"] <= one["end_ns"] <= outer["end_ns"]


def test_spans_have_codes_and_ids_and_no_texts(spans: list[Span]) -> None:
    command = next(one for one in spans if one["parent"] == root_of(spans, "one command of its own")["span"])
    assert command["attributes"]["holdfast.exit_code"] == 3
    assert {"holdfast.sandbox_id", "holdfast.command_id"} <= set(command["attributes"])
    assert "exit 3" not in json.dumps(spans)
    created = [one for one in spans if one["name"] == "POST /sandboxes" and one["service"] == "holdfast-gateway"]
    assert created[0]["attributes"]["http.response.status_code"] == 200


def test_a_repeated_command_in_another_trace_is_the_same_command(spans: list[Span]) -> None:
    commands = [one for one in spans if one["parent"] == root_of(spans, "a command with a repeated id")["span"]]
    assert [one["attributes"].get("holdfast.exit_code") for one in commands] == [0, 0]


def test_without_the_setting_nothing_is_imported() -> None:
    code = "import sys, holdfast; holdfast.SandboxClient('http://127.0.0.1:1', 'k').close(); from gateway.tracing import spans_of; "
    code += "spans_of(False); print([name for name in sys.modules if name.startswith('opentelemetry')])"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "HOLDFAST_TRACING": ""}, check=True
    )
    assert told.stdout.strip() == "[]"
