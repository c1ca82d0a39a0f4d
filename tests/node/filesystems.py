"""File systems of their own for data folders: full ones, and ones whose files can share blocks."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

MAKERS = {"ext4": ["mkfs.ext4", "-q", "-F", "-m", "0"], "xfs": ["mkfs.xfs", "-q", "-f", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}


@contextlib.contextmanager
def mounted(folder: Path, kind: str, size_bytes: int) -> Iterator[Path]:
    """A folder that is created, on a new file system of that kind and size."""
    image = folder.with_suffix(".image")
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run([*MAKERS[kind], str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        image.unlink()
