"""Log lines of gateway, controller and node.

Owns their format. Lines hold ids, codes and sizes, never payloads, keys or query strings; control characters
are escaped, so that nothing a sandbox or client sends can forge a line.
"""

from __future__ import annotations

import logging
import sys
import time


class LineFormatter(logging.Formatter):
    """One line a record: time, level, logger, message; everything unprintable escaped."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z"
        text = f"{stamp} {record.levelname.lower()} {record.name}: {escape(record.getMessage())}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def escape(text: str) -> str:
    """``text`` with control characters escaped, so that it stays one line and cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def configure_logging() -> None:
    """Log to stderr, from level info on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
