"""Commands of another user through the whole chain: what a program expects of its standard streams holds for everyone."""

from __future__ import annotations

import pytest
from holdfast import Sandbox


@pytest.mark.parametrize("user", [None, "nobody"])
def test_standard_streams_can_be_opened_anew(sandbox: Sandbox, user: str | None) -> None:
    result = sandbox.exec("echo hi > /dev/stdout; echo e > /dev/stderr; cat /dev/stdin", user=user, input=b"in")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hi\nin", "e\n")
