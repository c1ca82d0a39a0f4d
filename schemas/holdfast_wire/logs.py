"""Log lines of gateway, controller and node, as text or as JSON.

Owns their format, and the ids that lines have in JSON: those of the request that is served, where ``fields`` has them. Lines hold ids,
codes and sizes, never payloads, keys or query strings; control characters are escaped, so that nothing a sandbox or client sends can forge
a line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar

FIELDS = ("request", "sandbox", "session", "command", "trace", "method", "route", "status", "took_s", "owner", "key")
"""Names of ids and facts that a line may have besides its message: of ``fields``, or given with the line as ``extra``."""
fields: ContextVar[Callable[[], Mapping[str, object]] | None] = ContextVar("fields", default=None)
"""Where a line's ids come from while a request is served."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, those of ``FIELDS`` that are known, ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        line: dict[str, object] = {
            "time": stamp,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": escape(record.getMessage()),
        }
        source = fields.get()
        known = source() if source is not None else {}
        for name in FIELDS:
            value = record.__dict__.get(name, known.get(name))
            if value not in (None, ""):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


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


def configure_logging(form: str = "text") -> None:
    """Log to stderr, from level info on, as ``text`` or ``json`` (HOLDFAST_LOG_FORMAT). Raises ``ValueError`` for another form."""
    if form not in ("text", "json"):
        raise ValueError(f"HOLDFAST_LOG_FORMAT must be text or json, not {form[:40]!r}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
