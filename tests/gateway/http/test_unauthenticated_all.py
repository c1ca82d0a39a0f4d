"""Every kind of bad client without a key, with a hundred connections: others are served while they last.

The aim is that others' p99 at most doubles; the ratio is printed. Kinds that connect 2 000 times a second or flood with valid requests take
their share of the processor and do not reach it yet, so the bound only detects what delays others for as long as a read takes to parse.
"""

from __future__ import annotations

import pytest

from tests.gateway.http.test_unauthenticated import FLOOD_MOST, check, stack
from tests.support.bad_clients import KINDS
from tests.support.requires import requires
from tests.support.stack import Stack

__all__ = ["stack"]
pytestmark = [requires("namespaces", "redis"), pytest.mark.alone]


@pytest.mark.parametrize("kind", list(KINDS))
async def test_others_are_served_while_any_kind_lasts(stack: Stack, kind: str) -> None:
    await check(stack, kind, FLOOD_MOST)
