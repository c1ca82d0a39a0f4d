"""What sandboxes say is read by the page without an error, whatever it is: terminal output, lines of recordings, frames of sessions.

The modules run in the browser itself, with examples from a seed, which a failure prints.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page

OpenPage = Callable[..., Page]
ROUNDS = 20_000 if os.environ.get("HOLDFAST_FUZZ") else 1_500
FUZZ = Path(__file__).with_name("parsers.js")


def test_hostile_text_is_read_without_an_error(open_page: OpenPage) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    assert open_page().evaluate(FUZZ.read_text(), {"seed": seed, "rounds": ROUNDS}) == ROUNDS
