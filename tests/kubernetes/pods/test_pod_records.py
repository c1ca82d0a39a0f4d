"""The annotations of a pod as a sandbox's specification: other clients of the cluster may have written them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.model.records import SandboxSpec
from gateway.runtimes.kubernetes.names import RECORD
from gateway.runtimes.kubernetes.pods.record import annotations_of, read_record

SPEC = SandboxSpec("sb-1", "ada", "i1", "host", cores=1.0, memory_bytes=2**30, labels={"run": "7"})


def test_a_specification_is_read_back() -> None:
    assert read_record(annotations_of(SPEC)) == SPEC


@pytest.mark.parametrize(
    "options",
    [{"volumes": "abc"}, {"resources": [1]}, {"tolerations": {"a": 1}}, {"ulimits": 5}],
)
def test_options_of_wrong_types_are_not_of_this_service(options: dict[str, Any]) -> None:
    written = annotations_of(SPEC)
    document = orjson.loads(written[RECORD])
    document["options"] |= options
    assert read_record(written | {RECORD: orjson.dumps(document).decode()}) is None
