"""Remote sources of ADD: fetching files over HTTP, on the machine that runs the build."""

from __future__ import annotations

import hashlib
import posixpath
import stat
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import IO
from urllib.parse import unquote, urlsplit

from holdfast._build.context import Entry, Source
from holdfast._build.errors import wrong

_TIMEOUT_S = 60.0
_PIECE = 1024 * 1024
MOST_BYTES = 16 * 1024 * 1024 * 1024


def is_remote(text: str) -> bool:
    """Whether a source is a URL of a file."""
    return text.lower().startswith(("http://", "https://"))


def refused_remote(text: str) -> str:
    """What to do instead of a remote source that is not supported; empty for others."""
    lower = text.lower()
    if lower.startswith(("git@", "git://", "ssh://")) or (is_remote(lower) and urlsplit(lower).path.endswith(".git")):
        return "clone it in the image: RUN git clone, or clone it into the context"
    return ""


def fetched(url: str, checksum: str, file: IO[bytes], line: int) -> Source:
    """Write the body to ``file``; permissions are 600, as docker's, and the time is the server's. Raises ``DockerfileError``."""
    algorithm, _, wanted = checksum.partition(":")
    if checksum and algorithm != "sha256":
        raise wrong(line, f"ADD --checksum={checksum:.40} is not supported", "write sha256:DIGEST")
    total, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            while data := answer.read(_PIECE):
                total.update(data)
                size += len(data)
                if size > MOST_BYTES:
                    raise wrong(line, f"ADD {url:.200}: larger than {MOST_BYTES} bytes")
                file.write(data)
            modified = answer.headers.get("Last-Modified")
    except (OSError, ValueError) as why:
        raise wrong(line, f"ADD {url:.200}: {why}", "the machine that runs the build fetches it") from None
    if checksum and total.hexdigest() != wanted:
        raise wrong(line, f"ADD {url:.200}: the checksum is sha256:{total.hexdigest()}")
    try:
        mtime = parsedate_to_datetime(modified).timestamp() if modified else 0.0
    except (TypeError, ValueError):
        mtime = 0.0
    file.flush()
    name = posixpath.basename(unquote(urlsplit(url).path))

    def opened() -> IO[bytes]:
        return open(f"/proc/self/fd/{file.fileno()}", "rb")

    if not name:
        raise wrong(line, f"ADD {url:.200} has no file name", "write the name of the file as target") from None
    return Source(name, False, [Entry("", stat.S_IFREG | 0o600, size, mtime, open=opened)])
