"""``aio_mapping``'s name for the blocking face: one function on many items, in at most so many threads.

When one fails and nobody keeps its exception, no further item is begun; those under way end first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast._progress import Progress

T = TypeVar("T")
R = TypeVar("R")
Step = Callable[[T], R]


def mapped(function: Step[T, R], items: list[T], concurrency: int, progress: Progress, *, keep: bool) -> list[R | Exception]:
    """The results in the order of the items; with ``keep`` an exception stands in the place of its result."""
    from concurrent.futures import ThreadPoolExecutor

    results: dict[int, R | Exception] = {}
    waiting = iter(enumerate(items))
    turn, stopped = threading.Lock(), threading.Event()

    def work() -> None:
        while not stopped.is_set():
            with turn:
                found = next(waiting, None)
            if found is None:
                return
            number, item = found
            try:
                outcome: R | Exception = function(item)
            except Exception as failure:
                if not keep:
                    stopped.set()
                    raise
                outcome = failure
            results[number] = outcome
            progress.step(outcome)

    with ThreadPoolExecutor(max(min(concurrency, len(items)), 1), thread_name_prefix="holdfast-map") as pool:
        workers = [pool.submit(work) for _ in range(min(concurrency, len(items)))]
        try:
            for worker in workers:
                worker.result()
        finally:
            stopped.set()
    return [results[number] for number in range(len(items))]
