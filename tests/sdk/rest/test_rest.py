"""Failures over REST: an exec runs once however often its request is sent, and the client never guesses the outcome."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import pytest
from holdfast import (
    HoldfastError,
    InvalidArgumentError,
    OutcomeUnknownError,
    SandboxLostError,
    SandboxNotReadyError,
    ServiceUnavailableError,
    StreamCount,
)

from tests.sdk.support.faces import inner

Answer = tuple[int, dict[str, Any]] | None
"""A status and a JSON body, or None: read the request and hang up."""


class Service:
    """Sends a list of answers to requests, repeating the last one; records each request's line and Idempotency-Key."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        """The keys of creates that a DELETE cancels."""
        self.delay_s = 0.0
        """How long each answer is delayed."""
        self.go_on = threading.Event()
        """Clear it to hold answers back until it is set."""
        self.go_on.set()
        self.retry_after_s = 0
        """How long each answer asks the client to wait before it tries again."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as reader:
                line = reader.readline().decode().strip()
                headers = {}
                while header := reader.readline().decode().strip():
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                reader.read(int(headers.get("content-length", 0)))
                self.requests.append((line.rpartition(" ")[0], headers.get("idempotency-key", "")))
                self.cancelled += [key] if (key := headers.get("x-holdfast-cancelled-create")) else []
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                threading.Event().wait(self.delay_s)
                self.go_on.wait(60)
                if answer is None:
                    continue
                body = json.dumps(answer[1]).encode()
                kind = "application/problem+json" if answer[0] >= 400 else "application/json"
                head = f"HTTP/1.1 {answer[0]} x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
                head += f"Retry-After: {self.retry_after_s}\r\n\r\n" if self.retry_after_s else "\r\n"
                connection.sendall(head.encode() + body)


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture
def rest(service: Service, face: Any) -> Callable[..., Any]:
    def sandbox(**options: Any) -> Any:
        return face.client(service.url, "k", transport="rest", **options).get_sandbox("sb")

    return sandbox


def job(**more: Any) -> Answer:
    done = {"job_id": "sb.k1", "status": "succeeded", "stdout": "x\n", "exit_code": 0, "started_at": 1.0, "completed_at": 2.0}
    return 200, {**done, **more}


def problem(status: int, code: str, **more: Any) -> Answer:
    return status, {"code": code, "detail": "because", **more}


async def test_an_exec_whose_answer_was_lost_is_requested_again_with_its_key(service: Service, rest: Any) -> None:
    unknown = problem(504, "outcome_unknown", context={"accepted": None, "started": None})
    service.answers = [None, problem(503, "placement_unavailable"), unknown, job()]
    assert (await rest().exec("echo x", command_id="mine")).stdout == "x\n"
    assert service.requests == [("POST /sandboxes/sb/exec", "mine")] * 4


async def test_a_long_exec_is_polled_as_a_job(service: Service, rest: Any) -> None:
    """After a lost answer the client finds the job by the same key and polls its state every few seconds: no request waits for long."""
    service.answers = [None, (200, {"job_id": "sb.k1", "status": "queued"}), job(status="running"), None, job(status="running"), job()]
    assert (await rest().exec("echo x", command_id="mine")).stdout == "x\n"
    assert service.requests == [("POST /sandboxes/sb/exec", "mine")] * 2 + [("GET /jobs/sb.k1/wait?timeout=15.0", "")] * 4


async def test_the_byte_counts_of_both_streams_are_sent_over_rest_too(service: Service, rest: Any) -> None:
    counts = {"stdout": {"seen": 9, "dropped": 7, "sha256": "0f" * 32}, "stderr": {"seen": 0, "dropped": 0, "sha256": "aa" * 32}}
    service.answers = [job(streams=counts, truncated=True), job()]
    result = await rest().exec("echo x")
    assert result.streams == {1: StreamCount(9, 7, "0f" * 32), 2: StreamCount(0, 0, "aa" * 32)}
    assert not (await rest().exec("echo x")).streams, "an older service does not send them"


async def test_an_exec_that_may_have_run_raises_outcome_unknown_error(service: Service, rest: Any) -> None:
    service.answers = [None]
    with pytest.raises(OutcomeUnknownError) as unknown:
        await rest(resume_timeout_s=0.1).exec("x", command_id="mine")
    assert (unknown.value.command_id, unknown.value.started, unknown.value.fault) == ("mine", None, "infrastructure")


@pytest.mark.parametrize("answer", [problem(503, "placement_unavailable"), problem(409, "sandbox_not_ready")])
async def test_an_exec_that_was_refused_did_not_start(service: Service, rest: Any, answer: Answer) -> None:
    service.answers = [answer]
    with pytest.raises(HoldfastError) as refused:
        await rest(resume_timeout_s=0.1).exec("x", command_id="mine")
    assert not isinstance(refused.value, OutcomeUnknownError)
    assert (refused.value.detail["command_id"], refused.value.detail["started"]) == ("mine", False)


async def test_where_no_service_listens_the_command_did_not_start(face: Any) -> None:
    sandbox = face.client("http://127.0.0.1:9", "k", transport="rest", resume_timeout_s=0.1).get_sandbox("sb")
    with pytest.raises(ServiceUnavailableError) as unavailable:
        await sandbox.exec("x")
    assert unavailable.value.detail["started"] is False


@pytest.mark.parametrize(
    ("answers", "started"),
    [
        ([problem(410, "sandbox_gone", reason="oom", fault="workload")], False),
        ([problem(410, "sandbox_gone", reason="oom", fault="workload", context={"accepted": True, "started": True})], True),
        ([None, problem(410, "sandbox_gone", reason="oom", fault="workload")], None),
    ],
)
async def test_the_error_of_a_lost_sandbox_has_its_cause_and_whether_the_command_started(
    service: Service, rest: Any, answers: list[Answer], started: Any
) -> None:
    service.answers = list(answers)
    with pytest.raises(SandboxLostError) as lost:
        await rest().exec("x", command_id="mine")
    assert (lost.value.reason, lost.value.fault, lost.value.started, lost.value.command_id) == ("oom", "workload", started, "mine")


async def test_an_invalid_request_is_not_sent_again(service: Service, rest: Any) -> None:
    service.answers = [problem(422, "invalid_argument")]
    with pytest.raises(InvalidArgumentError):
        await rest().exec("x")
    assert len(service.requests) == 1


async def test_the_result_of_a_command_killed_for_memory_names_the_cause(service: Service, rest: Any) -> None:
    service.answers = [job(status="failed", exit_code=137, signal="KILL", cause={"fault": "workload", "reason": "oom", "message": "m"})]
    result = await rest().exec("x")
    assert (result.exit_code, result.signal) == (137, "KILL")
    assert result.cause is not None
    assert (result.cause.fault, result.cause.reason) == ("workload", "oom")


async def test_a_patch_that_may_have_been_applied_is_not_sent_again(service: Service, rest: Any) -> None:
    service.answers = [None]
    with pytest.raises(OutcomeUnknownError):
        await rest().apply_patch("diff")
    assert len(service.requests) == 1


async def test_the_client_falls_back_to_rest_where_upgrades_get_no_answer(service: Service, face: Any) -> None:
    """A proxy closes every WebSocket connection but passes REST requests, so the client uses REST."""
    here = {"sandbox_id": "sb", "namespace": "", "image": "i", "status": "ready", "ready": True}
    sandbox = face.client(service.url, "k", connect_timeout_s=1.5).get_sandbox("sb")

    class Swallow(list[Answer]):
        def pop(self, index: Any = 0) -> Answer:
            line = service.requests[-1][0]
            return None if line.endswith("/session") else (200, here) if line.startswith("GET") else job()

    service.answers = Swallow([None, None])
    assert (await sandbox.exec("echo x")).stdout == "x\n"
    assert ("GET /sandboxes/sb", "") in service.requests


async def test_an_exec_whose_end_is_not_reported_is_given_up_after_its_time_limit(service: Service, rest: Any) -> None:
    """The gateway only repeats what the agent reports, and code in the sandbox may control that."""
    service.answers = [job(status="running")]
    sandbox = rest()
    inner(sandbox)._client._options = options = replace(inner(sandbox)._client._options, answer_timeout_s=0.2)
    inner(sandbox)._client._rest._options = options
    with pytest.raises(OutcomeUnknownError, match=r"has not reported the end of command mine after its time limit of 0\.1 s") as unknown:
        await sandbox.exec("x", command_id="mine", timeout=0.1)
    assert (unknown.value.command_id, unknown.value.started, unknown.value.fault) == ("mine", None, "workload")


async def test_a_create_is_not_sent_again_after_its_time_limit(service: Service, face: Any) -> None:
    """The answer arrives after the time limit: another attempt would make a sandbox that no caller waits for."""
    service.answers = [problem(504, "create_timeout", retryable=True)]
    service.delay_s = 0.6
    with pytest.raises(HoldfastError) as slow:
        await face.client(service.url, "k").create_sandbox("image", ready_timeout_s=0.5)
    assert slow.value.code == "create_timeout"
    assert [line for line, _ in service.requests if line.startswith("POST")] == ["POST /sandboxes"]


PENDING = {
    "sandbox_id": "sb",
    "namespace": "",
    "image": "i",
    "block_network": True,
    "cpu": "1",
    "memory": "1Gi",
    "timeout": 1.0,
    "ready": False,
}


@pytest.mark.parametrize(
    "answers",
    [
        [problem(504, "create_timeout")],
        [(200, PENDING | {"status": "pending"})],
        [(200, PENDING | {"status": "pending"}), problem(408, "wait_timeout")],
    ],
    ids=["by the create", "still pending", "by the wait"],
)
async def test_a_create_that_is_given_up_is_deleted_by_its_key(service: Service, face: Any, answers: list[Answer]) -> None:
    """Its sandbox is pending and may still become ready, when no caller waits for it any more."""
    service.answers = answers
    with pytest.raises(HoldfastError) as slow:
        await face.client(service.url, "k").create_sandbox("image", ready_timeout_s=0.5)
    assert slow.value.code in ("create_timeout", "wait_timeout")
    (key,) = {key for line, key in service.requests if line == "POST /sandboxes"}
    assert service.cancelled == [key]


async def test_a_create_that_is_not_answered_in_time_is_late_and_deleted(
    service: Service, face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is there: nothing advises to start it."""
    for module in ("holdfast._transport.rest.retry", "holdfast._async.rest", "holdfast._sync.rest"):
        monkeypatch.setattr(f"{module}.MARGIN_S", 0.1)
    service.answers = [None]
    with pytest.raises(SandboxNotReadyError) as slow:
        await face.client(service.url, "k").create_sandbox("image", ready_timeout_s=1.0)
    assert (slow.value.code, slow.value.fault, slow.value.retryable) == ("create_timeout", "infrastructure", False)
    assert "holdfast up" not in str(slow.value)
    (key,) = {key for line, key in service.requests if line == "POST /sandboxes"}
    assert set(service.cancelled) == {key}


@pytest.mark.parametrize("code", ["runtime_unavailable", "placement_unavailable", "internal", "overloaded"])
async def test_a_create_that_may_have_begun_is_deleted_by_its_key(service: Service, face: Any, code: str) -> None:
    service.answers = [problem(503, code)] * 4 + [(200, {"existed": False})]
    with pytest.raises(HoldfastError) as given_up:
        await face.client(service.url, "k").create_sandbox("image", ready_timeout_s=0.5)
    assert given_up.value.code == code
    assert bool(service.cancelled) is (code != "overloaded"), "an overloaded service has begun nothing"
