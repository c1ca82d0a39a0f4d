"""The head of an HTTP/1.1 answer, parsed: for the upgrade of a dial and for an adoption. Pure."""

from __future__ import annotations


def parse_head(head: str) -> tuple[int, dict[str, str]]:
    """Status and headers, with names in lower case. Raises ``ValueError``."""
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("no status line")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("a header without a colon")
        headers[name.strip().lower()] = value.strip()
    return int(rest[:3]), headers
