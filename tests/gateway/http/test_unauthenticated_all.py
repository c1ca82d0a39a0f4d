"""Every kind of bad client without a key, with a hundred connections: others are served while they last.

The aim is that others' p99 at most doubles; the ratio is printed. A hundred clients keep the gateway's processor busy and run on the same
machine, so the bound is wider; ``test_turns`` checks how much they may cause in one turn.
"""

from __future__ import annotations

import pytest

from tests.gateway.http.test_unauthenticated import check, stack
from tests.support.bad_clients import KINDS
from tests.support.requires import requires
from tests.support.stack import Stack

__all__ = ["stack"]
pytestmark = [requires("namespaces", "redis"), pytest.mark.alone]


@pytest.mark.parametrize("kind", list(KINDS))
async def test_others_are_served_while_any_kind_lasts(stack: Stack, kind: str) -> None:
    await check(stack, kind)
