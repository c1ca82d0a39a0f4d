"""The arguments that the load test adds to locust's own, each also a ``LOAD_*`` variable and a field of locust's web page.

Owns names, defaults and the reading of ``--max-ms``. A master sends its values to all workers. Called by ``listeners``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtest.shapes import SHAPES


@dataclass(frozen=True, slots=True)
class Limit:
    """The most milliseconds that a percentile (0 to 100) of one name of the statistics may have."""

    name: str
    percent: float
    milliseconds: float


def add_arguments(parser: Any) -> None:
    """Add them to locust's parser."""

    ratio = _between(0, 1, "a ratio from 0 to 1")
    seconds = _between(0, 86_400, "a number of seconds")
    lease = _between(10, 3600, "a number of seconds from 10 to 3600")
    count = _between(1, 1 << 40, "a whole number from 1", int)

    def add(flag: str, kind: Any, default: object, text: str, **more: Any) -> None:
        variable = "LOAD_" + flag.strip("-").upper().replace("-", "_")
        parser.add_argument(flag, type=kind, default=default, env_var=variable, help=text, **more)

    add("--image", str, "python:3.12", "Image of the sandboxes")
    add("--think-s", seconds, 2.0, "Median think time between two turns of an episode, in seconds (log-normal, sigma 0.8)")
    add("--turns", count, 40, "Turns of an episode")
    add("--file-bytes", count, 1 << 20, "Bytes of each file that is moved")
    add("--stream-bytes", count, 4 << 20, "Bytes of each output that is read slowly")
    add("--lease-s", lease, 30.0, "Seconds after which the sandboxes of a locust process that was killed are deleted")
    add("--max-infrastructure", ratio, 0.0, "Most requests that may fail through the service's fault, as a ratio (0.001)")
    add("--max-workload", ratio, 0.0, "Most requests whose workload may fail, as a ratio")
    add("--max-ms", _checked_limits, "", "Most milliseconds of percentiles, by name: 'shell command:p95:250,create:p99:4000'")
    add("--shape", str, "soak", "How the number of users changes, with the file shapefile.py", choices=sorted(SHAPES))
    add("--run-id", str, os.urandom(4).hex(), "Label 'load-run' of the sandboxes of this run", include_in_web_ui=False)


def limits_of(text: str) -> list[Limit]:
    """The limits of ``--max-ms``. Raises ValueError with what is wrong."""
    limits = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        fields = part.rsplit(":", 2)
        if len(fields) != 3 or not fields[0] or not fields[1].startswith("p"):
            raise ValueError(f"{part!r} is not NAME:pPERCENT:MILLISECONDS, as 'shell command:p95:250'")
        percent, milliseconds = float(fields[1][1:]), float(fields[2])
        if not (0 < percent <= 100 and milliseconds > 0):
            raise ValueError(f"{part!r}: a percentile is above 0 and at most 100, and milliseconds are above 0")
        limits.append(Limit(fields[0], percent, milliseconds))
    return limits


def _checked_limits(text: str) -> str:
    try:
        limits_of(text)
    except ValueError as why:
        raise argparse.ArgumentTypeError(str(why)) from None
    return text


def _between(least: float, most: float, what: str, kind: type = float) -> Callable[[str], Any]:
    """The reader of an argument that is a number with bounds."""

    def read(text: str) -> Any:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return kind(value)

    return read
