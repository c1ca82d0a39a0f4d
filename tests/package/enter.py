"""Run inside fresh namespaces as their first process: makes a root file system look like a container's and becomes its command.

Owns the mounts that container runtimes make (proc, dev, shm, the bundle read-only) and nothing else. Called by `pod` through unshare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def main(spec: dict[str, Any]) -> None:
    root = Path(spec["root"])
    _mount("--make-rprivate", "/")
    _mount("--bind", str(root), str(root))
    for name in ("proc", "dev", ".holdfast"):
        (root / name).mkdir(exist_ok=True)
    _mount("-t", "proc", "proc", str(root / "proc"))
    _mount("-t", "tmpfs", "-o", "mode=755,size=1m", "tmpfs", str(root / "dev"))
    for name in _DEVICES:
        (root / "dev" / name).touch()
        _mount("--bind", f"/dev/{name}", str(root / "dev" / name))
    for name in ("shm", "pts"):
        (root / "dev" / name).mkdir()
    _mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts", str(root / "dev/pts"))
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (root / "dev" / name).symlink_to(f"/proc/self/fd{target}")
    (root / "dev/ptmx").symlink_to("pts/ptmx")
    _mount("-t", "tmpfs", "-o", "mode=1777,size=16m", "tmpfs", str(root / "dev/shm"))
    _mount("--bind", spec["bundle"], str(root / ".holdfast"))
    _mount("-o", "remount,bind,ro", str(root / ".holdfast"))
    if spec["read_only"]:
        _mount("-o", "remount,bind,ro", str(root))
    os.chroot(root)
    os.chdir(spec["cwd"])
    os.setgroups([])
    os.setresgid(spec["uid"], spec["uid"], spec["uid"])
    os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    os.umask(0o022)
    os.execve(spec["argv"][0], spec["argv"], spec["env"])


def _mount(*arguments: str) -> None:
    subprocess.run(["/bin/mount", "-n", *arguments], check=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
