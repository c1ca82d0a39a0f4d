"""The REST contract: valid and invalid requests, generated from the API's document, against a running gateway.

The gateway runs on a thread of its own, with a real Redis and a runtime in memory. No agent can be reached (``tests/gateway`` and
``tests/e2e`` have agents), so operations that need one give the documented error. The tests allow no other server error, no answer that
the document does not describe, and no operation that ignores authentication.
"""

from __future__ import annotations

import asyncio
import functools
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.faces.rest.service import document
from tests.gateway.harness import ADA, Served, serve
from tests.support.redis_server import RedisServer
from tests.support.requires import requires

pytestmark = [requires("redis"), pytest.mark.timeout(180)]

EXAMPLES = 100 if os.environ.get("HOLDFAST_FUZZ") else 10
"""Generated requests per operation and mode."""
EXPECTED_FAILURES = {"agent_unreachable": 503, "unsupported": 501}
"""The errors of a gateway without agents or an image store, with their statuses."""

ENDLESS = {"GET /events"}
"""Operations whose answer does not end: ``tests/gateway/use_cases/test_events.py`` has their tests."""
BEYOND_SCHEMA = {"POST /sandboxes", "POST /sandboxes/{sandbox_id}/branch", "PUT /sandboxes/{sandbox_id}/network"}
"""A schema cannot describe address ranges, paths and quantities in full, nor a list as long as another field says: the gateway may refuse
what it allows, and names the field."""
REFUSED_BY_ITEM = {"POST /batch/create"}
"""A malformed item is refused in its own result, not with the whole request."""
LINK = "holdfast_link"
"""The query parameter in place of a key and a path. No generated link is valid, and a schema cannot say that one of the two is required."""


@functools.cache
def tool() -> Any:
    """Import schemathesis when a test runs: the import takes seconds, and every worker collects this file."""
    import schemathesis
    from schemathesis.checks import load_all_checks

    schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
    load_all_checks()  # statuses, media types, schemas, headers, refusals of what is malformed, authentication
    return schemathesis


@functools.cache
def operations() -> dict[str, Any]:
    modes = tool().generation.GenerationMode
    schema = tool().openapi.from_dict(document())
    schema.config.generation.update(modes=[modes.POSITIVE, modes.NEGATIVE])
    schema.config.checks.positive_data_acceptance.expected_statuses = ["2xx", "304", "403", "404", "408", "409", "410", "412", "429", "5xx"]
    schema.config.checks.negative_data_rejection.expected_statuses = ["400", "403", "404", "405", "409", "410", "413", "422", "431", "5xx"]
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.label: operation for operation in found}


class BackgroundGateway:
    """A gateway on a thread of its own."""

    def __init__(self, redis_url: str) -> None:
        self.url = ""
        self._redis_url = redis_url
        self._up, self._loop = threading.Event(), asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        self._loop.close()

    async def _run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="hf-contract-") as folder:
            async with serve(self._redis_url, Path(folder)) as served:
                await self._populate(served)
                self.url = served.url
                self._up.set()
                await self._end.wait()

    async def _populate(self, served: Served) -> None:
        """Create the sandboxes and the group that generated requests use."""
        for id_ in IDS:
            await served.place(id_, served.runtime.endpoint)
            served.runtime.add(id_)
        await served.store.group_beat("ada", GROUP, 3600)


IDS, GROUP = ("sb-1", "sb-2"), "run-7"


@pytest.fixture(scope="module")
def gateway(redis_server: RedisServer) -> Iterator[str]:
    redis_server.flush()
    with BackgroundGateway(redis_server.url) as served:
        yield served.url


def is_expected_failure(answer: Any) -> bool:
    """Whether a 5xx is expected here and has the documented form."""
    media: list[str] | None = answer.headers.get("content-type")
    return media == ["application/problem+json"] and EXPECTED_FAILURES.get(answer.json()["code"]) == answer.status_code


def cases() -> Iterator[Any]:
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            label = f"{method.upper()} {path}"
            if label in ENDLESS:
                continue
            yield pytest.param(label, "positive", id=f"{label} valid")
            key = operation.get("security", document().get("security"))
            if key or operation.get("requestBody") or operation.get("parameters") or item.get("parameters"):
                yield pytest.param(label, "negative", id=f"{label} malformed")


@pytest.mark.hypothesis
@pytest.mark.parametrize(("label", "mode"), list(cases()))
def test_every_answer_is_as_documented(gateway: str, label: str, mode: str) -> None:
    operation = operations()[label]
    generation_mode = tool().generation.GenerationMode(mode)
    names = ["not_a_server_error", "positive_data_acceptance", "negative_data_rejection"]
    server_error, acceptance, rejection = tool().checks.CHECKS.get_by_names(names)
    by_link = any(one.name == LINK for one in operation.query)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=generation_mode), target=st.sampled_from(IDS) | st.none())
    def run(case: Any, target: str | None) -> None:
        if target and "sandbox_id" in case.path_parameters and case.method != "DELETE":
            case.path_parameters["sandbox_id"] = target  # a generated id never exists
        if by_link and mode == "positive":
            case.query.pop(LINK, None)
            case.query.setdefault("path", "/tmp/file")
        answer = case.call(base_url=gateway, headers={"X-API-Key": ADA}, timeout=60)
        skipped = [server_error] if is_expected_failure(answer) else []
        if answer.status_code == 422 and operation.label in BEYOND_SCHEMA:
            skipped.append(acceptance)
        if operation.label in REFUSED_BY_ITEM and answer.status_code == 200 and 422 in [one["status"] for one in answer.json()["results"]]:
            skipped.append(rejection)
        case.validate_response(answer, excluded_checks=skipped)

    run()
