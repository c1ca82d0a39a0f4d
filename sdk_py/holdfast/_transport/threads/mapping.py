"""``aio.mapping``'s name for the blocking API: one function on many items, in at most so many threads.

When one fails and exceptions are not kept, or Ctrl-C ends the map, no further item is begun and the others are cancelled: the SDK's
calls in them raise ``KeyboardInterrupt`` (``events.Stop``), so their ``with`` blocks delete what they made. The map ends when they have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CoroutineType
from typing import TypeVar

from holdfast._arguments import bad
from holdfast._progress import Progress
from holdfast._transport.threads.events import Stop

T = TypeVar("T")
R = TypeVar("R")
Step = Callable[[T], R]
_HINT = "AsyncSandboxClient.map awaits coroutine functions"


def mapped(function: Step[T, R], items: list[T], concurrency: int, progress: Progress, *, keep: bool) -> list[R | Exception]:
    """The results in the order of the items; with ``keep`` an exception stands in the place of its result."""
    from concurrent.futures import ThreadPoolExecutor, wait

    results: dict[int, R | Exception] = {}
    failures: list[BaseException] = []
    waiting = iter(enumerate(items))
    lock, stopped = threading.Lock(), threading.Event()
    stops = [Stop() for _ in range(min(concurrency, len(items)))]

    def end(failure: BaseException | None = None) -> None:
        with lock:
            if stopped.is_set():
                return
            stopped.set()
            if failure is not None:
                failures.append(failure)
        for stop in stops:
            stop.set()

    def work(stop: Stop) -> None:
        with stop:
            while not stopped.is_set():
                with lock:
                    found = next(waiting, None)
                if found is None:
                    return
                number, item = found
                try:
                    outcome: R | Exception = function(item)
                    if isinstance(outcome, CoroutineType):
                        outcome.close()
                        end(bad(f"SandboxClient.map calls a function in threads; {function!r:.80} is a coroutine function", _HINT))
                        return
                except BaseException as failure:  # noqa: BLE001  it is raised where the map was called
                    if not keep or not isinstance(failure, Exception):
                        end(failure)
                        return
                    outcome = failure
                results[number] = outcome
                progress.step(outcome)

    with ThreadPoolExecutor(max(len(stops), 1), thread_name_prefix="holdfast-map") as pool:
        workers = [pool.submit(work, stop) for stop in stops]
        try:
            wait(workers)
        finally:
            end()
    if failures:
        raise failures[0]
    for worker in workers:
        worker.result()
    return [results[number] for number in range(len(items))]
