"""Small images of busybox that differ in their configuration: user, directory, environment, entrypoint, volumes, almost nothing.

Owns their layers below build/docker-suite, made of the main image's busybox in a second. `image.build_images` calls it.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docker.archive import write_oci_archive

_ENTRY = """#!/bin/sh
{ echo "arguments: $*"; echo "user: $(id -u):$(id -g)"; echo "groups: $(id -G)"; echo "directory: $(pwd)"; echo "home: $HOME"
  echo "colour: $COLOUR"; echo "pid 1: $(test $$ = 1; echo $?)"; } > /tmp/starting
mv /tmp/starting /tmp/started
exec sleep 1000
"""
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nann:x:1500:1500::/home/ann:/bin/sh\nben:x:1501:1600::/nowhere:/bin/sh\n",
    "etc/group": "root:x:0:\nann:x:1500:\ncrew:x:1600:ann\nstaff:x:1601:ann,ben\n",
    "etc/os-release": "ID=variant\n",
    "entry.sh": _ENTRY,
    "data/seed": "seed\n",
    "home/ann/.profile": "export FROM_PROFILE=yes\n",
}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {"Env": [_PATH], "Cmd": ["sh"], "WorkingDir": "/"},
    "configured": {
        "Env": [_PATH, "COLOUR=blue", "EMPTY=", "SPACED=a b", "EQUALS=a=b"],
        "User": "ann",
        "WorkingDir": "/srv/app",
        "Entrypoint": ["/entry.sh"],
        "Cmd": ["serve", "--port", "80"],
        "Volumes": {"/data": {}, "/var/made": {}},
        "Labels": {"a": "b"},
    },
    "entry-as-root": {"Env": [_PATH], "WorkingDir": "/", "Entrypoint": ["/entry.sh"]},
    "command-only": {"Env": [_PATH, "COLOUR=red"], "WorkingDir": "/", "Cmd": ["/bin/sh", "-c", "/entry.sh of a command"]},
    "numeric-user": {"Env": [_PATH], "User": "4321", "WorkingDir": "/tmp"},
    "user-and-group": {"Env": [_PATH], "User": "1500:crew", "WorkingDir": "/tmp"},
    "user-of-other-group": {"Env": [_PATH], "User": "ben", "WorkingDir": "/tmp"},
    "directory-through-a-link": {"Env": [_PATH], "WorkingDir": "/link"},
    "home-set": {"Env": [_PATH, "HOME=/data"], "WorkingDir": "/"},
    "home-empty": {"Env": [_PATH, "HOME="], "WorkingDir": "/"},
    "without-path": {"Env": [], "WorkingDir": "/"},
    "own-path": {"Env": ["PATH=/data:/bin"], "WorkingDir": "/"},
}
BARE: dict[str, Any] = {"Env": [_PATH], "WorkingDir": "/"}
"""An image of one file, /busybox: no /etc, no shell, no user."""


def build(folder: Path, busybox: Path) -> dict[str, tuple[Path, Path, dict[str, Any]]]:
    """By name: the layer, the archive and the configuration."""
    source = inspect.getsource(sys.modules[__name__]).encode() + Path(inspect.getfile(write_oci_archive)).read_bytes()
    key = hashlib.sha256(source + busybox.read_bytes()).hexdigest()[:12]
    made = folder / f"variants-{key}"
    names = {**CONFIGURATIONS, "bare": BARE}
    if not (made / "done").exists():
        for old in folder.glob("variants-*"):
            shutil.rmtree(old)
        _make_full(made / "full", busybox)
        _make_bare(made / "bare", busybox)
        for name, config in names.items():
            write_oci_archive(made / f"{name}.tar", [made / ("bare" if name == "bare" else "full")], config)
        (made / "done").touch()
    return {name: (made / ("bare" if name == "bare" else "full"), made / f"{name}.tar", config) for name, config in names.items()}


def _make_full(root: Path, busybox: Path) -> None:
    for name in ("bin", "etc", "tmp", "root", "home/ann", "data", "var", "real", "usr/bin"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    subprocess.run(["chroot", str(root), "/bin/busybox", "--install", "-s", "/bin"], check=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    (root / "entry.sh").chmod(0o755)
    (root / "tmp").chmod(0o1777)
    (root / "root").chmod(0o700)
    (root / "link").symlink_to("/real")
    for name in ("home/ann", "home/ann/.profile", "data", "data/seed"):
        os.chown(root / name, 1500, 1600)


def _make_bare(root: Path, busybox: Path) -> None:
    root.mkdir(parents=True)
    shutil.copy(busybox, root / "busybox")
