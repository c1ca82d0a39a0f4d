"""The Debian mirror that this machine is configured with; the suite's image and its networked cases get packages from it.

Owns reading apt's source lists. If they name no mirror, there is no default.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from urllib.parse import urlsplit

_SOURCES = Path("/etc/apt")
_URI = re.compile(r"^(?:URIs:|deb(?: \[[^\]]*\])?)\s+(https?://\S+)", re.MULTILINE)


@functools.cache
def mirror() -> str:
    """The address of the first source that is not a security archive; empty where this machine has none."""
    files = [_SOURCES / "sources.list", *sorted(_SOURCES.glob("sources.list.d/*"))]
    found = [address.rstrip("/") for path in files if path.is_file() for address in _URI.findall(path.read_text(errors="replace"))]
    return next((address for address in found if "security" not in address), "")


def host() -> tuple[str, int]:
    """The mirror's host name and port; an empty name where there is no mirror."""
    parts = urlsplit(mirror())
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
