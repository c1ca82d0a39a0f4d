"""The file tree of a sandbox on a disk without room."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from pathlib import Path

import pytest

from session_agent.node.kernel import rootfs
from tests.node.filesystems import mounted
from tests.support.requires import requires

pytestmark = requires("namespaces", "root")


@pytest.mark.parametrize("is_full", [False, True])
def test_an_overlay_on_a_full_disk_is_refused(tmp_path: Path, is_full: bool) -> None:
    """The kernel mounts it, but read-only: a sandbox that was made in advance could not even be named."""
    with mounted(tmp_path / "disk", "ext4", 8 << 20) as disk:
        for name in ("lower", "upper", "work", "root"):
            (disk / name).mkdir()
        if is_full:
            _fill(disk / "filler")
        options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(disk / "root")], check=True)
        try:
            if is_full:
                with pytest.raises(OSError, match="no room") as refused:
                    rootfs.require_writable(str(disk / "root"))
                assert refused.value.errno == errno.ENOSPC
            else:
                rootfs.require_writable(str(disk / "root"))
        finally:
            subprocess.run(["umount", str(disk / "root")], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
