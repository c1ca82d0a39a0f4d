"""Reads the events of ``GET /events`` in tests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.gateway.harness import DEADLINE_S


@dataclass(frozen=True)
class Event:
    name: str
    facts: dict[str, Any]
    id: str


class Stream:
    """Reads the events of one answer."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.last_id = ""

    async def next(self) -> Event:
        fields: dict[str, str] = {}
        async with asyncio.timeout(DEADLINE_S):
            async for line in self._lines:
                if line and not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "data" in fields:
                    self.last_id = fields.get("id", self.last_id)
                    return Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
        raise AssertionError("the stream has ended")
