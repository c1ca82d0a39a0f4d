"""Samples the footprint of a stack while a load runs, into a CSV file.

Owns the thread and the file. Used by ``__main__``, in a process that does not import locust.
"""

from __future__ import annotations

import contextlib
import csv
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loadtest.footprint import Footprint
from loadtest.growth import Sample

_SETTLE_S = 60.0
_PAUSE_S = 0.5


@contextlib.contextmanager
def watched(footprint: Footprint, file: Path, period_s: float) -> Iterator[list[Sample]]:
    """Sample every ``period_s`` until the block ends; yields the samples so far."""
    samples: list[Sample] = []
    over = threading.Event()
    with file.open("w", newline="") as output, ThreadPoolExecutor(1, "footprint") as pool:
        rows = csv.writer(output)
        rows.writerow(("seconds", "process", "pid", "measure", "value"))

        def sample() -> None:
            start = time.monotonic()
            while True:
                seconds = round(time.monotonic() - start, 1)
                taken = [(seconds, each.process, each.pid, each.measure, each.value) for each in footprint.read()]
                samples.extend(taken)
                rows.writerows(taken)
                output.flush()
                if over.wait(period_s):
                    return

        sampling = pool.submit(sample)
        try:
            yield samples
        finally:
            over.set()
        sampling.result()  # a sampler that failed fails the run


def left_behind(footprint: Footprint) -> list[str]:
    """The resources that still belong to a sandbox. Waits at most a minute until there are none."""
    end = time.monotonic() + _SETTLE_S
    while any((left := footprint.unclaimed()).values()) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    return [f"{count} {what} of sandboxes are left behind" for what, count in left.items() if count]
