"""The folder of unpacked layers, by digest, and which of them may be removed.

Owns adding a layer by rename, and removing those that nothing uses. Imports and exports run beside changes of the store: the layers that
they need are held meanwhile. Does not unpack (``layers``) and knows no images. Its methods block, and may be called on any thread. Called
by ``store``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator


class LayerFolder:
    """``tmp`` is a directory on the same file system as *directory*; *suffix* ends every layer's name."""

    def __init__(self, directory: str, tmp: str, suffix: str = "") -> None:
        self.directory = directory
        self.suffix = suffix
        self._tmp = tmp
        self._held = Counter[str]()
        self._lock = threading.Lock()
        """Held while layers appear and disappear, never while one is unpacked or its files are removed."""

    def path(self, digest: str) -> str:
        """Where the layer of this digest is, or would be."""
        return os.path.join(self.directory, digest.removeprefix("sha256:") + self.suffix)

    def digest(self, path: str) -> str | None:
        """The digest of the layer at *path*, None if that is not in this folder."""
        folder, name = os.path.split(path)
        return f"sha256:{name[: len(name) - len(self.suffix)]}" if folder == self.directory else None

    @contextlib.contextmanager
    def holding(self, digests: Iterable[str]) -> Iterator[None]:
        """Do not remove these layers meanwhile, whether they exist already or not."""
        paths = [self.path(digest) for digest in digests]
        with self._lock:
            self._held.update(paths)
        try:
            yield
        finally:
            with self._lock:
                self._held.subtract(paths)
                self._held += Counter()  # without those that are not held any more

    def add(self, draft: str, digest: str) -> None:
        """Make the unpacked *draft* the layer of this digest. If that exists already, the draft is left where it is."""
        with self._lock:
            if not os.path.isdir(self.path(digest)):
                os.rename(draft, self.path(digest))

    def remove_unused(self, wanted: Collection[str], in_use: Callable[[str], bool]) -> None:
        """Remove the layers that are not *wanted* (digests), not held, and for whose path *in_use* is false."""
        kept = {self.path(digest) for digest in wanted}
        removed = []
        with self._lock:
            for name in os.listdir(self.directory):
                path = os.path.join(self.directory, name)
                if path not in kept and not self._held[path] and not in_use(path):
                    removed.append(os.path.join(self._tmp, f"{os.urandom(8).hex()}.removed"))
                    os.rename(path, removed[-1])
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)
