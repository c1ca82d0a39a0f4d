"""Running one function on many items in a limited number of threads; ``aio.mapping`` has the same name.

If one call fails and exceptions are not kept, or Ctrl-C ends the map, no further item is started and the other calls are cancelled: the
SDK's calls in them raise ``KeyboardInterrupt`` (``events.Stop``), so their ``with`` blocks delete what they created. The map returns when
all threads have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast._arguments import bad
from holdfast._progress import Progress
from holdfast._transport.threads.events import SIGNALS_S, Stop

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")
Step = Callable[[T], R]
_HINT = "AsyncSandboxClient.map awaits coroutine functions"


def mapped(function: Step[T, R], items: list[T], concurrency: int, progress: Progress, *, keep: bool) -> list[R | Exception]:
    """The results in the order of the items; with ``keep`` an exception is returned in the place of its result."""
    from concurrent.futures import ThreadPoolExecutor

    results: dict[int, R | Exception] = {}
    waiting = deque(enumerate(items))
    stops = [Stop() for _ in range(min(concurrency, len(items)))]

    def work(stop: Stop) -> None:
        with stop:
            while waiting:
                try:
                    number, item = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    outcome: R | Exception = function(item)
                except BaseException as failure:
                    if not keep or not isinstance(failure, Exception):
                        waiting.clear()
                        raise
                    outcome = failure
                if isinstance(outcome, CoroutineType):
                    outcome.close()
                    raise bad(f"SandboxClient.map calls a function in threads; {function!r:.80} is a coroutine function", _HINT)
                results[number] = outcome
                progress.step(outcome)

    with ThreadPoolExecutor(max(len(stops), 1), thread_name_prefix="holdfast-map") as pool:
        workers = [pool.submit(work, stop) for stop in stops]
        try:
            ended = _ended(workers)
        finally:
            waiting.clear()
            for stop in stops:
                stop.set()
    for worker in ended:  # not the exceptions of calls that were cancelled
        worker.result()
    return [results[number] for number in range(len(items))]


def _ended(workers: list[Future[Any]]) -> set[Future[Any]]:
    """The workers that have ended, when all have or one has failed. Signals are handled meanwhile (see ``SIGNALS_S``)."""
    from concurrent.futures import FIRST_EXCEPTION, wait

    while True:
        ended, running = wait(workers, timeout=SIGNALS_S, return_when=FIRST_EXCEPTION)
        if not running or any(worker.exception() is not None for worker in ended):
            return ended
