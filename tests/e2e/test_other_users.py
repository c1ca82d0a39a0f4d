"""Commands of another user through the whole chain: standard streams work for every user."""

from __future__ import annotations

import pytest
from holdfast import Sandbox


@pytest.mark.parametrize("user", [None, "nobody"])
def test_standard_streams_can_be_opened_by_path(sandbox: Sandbox, user: str | None) -> None:
    result = sandbox.exec("echo hi > /dev/stdout; echo e > /dev/stderr; cat /dev/stdin", user=user, input=b"in")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hi\nin", "e\n")
