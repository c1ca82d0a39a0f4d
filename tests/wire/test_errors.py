"""The error table: every code has a hint, and codes are distinct."""

from __future__ import annotations

import pytest
from holdfast_wire.errors import TABLE, ErrorKind, HoldfastError


@pytest.mark.parametrize("kind", TABLE.values(), ids=TABLE.keys())
def test_every_code_says_what_to_do(kind: ErrorKind) -> None:
    assert len(kind.hint) > 5
    assert HoldfastError(kind.code, "m").to_map()["hint"] == kind.hint
    assert 400 <= kind.status < 600
    assert kind.close_code == 0 or kind.close_code in (1011, 1012) or 4000 <= kind.close_code < 5000
