"""A run of the suite: the folder's lock, the images, the service, and the pool of workers, in this order.

Used by the tests (`conftest.py`) and by the program (`__main__.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

from tests.docker.case import Case
from tests.docker.compare import Outcome, Pool
from tests.docker.image import build_images, locked_folder
from tests.docker.reference import remove_leftovers
from tests.docker.sandboxes import running_service


@contextlib.contextmanager
def running(cases: Mapping[str, Case], workers: int, *, podman: bool = False) -> Iterator[dict[str, Future[Outcome]]]:
    """A future for each case, all of them started; cases that have not begun at the end are dropped."""
    with locked_folder():
        if not podman:
            remove_leftovers()
        images = build_images()
        with running_service(list(images.values())) as client:
            pool = Pool(client, images, workers, podman=podman)
            try:
                yield pool.submit(cases)
            finally:
                pool.close()
