"""What the gateway says about itself: log lines and a few counters in Prometheus text.

Owns the log format and the metric names. Log lines hold ids, codes and sizes, never payloads, keys or query strings; control
characters are escaped, so that nothing a sandbox or client sends can forge or colour a line.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict


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
    """``text`` with control characters shown, so that it stays one harmless line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def configure_logging(level: int = logging.INFO) -> None:
    """Log to stderr. uvicorn's own lines would carry whole URLs, and a PTY's key may be in one: only its warnings are kept."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True


class Metrics:
    """Counters and gauges by name and labels. Not shared between processes: each replica is scraped by itself."""

    def __init__(self) -> None:
        self._counters: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        self._gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self._counters[name, tuple(sorted(labels.items()))] += amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self._gauges[name, tuple(sorted(labels.items()))] = value

    def render(self) -> str:
        """The exposition format, text version 0.0.4."""
        lines: list[str] = []
        for kind, samples in (("counter", self._counters), ("gauge", self._gauges)):
            last = ""
            for (name, labels), value in sorted(samples.items()):
                if name != last:
                    lines.append(f"# TYPE holdfast_{name} {kind}")
                    last = name
                inside = ",".join(f'{key}="{_label(text)}"' for key, text in labels)
                lines.append(f"holdfast_{name}{{{inside}}} {value:g}" if inside else f"holdfast_{name} {value:g}")
        return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return escape(text).replace("\\", r"\\").replace('"', r"\"")
